"""Rollouts and their branches: the sampling of groups, from prompts to traces with all that their values need.

Each trace is cut into episodes the moment it is finished, and the prover is asked about its boundaries at once, while
the prefix is still in the server's cache; other traces go on meanwhile. Left out: what the prover asks
(:mod:`mrt_hpc.inference.provers`), grading, and the writing of shards.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from mrt_hpc.inference.traces import SampledTrace, Valuation
from mrt_hpc.inference.wire import Request
from mrt_hpc.mrt.episodes import EpisodeRule, cut_episodes
from mrt_hpc.run.records import FinishReason
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from mrt_hpc.inference.client import Completion
    from mrt_hpc.inference.tokens import TokenBytes
    from mrt_hpc.inference.traces import PromptedGroup


class Generator(Protocol):
    """What samples: a `GenerationClient`, or in tests something that needs no server."""

    def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        """Samples of all requests, each as soon as it is finished."""


class Valuer(Protocol):
    """Asks the prover about a trace, see :mod:`mrt_hpc.inference.provers`."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """All that is needed to estimate the values of its boundaries."""


@dataclass(frozen=True)
class RolloutPlan:
    """How the rollouts of one iteration are sampled and cut."""

    run_seed: int
    iteration: int
    group_size: int
    """n, rollouts of a group."""
    thought_end: bytes = b"</think>"
    rule: EpisodeRule = field(default_factory=EpisodeRule)

    def rollout_seed(self, problem_id: str, sample: int) -> int:
        """Seed of one trace."""
        return derive_seed(self.run_seed, "rollout", self.iteration, problem_id, sample)


@dataclass(frozen=True)
class ValuedTrace:
    """A trace, and what was asked of the prover about it."""

    trace: SampledTrace
    valuation: Valuation


@dataclass
class RolloutSampler:
    """Samples groups through one generator."""

    generator: Generator
    tokens: TokenBytes
    plan: RolloutPlan
    valuer: Valuer | None = None
    """None asks for no values."""
    concurrency: int = 256
    """Traces being sampled at once: enough to fill the server and no more than it can hold, so that the branches find
    their prefix in its cache."""

    async def sample(self, groups: Iterable[PromptedGroup]) -> AsyncIterator[ValuedTrace]:
        """Every trace of every group, each as soon as the prover is through with it, in no particular order.

        Args:
            groups: asked for the next one only when there is room for it whole.

        Raises:
            UserError: the server refused a request, or stayed unreachable.
        """
        done: asyncio.Queue[ValuedTrace | None] = asyncio.Queue()
        work = asyncio.create_task(self._sample_all(groups, done))
        work.add_done_callback(lambda _: done.put_nowait(None))
        try:
            while (trace := await done.get()) is not None:
                yield trace
            await work
        finally:
            work.cancel()

    async def _sample_all(self, groups: Iterable[PromptedGroup], done: asyncio.Queue[ValuedTrace | None]) -> None:
        room = asyncio.Semaphore(max(self.concurrency, self.plan.group_size))
        try:
            async with asyncio.TaskGroup() as tasks:
                waiting = iter(groups)
                while await self._has_room(room) and (group := next(waiting, None)) is not None:
                    tasks.create_task(self._sample_group(group, room, tasks, done))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures  # the first failure cancelled all else

    async def _has_room(self, room: asyncio.Semaphore) -> bool:
        """Wait for room for a whole group, and take it."""
        for _ in range(self.plan.group_size):
            await room.acquire()
        return True

    async def _sample_group(
        self,
        group: PromptedGroup,
        room: asyncio.Semaphore,
        tasks: asyncio.TaskGroup,
        done: asyncio.Queue[ValuedTrace | None],
    ) -> None:
        """One request for each start of the group; each of its traces goes on by itself."""
        async for completion in self.generator.stream(self._requests(group)):
            room.release()
            tasks.create_task(self._value(self._cut(group, completion), done))

    def _requests(self, group: PromptedGroup) -> list[Request]:
        requests = []
        for number, start in enumerate(group.starts):
            first = group.samples_before(number)
            samples = range(first, first + start.samples)
            seeds = [self.plan.rollout_seed(group.problem.id, s) for s in samples]
            requests.append(Request(start.context_ids, seeds, start.settings))
        return requests

    def _cut(self, group: PromptedGroup, completion: Completion) -> SampledTrace:
        """Find the end of the thought and the boundaries of its episodes."""
        start = group.starts[completion.request]
        stopped = completion.finish_reason is FinishReason.STOP
        pieces = self.tokens.pieces(completion.token_ids[:-1] if stopped else completion.token_ids)
        whole = start.prefix + b"".join(pieces)
        _, ended, answer = whole.partition(self.plan.thought_end)
        return SampledTrace(
            iteration=self.plan.iteration,
            group=group,
            start=start,
            sample=group.samples_before(completion.request) + completion.sample,
            text=whole.decode(errors="replace"),
            answer_text=(answer if ended else whole).decode(errors="replace"),
            boundaries=[0] if start.forced else self._boundaries(pieces),
            completion=completion,
        )

    def _boundaries(self, pieces: Sequence[bytes]) -> list[int]:
        thought = b"".join(pieces).partition(self.plan.thought_end)[0]
        return cut_episodes(pieces[: tokens_within(pieces, len(thought))], self.plan.rule)

    async def _value(self, trace: SampledTrace, done: asyncio.Queue[ValuedTrace | None]) -> None:
        valuation = Valuation() if self.valuer is None else await self.valuer.value(trace)
        done.put_nowait(ValuedTrace(trace, valuation))


def tokens_within(pieces: Sequence[bytes], length: int) -> int:
    """How many tokens lie wholly within the first ``length`` bytes; one that runs across the end lies outside."""
    return sum(1 for end in accumulate(map(len, pieces)) if end <= length)
