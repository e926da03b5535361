"""Rollouts and their branches: the sampling of groups, from prompts to traces with the data that their values need.

Each trace is cut into episodes as soon as it is finished, and the prover is asked at once, while the server still
caches the prefix.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from mrt_hpc.inference.protocol import Request
from mrt_hpc.inference.tokens import BOX_OPENS, TokenBytes, thought_and_answer
from mrt_hpc.inference.traces import PromptedGroup, SampledTrace, Start, Valuation
from mrt_hpc.mrt.episodes import credit_bounds, cut_episodes
from mrt_hpc.recipe.sections import Episodes
from mrt_hpc.run.records import FinishReason
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:  # a light installation checks recipes, and has no client
    from mrt_hpc.inference.client import Completion


class Generator(Protocol):
    """A `GenerationClient`, or in tests an object that needs no server."""

    def stream(self, requests: Sequence[Request]) -> "AsyncIterator[Completion]":
        """The samples of all requests, each as soon as it is finished."""


class Valuer(Protocol):
    async def value(self, trace: SampledTrace) -> Valuation:
        """The data for the values of its boundaries."""


class TraceSampler(Protocol):
    """Samples the traces of one sample by several requests, see :mod:`mrt_hpc.modes.base`."""

    def traces(self, group: PromptedGroup, sample: int) -> AsyncIterator[SampledTrace]:
        """Each trace as soon as it is finished; the last one is the sample's result."""


@dataclass(frozen=True)
class RolloutPlan:
    run_seed: int
    iteration: int
    group_size: int
    """n, the rollouts of a group."""
    first_sample: int = 0
    """Number of the first rollout of a group, above 0 after earlier sessions."""
    thought_end: bytes = b"</think>"
    """Empty for a model without tags."""
    rule: Episodes = field(default_factory=Episodes)

    def rollout_seed(self, problem_id: str, sample: int) -> int:
        return self.seed("rollout", problem_id, sample)

    def seed(self, what: str, problem_id: str, sample: int, *place: int) -> int:
        """The seed of one request of a trace, by its kind and place within the trace."""
        return derive_seed(self.run_seed, what, self.iteration, problem_id, sample, *place)


@dataclass(frozen=True)
class TraceCutter:
    """Cuts a sample into thought, answer, and boundaries of episodes."""

    tokens: TokenBytes
    plan: RolloutPlan

    def cut(self, group: PromptedGroup, start: Start, sample: int, completion: "Completion") -> SampledTrace:
        stopped = completion.finish_reason is FinishReason.STOP
        pieces = self.tokens.pieces(completion.token_ids[:-1] if stopped else completion.token_ids)
        whole = start.prefix + b"".join(pieces)
        _, answer = thought_and_answer(whole, self.plan.thought_end)
        thinking = tokens_within(pieces, len(thought_and_answer(b"".join(pieces), self.plan.thought_end)[0]))
        boundaries = [0] if start.forced else cut_episodes(pieces[:thinking], self.plan.rule)
        if start.forced and not self.plan.thought_end:  # a box in the prefix is not the answer
            answer = start.answer_start.encode() + b"".join(pieces)
        return SampledTrace(
            iteration=self.plan.iteration,
            group=group,
            start=start,
            sample=sample,
            text=whole.decode(errors="replace"),
            answer_text=(whole if answer is None else answer).decode(errors="replace"),
            boundaries=boundaries,
            completion=completion,
            credit_bounds=[] if start.forced else self._credit_bounds(completion, boundaries),
        )

    def _credit_bounds(self, completion: "Completion", boundaries: list[int]) -> list[int]:
        pieces = self.tokens.pieces(completion.token_ids)
        return credit_bounds(pieces, boundaries, self.plan.rule.markers, self.plan.thought_end or BOX_OPENS)


@dataclass(frozen=True)
class _PartOfGroup:
    group: PromptedGroup
    samples: range
    """The numbers of its traces within the group; they are sent together."""

    @property
    def starts(self) -> list[tuple[int, range]]:
        starts = []
        for number, start in enumerate(self.group.starts):
            first = self.group.samples_before(number)
            here = range(max(first, self.samples.start), min(first + start.samples, self.samples.stop))
            if here:
                starts.append((number, here))
        return starts


@dataclass
class RolloutSampler:
    generator: Generator
    tokens: TokenBytes
    plan: RolloutPlan
    valuer: Valuer | None = None
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(256))
    """One place for each trace at a time: enough to fill the server, and no more than its cache can hold for the
    branches. Several samplers may share the room.
    """
    tracer: TraceSampler | None = None
    """None asks for all traces of a group together."""

    async def sample(self, groups: Iterable[PromptedGroup]) -> AsyncGenerator[SampledTrace, None]:
        """Every trace of every group, as soon as its prover requests are finished. The next group is taken only when
        one of its traces has room.
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
                async for part in self._admit_groups(groups):
                    tasks.create_task(self._sample_part(part, tasks, done))
                    await asyncio.sleep(0)  # lets it send its requests before the next group is claimed
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures  # the first failure cancelled all others

    async def _admit_groups(self, groups: Iterable[PromptedGroup]) -> AsyncIterator[_PartOfGroup]:
        """The groups in parts, each as large as the room that it then takes."""
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
        """One request for each start; each trace is processed independently."""
        if self.tracer is not None:
            for sample in part.samples:
                traces = self.tracer.traces(part.group, self._number(sample))
                tasks.create_task(self._trace(traces, tasks, done))
            return
        starts = part.starts
        requests = []
        for number, samples in starts:
            start, problem = part.group.starts[number], part.group.problem.id
            seeds = [self.plan.rollout_seed(problem, self._number(sample)) for sample in samples]
            requests.append(Request(start.context_ids, seeds, start.settings, family=problem))
        async for completion in self.generator.stream(requests):
            self.room.release()
            number, samples = starts[completion.request]
            start, sample = part.group.starts[number], self._number(samples[completion.sample])
            trace = TraceCutter(self.tokens, self.plan).cut(part.group, start, sample, completion)
            tasks.create_task(self._value(trace, done))

    async def _trace(
        self, traces: AsyncIterator[SampledTrace], tasks: asyncio.TaskGroup, done: asyncio.Queue[SampledTrace | None]
    ) -> None:
        """The prover is asked about each trace while the next one is sampled."""
        async for trace in traces:
            tasks.create_task(self._value(trace, done))
        self.room.release()

    def _number(self, sample: int) -> int:
        """The number among all samples of its problem, earlier sessions included."""
        return self.plan.first_sample + sample

    async def _value(self, trace: SampledTrace, done: asyncio.Queue[SampledTrace | None]) -> None:
        asked = self.valuer if trace.counts else None  # regret is made of the results of samples
        done.put_nowait(trace if asked is None else replace(trace, valuation=await asked.value(trace)))


def tokens_within(pieces: Sequence[bytes], length: int) -> int:
    """Tokens that lie wholly within the first ``length`` bytes."""
    return sum(1 for end in accumulate(map(len, pieces)) if end <= length)


def tokens_reaching(pieces: Sequence[bytes], length: int) -> int:
    """Tokens that hold the first ``length`` bytes, which exist."""
    return bisect_left([0, *accumulate(map(len, pieces))], length)
