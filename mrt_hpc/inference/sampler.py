"""Rollouts and their branches: the sampling of groups, from prompts to traces with the data that their values need.

Each trace is cut into episodes as soon as it is finished, and the prover is asked about its boundaries at once, while
the prefix is still in the server's cache; other traces continue meanwhile. This module leaves out what the prover asks
(:mod:`mrt_hpc.provers.branches`), grading, and the writing of shards.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from mrt_hpc.inference.protocol import Request
from mrt_hpc.inference.tokens import TokenBytes, thought_and_answer
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start, Valuation
from mrt_hpc.mrt.episodes import cut_episodes
from mrt_hpc.recipe.sections import Episodes
from mrt_hpc.run.records import FinishReason
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:  # a light installation checks recipes, and has no client
    from mrt_hpc.inference.client import Completion


class Generator(Protocol):
    """The source of samples: a `GenerationClient`, or in tests an object that needs no server."""

    def stream(self, requests: Sequence[Request]) -> "AsyncIterator[Completion]":
        """Yield the samples of all requests, each as soon as it is finished."""


class Valuer(Protocol):
    """A component that asks the prover about a trace, see :mod:`mrt_hpc.provers.prover_session`."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """Return the data from which the values of its boundaries are estimated."""


class TraceSampler(Protocol):
    """Samples the traces of one sample by several requests, see :mod:`mrt_hpc.modes.base`."""

    def traces(self, group: PromptedGroup, sample: int) -> AsyncIterator[SampledTrace]:
        """Yield the traces of one sample of a group, each as soon as it is finished; the last one is its result."""


@dataclass(frozen=True)
class RolloutPlan:
    """How the rollouts of one iteration are sampled and cut."""

    run_seed: int
    iteration: int
    group_size: int
    """n, the number of rollouts of a group."""
    first_sample: int = 0
    """The number of the first rollout of a group: more than 0 where earlier ones were sampled before."""
    thought_end: bytes = b"</think>"
    """The closing tag; empty for a model that writes none."""
    rule: Episodes = field(default_factory=Episodes)

    def rollout_seed(self, problem_id: str, sample: int) -> int:
        """Return the seed of one trace."""
        return self.seed("rollout", problem_id, sample)

    def seed(self, what: str, problem_id: str, sample: int, *place: int) -> int:
        """Return the seed of one request of a trace: what it samples, and its place within the trace."""
        return derive_seed(self.run_seed, what, self.iteration, problem_id, sample, *place)


@dataclass(frozen=True)
class TraceCutter:
    """Cuts what was sampled into a trace: its thought, its answer, and the boundaries of its episodes."""

    tokens: TokenBytes
    plan: RolloutPlan

    def cut(self, group: PromptedGroup, start: Start, sample: int, completion: "Completion") -> SampledTrace:
        """Find the end of the thought and the boundaries of its episodes."""
        stopped = completion.finish_reason is FinishReason.STOP
        pieces = self.tokens.pieces(completion.token_ids[:-1] if stopped else completion.token_ids)
        whole = start.prefix + b"".join(pieces)
        _, answer = thought_and_answer(whole, self.plan.thought_end)
        if start.forced and not self.plan.thought_end:  # a box in the prefix is not the answer
            answer = start.answer_start.encode() + b"".join(pieces)
        return SampledTrace(
            iteration=self.plan.iteration,
            group=group,
            start=start,
            sample=sample,
            text=whole.decode(errors="replace"),
            answer_text=(whole if answer is None else answer).decode(errors="replace"),
            boundaries=[0] if start.forced else self._boundaries(pieces),
            completion=completion,
        )

    def _boundaries(self, pieces: Sequence[bytes]) -> list[int]:
        thought, _ = thought_and_answer(b"".join(pieces), self.plan.thought_end)
        return cut_episodes(pieces[: tokens_within(pieces, len(thought))], self.plan.rule)


@dataclass(frozen=True)
class _PartOfGroup:
    """Traces of a group that are sent to the server together."""

    group: PromptedGroup
    samples: range
    """The numbers of these traces within the group."""

    @property
    def starts(self) -> list[tuple[int, range]]:
        """Return the starts that have traces in this part, by number, each with its samples in this part."""
        starts = []
        for number, start in enumerate(self.group.starts):
            first = self.group.samples_before(number)
            here = range(max(first, self.samples.start), min(first + start.samples, self.samples.stop))
            if here:
                starts.append((number, here))
        return starts


@dataclass
class RolloutSampler:
    """Samples groups through one generator."""

    generator: Generator
    tokens: TokenBytes
    plan: RolloutPlan
    valuer: Valuer | None = None
    """The valuer; with None the sampler computes no values."""
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(256))
    """One place for each trace that is sampled at a time: enough to fill the server and no more than it can hold, so
    that the branches find their prefix in its cache. A group may begin with a part of its traces: its remaining traces
    follow as other traces end. Several samplers may share the room.
    """
    tracer: TraceSampler | None = None
    """Samples each trace by requests of its own; None samples it in one request, together with others of its group."""

    async def sample(self, groups: Iterable[PromptedGroup]) -> AsyncGenerator[SampledTrace, None]:
        """Yield every trace of every group, each as soon as its prover requests are finished, in no particular order.

        Args:
            groups: the next group is taken only when there is room for a trace of it.

        Raises:
            UserError: the server refused a request, or remained unreachable.
        """
        done: asyncio.Queue[SampledTrace | None] = asyncio.Queue()
        work = asyncio.create_task(self._sample_all(groups, done))
        work.add_done_callback(lambda _: done.put_nowait(None))
        try:
            while (trace := await done.get()) is not None:
                yield trace
            await work
        finally:
            work.cancel()
            await asyncio.wait([work])  # waits until all tasks that it has started have ended

    async def _sample_all(self, groups: Iterable[PromptedGroup], done: asyncio.Queue[SampledTrace | None]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                async for part in self._admitted(groups):
                    tasks.create_task(self._sample_part(part, tasks, done))
                    await asyncio.sleep(0)  # lets it send its requests before the next group is claimed
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures  # the first failure cancelled all others

    async def _admitted(self, groups: Iterable[PromptedGroup]) -> AsyncIterator[_PartOfGroup]:
        """Yield the groups in parts, each as large as the room at that time, which it takes."""
        waiting, room = iter(groups), self.room
        await room.acquire()  # a request for a group claims it, so there must be room first
        while (group := next(waiting, None)) is not None:
            first, count = 0, group.samples_before(len(group.starts))
            while first < count:
                taken = 1
                while first + taken < count and not room.locked():
                    await room.acquire()
                    taken += 1
                yield _PartOfGroup(group, range(first, first + taken))
                first += taken
                await room.acquire()
        room.release()

    async def _sample_part(
        self, part: _PartOfGroup, tasks: asyncio.TaskGroup, done: asyncio.Queue[SampledTrace | None]
    ) -> None:
        """Send one request for each start of the part, and process each of its traces independently."""
        if self.tracer is not None:
            for sample in part.samples:
                traces = self.tracer.traces(part.group, self._number(sample))
                tasks.create_task(self._trace(traces, tasks, done))
            return
        starts = part.starts
        requests = [self._request(part.group, number, samples) for number, samples in starts]
        async for completion in self.generator.stream(requests):
            self.room.release()
            number, samples = starts[completion.request]
            start, sample = part.group.starts[number], self._number(samples[completion.sample])
            trace = self._cutter.cut(part.group, start, sample, completion)
            tasks.create_task(self._value(trace, done))

    async def _trace(
        self, traces: AsyncIterator[SampledTrace], tasks: asyncio.TaskGroup, done: asyncio.Queue[SampledTrace | None]
    ) -> None:
        """Sample the traces of one sample; the prover is asked about each while the next one is sampled."""
        async for trace in traces:
            tasks.create_task(self._value(trace, done))
        self.room.release()

    @property
    def _cutter(self) -> TraceCutter:
        return TraceCutter(self.tokens, self.plan)

    def _number(self, sample: int) -> int:
        """The number of a trace among all samples of its problem, those of earlier sessions included."""
        return self.plan.first_sample + sample

    def _request(self, group: PromptedGroup, number: int, samples: range) -> Request:
        start = group.starts[number]
        seeds = [self.plan.rollout_seed(group.problem.id, self._number(sample)) for sample in samples]
        return Request(start.context_ids, seeds, start.settings, family=group.problem.id)

    async def _value(self, trace: SampledTrace, done: asyncio.Queue[SampledTrace | None]) -> None:
        asked = self.valuer if trace.counts else None  # regret is made of the results of samples
        done.put_nowait(trace if asked is None else replace(trace, valuation=await asked.value(trace)))


def tokens_within(pieces: Sequence[bytes], length: int) -> int:
    """Return the number of tokens that lie wholly within the first ``length`` bytes."""
    return sum(1 for end in accumulate(map(len, pieces)) if end <= length)


def tokens_reaching(pieces: Sequence[bytes], length: int) -> int:
    """Return the number of tokens that hold the first ``length`` bytes; there are so many bytes."""
    return bisect_left([0, *accumulate(map(len, pieces))], length)
