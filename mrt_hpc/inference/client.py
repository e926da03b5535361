"""Asynchronous sampling through a server's socket, from prompts as token ids to token ids with log-probabilities.

Samples arrive one by one, in any order. After a broken connection the client asks again for missing samples.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import aiohttp
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_exponential

from mrt_hpc.errors import UserError, retryable_error
from mrt_hpc.inference import protocol
from mrt_hpc.inference.protocol import Request, RequestBatch, SamplingSettings, ServedSample
from mrt_hpc.inference.server_control import READ_LOG, URL
from mrt_hpc.run.records import SLIGHTLY_ABOVE_ONE, FinishReason

__all__ = ["Completion", "GenerationClient", "Request", "SamplingSettings", "connect"]

ATTEMPTS = 5
_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class ServerGone(Exception):
    """The connection broke before every sample had arrived."""


@dataclass(frozen=True)
class Completion:
    request: int
    """Index within the call."""
    sample: int
    """Index of the seed within the request."""
    seed: int
    token_ids: list[int]
    """[T], with the stop token last where ``finish_reason`` is STOP."""
    logprobs: list[float]
    """[T] under the sampled distribution."""
    finish_reason: FinishReason
    weights_version: int
    """The version of the first token, the oldest of all."""
    prompt_tokens: int
    cached_tokens: int | None
    """Prompt tokens in the server's prefix cache."""
    scores: list[float]
    """Log-probabilities of ``score_ids`` at the first position."""
    started: float
    """When the request was sent, seconds since the epoch."""
    seconds: float
    tops: list[dict[int, float]] = field(default_factory=list)
    """[T] the likeliest tokens with log-probabilities; empty where not asked for."""
    later_weights: list[list[int]] = field(default_factory=list)
    """See :class:`mrt_hpc.run.records.Rollout`."""


@dataclass
class GenerationClient:
    http: aiohttp.ClientSession
    revive: Callable[[], Awaitable[object]] | None = None
    """Awaited before a broken request is sent again; restarts a dead server."""
    attempts: int = ATTEMPTS
    where: object = None
    """The server's log, or its socket, for errors."""
    advice: str = READ_LOG
    generated_tokens: int = field(default=0, init=False)
    unfinished: int = field(default=0, init=False)
    """Batches that the server has received and not finished."""

    async def complete(self, prompt_ids: list[int], seeds: list[int], settings: SamplingSettings) -> list[Completion]:
        """All samples of one prompt, in the order of their seeds."""
        completions = [c async for c in self.stream([Request(prompt_ids, seeds, settings)])]
        return sorted(completions, key=lambda c: c.sample)

    async def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        waiting = {(i, j) for i, request in enumerate(requests) for j in range(len(request.seeds))}
        if not waiting:
            return
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(ServerGone),
            stop=stop_after_attempt(self.attempts),
            wait=wait_exponential(multiplier=0.1, max=5),
            before_sleep=self._prepare_retry,
            retry_error_callback=self._give_up,
        )
        async for attempt in retrying:
            with attempt:
                async for completion in self._attempt(requests, waiting):
                    waiting.discard((completion.request, completion.sample))
                    self.generated_tokens += len(completion.token_ids)
                    yield completion

    async def _prepare_retry(self, _: RetryCallState) -> None:
        if self.revive is not None:
            await self.revive()

    async def _attempt(self, requests: Sequence[Request], waiting: set[tuple[int, int]]) -> AsyncIterator[Completion]:
        """Send the requests of the samples in ``waiting``; the caller removes those that arrive."""
        places: dict[int, list[int]] = {}
        for i, j in sorted(waiting):
            places.setdefault(i, []).append(j)
        kept = [(i, [requests[i].seeds[j] for j in js]) for i, js in places.items()]
        batch = RequestBatch([msgspec.structs.replace(requests[i], seeds=seeds) for i, seeds in kept])
        started = time.time()
        async for sample in self._samples(batch):
            i, j = _place(sample, [places[i] for i, _ in kept], [i for i, _ in kept])
            if (i, j) not in waiting:
                raise ServerGone(f"sample {j} of request {i} arrived twice")
            if (reason := _reason_of_refusal(sample)) is not None:
                prompt = f"a prompt of {len(requests[i].prompt_ids)} tokens"
                if not reason.startswith(protocol.NOT_FINITE):
                    raise self._refusal(reason, prompt)
                # It is not asked for again: the same seed with the same weights gives the same.
                raise UserError(
                    f"the vLLM server computes numbers that are not finite ({reason})",
                    value=f"{prompt}, seed {requests[i].seeds[j]}",
                    where=self.where,
                    expected="finite log-probabilities",
                    advice="where activations overflow, another number format helps: --set serving.dtype=bfloat16 (or "
                    "float32) with another --run directory; else look for NaN and infinities in the weights that it "
                    "serves",
                )
            yield _completion(sample, requests[i], i, j, started)
        if waiting:
            raise ServerGone("the response ended early")

    async def _samples(self, batch: RequestBatch) -> AsyncIterator[ServedSample]:
        self.unfinished += 1
        try:
            async with self.http.post(protocol.GENERATE_PATH, data=msgspec.json.encode(batch)) as response:
                if response.status >= 500:
                    raise ServerGone(f"status {response.status}: {await response.text()}")
                if response.status != 200:
                    raise self._refusal((await response.text()).strip(), f"{len(batch.requests)} requests")
                async for line in _lines(response.content):
                    yield protocol.read_sample_line(line)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServerGone(repr(error)) from error
        finally:
            self.unfinished -= 1

    def _refusal(self, reason: str, value: str) -> UserError:
        what = f"the vLLM server refused a request: {reason}"
        return UserError(what, value=value, where=self.where, advice=self.advice)

    def _give_up(self, state: RetryCallState) -> None:
        cause = state.outcome.exception() if state.outcome else None
        what = f"the vLLM server ended the connection {state.attempt_number} times: {cause}"
        raise retryable_error(what, where=self.where, advice=self.advice) from cause


@asynccontextmanager
async def connect(
    socket: Path,
    key: str,
    *,
    revive: Callable[[], Awaitable[object]] | None = None,
    attempts: int = ATTEMPTS,
    where: object = None,
    advice: str = READ_LOG,
) -> AsyncIterator[GenerationClient]:
    """A client of the server at ``socket``, closed at the end of the block. ``revive`` is as in
    :class:`GenerationClient`; errors name ``where``, by default the socket.
    """
    async with aiohttp.ClientSession(
        URL,
        connector=aiohttp.UnixConnector(str(socket), limit=0),
        headers={"Authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
    ) as http:
        yield GenerationClient(http, revive, attempts, socket if where is None else where, advice)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: a long trace exceeds the reader's own limit of 128 KiB."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _place(sample: ServedSample, places: Sequence[Sequence[int]], requests: Sequence[int]) -> tuple[int, int]:
    """The request of an answer, and the index of its sample; ``requests`` are the batch's indices among all."""
    if not (0 <= sample.request < len(places) and 0 <= sample.sample < len(places[sample.request])):
        raise ServerGone(f"the server answered an unknown request: sample {sample.sample} of request {sample.request}")
    return requests[sample.request], places[sample.request][sample.sample]


def _completion(sample: ServedSample, request: Request, i: int, j: int, started: float) -> Completion:
    if fault := _fault(sample, request):
        raise ServerGone(f"the server sent an invalid sample: {fault}")
    return Completion(
        request=i,
        sample=j,
        seed=request.seeds[j],
        token_ids=sample.token_ids,
        logprobs=sample.logprobs,
        finish_reason=_FINISH_REASONS[sample.finish_reason],
        weights_version=sample.weights_spans[0][0],
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=sample.cached_tokens,
        scores=sample.scores,
        tops=[
            dict(zip(sample.top_ids[at : at + request.top], sample.top_logprobs[at : at + request.top], strict=True))
            for at in range(0, len(sample.top_ids), request.top or 1)
        ],
        started=started,
        seconds=time.time() - started,
        later_weights=[[start, version] for version, start in sample.weights_spans[1:]],
    )


def _fault(sample: ServedSample, request: Request) -> str | None:
    if not 0 < len(sample.token_ids) <= request.settings.max_tokens:
        return f"{len(sample.token_ids)} tokens, where 1 to {request.settings.max_tokens} were requested"
    if len(sample.logprobs) != len(sample.token_ids):
        return f"{len(sample.logprobs)} log-probabilities for {len(sample.token_ids)} tokens"
    if not len(sample.top_ids) == len(sample.top_logprobs) == request.top * len(sample.token_ids):
        return f"{len(sample.top_ids)} likeliest tokens for {len(sample.token_ids)} positions of {request.top}"
    if not all(value <= SLIGHTLY_ABOVE_ONE for value in (*sample.logprobs, *sample.scores, *sample.top_logprobs)):
        return "a log-probability is above 0 or not a number"
    if len(sample.scores) != len(request.score_ids):
        return f"{len(sample.scores)} scores, where {len(request.score_ids)} were requested"
    if not _are_in_order(sample.weights_spans, len(sample.token_ids)):
        return f"weights versions {sample.weights_spans} of {len(sample.token_ids)} tokens"
    return None


def _are_in_order(spans: Sequence[tuple[int, int]], tokens: int) -> bool:
    """Spans of weights versions must cover all tokens, each version newer than the one before."""
    versions, starts = [v for v, _ in spans], [start for _, start in spans]
    ascend = all(a < b for values in (versions, [*starts, tokens]) for a, b in pairwise(values))
    return ascend and starts[:1] == [0]


def _reason_of_refusal(sample: ServedSample) -> str | None:
    """Raises ServerGone where the server has failed, so that the request can be sent again."""
    if sample.error is None and sample.finish_reason in _FINISH_REASONS:
        return None
    if sample.error is None or sample.error.startswith(("EngineDeadError", "EngineGenerateError")):
        raise ServerGone(sample.error or f"finished by {sample.finish_reason!r}")
    return sample.error or "it gave no reason"
