"""Middleware of the vLLM server (``--middleware``): it requires the run's key on every route, and adds a compact route
for samples.

vLLM's own key guards /v1 and a few prefixes only, not the control routes; this one answers only /health without it.
"""

import asyncio
import hmac
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams

from mrt_hpc.inference import protocol

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
CacheSalt = Callable[[], Awaitable[str]]

_decode_batch = msgspec.json.Decoder(protocol.RequestBatch).decode
_request_numbers = itertools.count()


class RunRoutes:
    """ASGI middleware: refuses requests without the key, answers ``GENERATE_PATH``, passes the others to vLLM."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.authorization = f"Bearer {os.environ['VLLM_API_KEY']}".encode()
        self._pauses = 0
        self._pausing = asyncio.Lock()
        """Held while the engine pauses: samples that arrive meanwhile wait for the new weights."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/health":
            await self.app(scope, receive, send)
        elif not hmac.compare_digest(dict(scope["headers"]).get(b"authorization", b""), self.authorization):
            await _respond(send, 401, b"the key of the run is missing or wrong\n")
        elif scope["path"] == protocol.GENERATE_PATH:
            await _generate(scope["app"].state.engine_client, receive, send, self._cache_salt)
        elif scope["path"] == protocol.PAUSE_PATH:
            async with self._pausing:
                self._pauses += 1
                await self.app(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _cache_salt(self) -> str:
        """Samples of one salt may share cached prefixes. Traces may run through a pause for new weights with old keys
        and values: a sample finds only prefixes from after the last pause before it.
        """
        async with self._pausing:
            return f"pause {self._pauses}"


async def _respond(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


async def _generate(engine: "EngineClient", receive: Receive, send: Send, cache_salt: CacheSalt) -> None:
    """Each sample is sent when it is finished, so that its branches can start. ``cache_salt`` is asked for when a
    sample goes to the engine.
    """
    try:
        batch = _decode_batch(await _read_body(receive))
    except msgspec.MsgspecError as error:
        await _respond(send, 400, f"{error}\n".encode())
        return
    finished: asyncio.Queue[protocol.ServedSample] = asyncio.Queue()
    places = [(i, j) for i, request in enumerate(batch.requests) for j in range(len(request.seeds))]
    work = [_sample(engine, batch.requests[i], i, j, cache_salt, finished) for i, j in places]
    tasks = [asyncio.create_task(w) for w in work]
    abandon = asyncio.create_task(_cancel_when_gone(receive, tasks))
    try:
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send_lines(finished, len(tasks), send)
        await asyncio.gather(*tasks)
    finally:
        for task in (abandon, *tasks):
            task.cancel()


async def _read_body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _cancel_when_gone(receive: Receive, tasks: list[asyncio.Task[None]]) -> None:
    """Cancelling a disconnected client's tasks aborts their samples in the engine."""
    while (await receive())["type"] != "http.disconnect":
        pass
    for task in tasks:
        task.cancel()


async def _send_lines(finished: asyncio.Queue[protocol.ServedSample], count: int, send: Send) -> None:
    sent = 0
    while sent < count:
        ready = [await finished.get()]
        while not finished.empty():
            ready.append(finished.get_nowait())
        sent += len(ready)
        body = b"".join(protocol.sample_line(sample) for sample in ready)
        await send({"type": "http.response.body", "body": body, "more_body": sent < count})


async def _sample(
    engine: "EngineClient",
    request: protocol.Request,
    i: int,
    j: int,
    cache_salt: CacheSalt,
    finished: asyncio.Queue[protocol.ServedSample],
) -> None:
    """Put a sample, or the refusal, on the queue."""
    try:
        prompt = tokens_input(request.prompt_ids, cache_salt=await cache_salt())
        outputs = engine.generate(prompt, sampling_params(request, request.seeds[j]), f"mrt-{next(_request_numbers)}")
        sample = _served_sample(request, i, j, [output async for output in outputs][-1])
        fault = protocol.not_finite(sample)
        finished.put_nowait(sample if fault is None else protocol.ServedSample(i, j, error=fault))
    except Exception as error:  # the error reaches the client, which raises it
        finished.put_nowait(protocol.ServedSample(i, j, error=f"{type(error).__name__}: {error}"))


def sampling_params(request: protocol.Request, seed: int) -> SamplingParams:
    """Samples return ids and log-probabilities only, no text."""
    settings = request.settings
    return SamplingParams(
        max_tokens=settings.max_tokens,
        min_tokens=settings.min_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        stop_token_ids=list(settings.stop_token_ids),
        ignore_eos=settings.ignore_stop,
        seed=seed,
        logprobs=request.top or len(request.score_ids),
        logprob_token_ids=request.score_ids or None,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def _served_sample(request: protocol.Request, i: int, j: int, result: Any) -> protocol.ServedSample:
    output = result.outputs[0]
    flat = output.logprobs
    first_scored = flat.start_indices[0] + 1  # the sampled token comes first at every position
    tops = [slice(start + 1, start + 1 + request.top) for start in flat.start_indices] if request.top else []
    return protocol.ServedSample(
        request=i,
        sample=j,
        token_ids=list(output.token_ids),
        logprobs=[flat.logprobs[start] for start in flat.start_indices],
        finish_reason=output.finish_reason,
        cached_tokens=result.num_cached_tokens,
        weights_spans=[(_version_number(span.version), span.start) for span in output.weight_versions or []],
        scores=flat.logprobs[first_scored : first_scored + len(request.score_ids)],
        top_ids=[token for place in tops for token in flat.token_ids[place]],
        top_logprobs=[value for place in tops for value in flat.logprobs[place]],
    )


def _version_number(name: str) -> int:
    """vLLM calls the weights that it starts with ``default``."""
    return int(os.environ[protocol.FIRST_VERSION_VARIABLE] if name == "default" else name)
