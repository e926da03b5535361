"""Branches: the request that makes mu answer from a prefix, its samples, and the answers that likely next tokens would
have given.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from mrt_hpc.inference.protocol import Request, SamplingSettings
from mrt_hpc.inference.sampler import Generator
from mrt_hpc.inference.tokens import TokenBytes, digest_of_ids
from mrt_hpc.inference.traces import CandidateLook, SampledBranch, SampledTrace, ScoringCost, Trust
from mrt_hpc.mrt.values import BranchStep, look_ahead
from mrt_hpc.provers.box_tokens import Closing, box_end, could_end
from mrt_hpc.run.records import FinishReason
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from mrt_hpc.inference.client import Completion


class _NotDrawnError(Exception):
    """The trace that was to draw a branch has failed."""


@dataclass(frozen=True)
class BranchKey:
    """The identity of a branch, whichever trace of its problem asks for it."""

    iteration: int
    problem_id: str
    prefix: str
    """SHA-256 of the tokens before it, prompt included."""
    number: int

    @classmethod
    def of(cls, trace: SampledTrace, boundary: int, numbers: range) -> "list[BranchKey]":
        """Of each of these branches at a boundary."""
        prefix = digest_of_ids(trace.context(boundary))
        return [cls(trace.iteration, trace.group.problem.id, prefix, number) for number in numbers]


@dataclass(frozen=True)
class Fork:
    generator: Generator
    """Of the server of mu."""
    tokens: TokenBytes
    """Of mu's tokenizer."""
    context: Callable[[SampledTrace, int], list[int]]
    """Prompt and prefix before a boundary, in mu's tokens."""
    forced_ids: list[int]
    """They close the thought and start the answer."""
    answer_start: str
    """The answer's part of the forced text; it precedes a branch's text."""
    settings: SamplingSettings
    run_seed: int
    boundaries: Callable[[SampledTrace], Sequence[int]]
    """Boundaries to ask about."""
    common_seeds: bool = False
    """A branch has the same seed at every boundary of a problem's traces."""

    def prompt(self, trace: SampledTrace, boundary: int) -> list[int]:
        """The tokens that mu continues from."""
        return [*self.context(trace, boundary), *self.forced_ids]

    def seed(self, key: "BranchKey") -> int:
        """Equal prefixes of a problem have equal branches, whichever trace asks."""
        prefix = () if self.common_seeds else (key.prefix,)
        return derive_seed(self.run_seed, "branch", key.iteration, key.problem_id, *prefix, key.number)

    def uniforms(self, trace: SampledTrace, count: int) -> NDArray[np.float64]:
        """[count] random numbers in [0, 1) for one trace's planning."""
        where = (trace.iteration, trace.group.problem.id, trace.sample)
        return np.random.default_rng(derive_seed(self.run_seed, "plan", *where)).random(count)


@dataclass(frozen=True)
class Branches:
    """Draws branches to the end of mu's answer, or of its box. Traces of a problem that share a prefix, as all share
    the empty one, share its branches: these are drawn once.
    """

    fork: Fork
    closing: Closing | None = None
    """Where forced text opens a box: a branch ends with the closing token."""
    likely_tokens: int = 0
    """Candidates at each token; 0 does not look ahead."""
    least_probability: float = 0.0
    """Of a candidate."""
    _asked: dict[BranchKey, asyncio.Future[SampledBranch]] = field(default_factory=dict, init=False)
    """Where a trace draws one, others wait for it."""

    async def draw(self, trace: SampledTrace, numbers: Mapping[int, range]) -> list[SampledBranch]:
        """The branches of these numbers, by boundary."""
        asked = [(boundary, these) for boundary, these in numbers.items() if these]
        keys = {key: boundary for boundary, these in asked for key in BranchKey.of(trace, boundary, these)}
        shared = {key: self._asked[key] for key in keys if key in self._asked}
        drawn = await self._draw_fresh(trace, {key: boundary for key, boundary in keys.items() if key not in shared})
        if waiting := [future for future in shared.values() if not future.done()]:
            await asyncio.wait(waiting)  # unlike `await future`, this cancels no other trace's branch
        drawn += [replace(f.result(), boundary=keys[key], is_shared=True) for key, f in shared.items()]
        return sorted(drawn, key=lambda b: (b.boundary, b.branch))

    async def _draw_fresh(self, trace: SampledTrace, fresh: Mapping[BranchKey, int]) -> list[SampledBranch]:
        """Draw the branches that no trace has asked for, each at its boundary."""
        loop = asyncio.get_running_loop()
        promised = {key: loop.create_future() for key in fresh}
        self._asked.update(promised)
        try:
            drawn = await self._sample(trace, fresh)
        except BaseException as error:
            for key, future in promised.items():
                del self._asked[key]
                future.set_exception(_NotDrawnError(repr(error)))
                future.exception()  # it is no error of its own where no trace waits
            raise
        for key, branch in drawn.items():
            promised[key].set_result(branch)
        return [*drawn.values()]

    async def _sample(self, trace: SampledTrace, fresh: Mapping[BranchKey, int]) -> dict[BranchKey, SampledBranch]:
        asked: dict[int, list[BranchKey]] = defaultdict(list)
        for key, boundary in fresh.items():
            asked[boundary].append(key)
        requests = [self._request(trace, boundary, keys) for boundary, keys in asked.items()]
        first = [c async for c in self.fork.generator.stream(requests)] if requests else []
        whole = await asyncio.gather(*(self._continue_branch(requests[c.request], c) for c in first))
        of_requests = [*asked.values()]
        keys = [of_requests[c.request][c.sample] for c, _ in whole]
        return {key: self._branch(fresh[key], key.number, c, cost) for key, (c, cost) in zip(keys, whole, strict=True)}

    def _request(self, trace: SampledTrace, boundary: int, keys: Sequence[BranchKey]) -> Request:
        seeds = [self.fork.seed(key) for key in keys]
        prompt, family = self.fork.prompt(trace, boundary), trace.group.problem.id
        return Request(prompt, seeds, self._settings, top=self.likely_tokens, family=family)

    @property
    def _settings(self) -> SamplingSettings:
        settings = self.fork.settings
        if self.closing is None:
            return settings
        stops = {*settings.stop_token_ids, *self.closing.brace_ids}
        return msgspec.structs.replace(settings, stop_token_ids=tuple(sorted(stops)))

    async def _continue_branch(self, asked: Request, drawn: "Completion") -> "tuple[Completion, ScoringCost]":
        """Continue a branch that stopped at a brace inside its box; returns the whole branch, and the further prompts'
        cost.
        """
        cost = ScoringCost()
        while (left := self.fork.settings.max_tokens - len(drawn.token_ids)) > 0 and self._is_inside_box(drawn):
            settings = msgspec.structs.replace(self._settings, max_tokens=left)
            seed = drawn.seed + len(drawn.token_ids)
            so_far = [*asked.prompt_ids, *drawn.token_ids]
            request = msgspec.structs.replace(asked, prompt_ids=so_far, seeds=[seed], settings=settings)
            async for more in self.fork.generator.stream([request]):
                drawn = _join_completions(drawn, more)
                cost += ScoringCost(0, more.prompt_tokens, more.cached_tokens or 0)
        return drawn, cost

    def _is_inside_box(self, drawn: "Completion") -> bool:
        return (
            self.closing is not None
            and drawn.token_ids[-1] in self.closing.brace_ids
            and not self.closing.is_closed(drawn.token_ids)
        )

    def _branch(self, boundary: int, number: int, drawn: "Completion", follow_up: ScoringCost) -> SampledBranch:
        of_answer = self.closing is not None and drawn.token_ids[-1] in self.closing.brace_ids
        ended = drawn.finish_reason is FinishReason.STOP and not of_answer
        text = self.fork.answer_start + self.fork.tokens.text(drawn.token_ids[:-1] if ended else drawn.token_ids)
        looks = tuple(self._look(drawn, step) for step in range(len(drawn.tops))) if self.closing else ()
        whole = replace(drawn, tops=[])  # the looks are made of them: a branch waits for its grader without them
        return SampledBranch(boundary, number, text, whole, looks=looks, follow_up=follow_up)

    def _look(self, drawn: "Completion", step: int) -> CandidateLook:
        """Answers that one of a branch's tokens could have led to."""
        pieces = self.fork.tokens.pieces(drawn.token_ids[:step])
        before = b"".join(pieces)
        left_open: dict[str, float] = defaultdict(float)
        closed: dict[str, float] = defaultdict(float)
        taken = None
        for token, logprob in drawn.tops[step].items():
            text = before + self.fork.tokens.pieces([token])[0]
            end = box_end(text)
            if math.exp(logprob) >= self.least_probability and (end is not None or self._could_end(token, text)):
                answer = text[:end].decode(errors="replace")
                (left_open if end is None else closed)[answer] += math.exp(logprob)
                taken = (answer, end is not None) if token == drawn.token_ids[step] else taken
        return CandidateLook(step, dict(left_open), dict(closed), taken)

    def _could_end(self, token: int, text: bytes) -> bool:
        """Whether an answer of this text could be complete; a token that ends the text closes no box."""
        return token not in self.fork.settings.stop_token_ids and could_end(text)


def look_ahead_of(branch: SampledBranch, rewards: Mapping[str, float], trust: Trust) -> float:
    """What looking ahead adds to a branch's reward, see :func:`mrt_hpc.mrt.values.look_ahead`.

    Args:
        rewards: of all candidates' answers.
        trust: in candidates that may still become something else.
    """
    return look_ahead([_step(look, rewards, trust.share_at(look.step)) for look in branch.looks])


def _step(look: CandidateLook, rewards: Mapping[str, float], trust: float) -> BranchStep:
    candidates = [(p, trust * rewards[a]) for a, p in look.open.items()]
    candidates += [(p, rewards[a]) for a, p in look.closed.items()]
    return BranchStep(
        np.array([p for p, _ in candidates]), np.array([forecast for _, forecast in candidates]), look.index_of_taken
    )


def _join_completions(first: "Completion", more: "Completion") -> "Completion":
    """A branch with its later tokens; the prompt is the first part's."""
    drawn = len(first.token_ids)
    spans = [[drawn, more.weights_version], *([drawn + start, version] for start, version in more.later_weights)]
    newest = first.later_weights[-1][1] if first.later_weights else first.weights_version
    return replace(
        first,
        later_weights=first.later_weights + [span for span in spans if span[1] != newest],
        token_ids=first.token_ids + more.token_ids,
        logprobs=first.logprobs + more.logprobs,
        tops=first.tops + more.tops,
        finish_reason=more.finish_reason,
    )


def openness(look: CandidateLook) -> float:
    """How open an answer is before its first token: sqrt(1 - sum p^2) over likely tokens."""
    return math.sqrt(max(0.0, 1.0 - sum(p * p for p in (*look.open.values(), *look.closed.values()))))
