"""Rollouts and their branches: the sampling of one unit of work, from problems to traces with values to be graded.

Each trace is cut into episodes the moment it is finished, and the prover's branches from all its boundaries are asked
for at once, while the prefix is still in the server's cache; other traces go on meanwhile. Left out: grading, and the
writing of shards.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from mrt_hpc.inference.wire import Request, Settings
from mrt_hpc.mrt.episodes import EpisodeRule, cut_episodes
from mrt_hpc.run.records import Branch, FinishReason, Problem, Rollout
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from mrt_hpc.inference.client import Completion
    from mrt_hpc.inference.tokens import TokenBytes


class Generator(Protocol):
    """What samples: a `GenerationClient`, or in tests something that needs no server."""

    def stream(self, requests: Sequence[Request]) -> AsyncIterator[Completion]:
        """Samples of all requests, each as soon as it is finished."""


@dataclass(frozen=True)
class Prover:
    """mu: stop the thought at a boundary, write this, and sample an answer."""

    forced_ids: list[int]
    """Tokens that close the thought and start the answer."""
    answer_start: str
    """What of them belongs to the answer: it precedes a branch's text."""
    branches: int
    """G, at each boundary."""
    settings: Settings


@dataclass(frozen=True)
class RolloutPlan:
    """How the rollouts of one iteration are sampled."""

    run_seed: int
    iteration: int
    group_size: int
    """n, rollouts a problem."""
    settings: Settings
    thought_end: bytes = b"</think>"
    rule: EpisodeRule = field(default_factory=EpisodeRule)
    prover: Prover | None = None
    """None asks for no branches."""

    def rollout_seed(self, problem_id: str, sample: int) -> int:
        """Seed of one trace."""
        return derive_seed(self.run_seed, "rollout", self.iteration, problem_id, sample)

    def branch_seed(self, problem_id: str, sample: int, boundary: int, branch: int) -> int:
        """Seed of one branch."""
        return derive_seed(self.run_seed, "branch", self.iteration, problem_id, sample, boundary, branch)


@dataclass(frozen=True)
class PromptedProblem:
    """A problem with its prompt."""

    problem: Problem
    prompt_ids: list[int]


@dataclass(frozen=True)
class SampledBranch:
    """A branch before it is graded."""

    iteration: int
    problem_id: str
    sample: int
    boundary: int
    branch: int
    text: str
    completion: Completion

    def graded(self, answer: str | None, reward: float) -> Branch:
        """The record, with what the grader found."""
        c = self.completion
        return Branch(
            iteration=self.iteration,
            problem_id=self.problem_id,
            sample=self.sample,
            boundary=self.boundary,
            branch=self.branch,
            seed=c.seed,
            weights_version=c.weights_version,
            token_ids=c.token_ids,
            logprobs=c.logprobs,
            finish_reason=c.finish_reason,
            text=self.text,
            answer=answer,
            reward=reward,
            prompt_tokens=c.prompt_tokens,
            cached_tokens=c.cached_tokens,
        )


@dataclass(frozen=True)
class SampledTrace:
    """A trace with its episodes and branches, before it is graded."""

    iteration: int
    prompted: PromptedProblem
    sample: int
    text: str
    """The whole of it, without the stop token."""
    answer_text: str
    """What follows the thought; the whole where no thought was closed."""
    boundaries: list[int]
    completion: Completion
    branches: list[SampledBranch] = field(default_factory=list)

    def graded(self, answer: str | None, reward: float) -> Rollout:
        """The record, with what the grader found."""
        c = self.completion
        return Rollout(
            iteration=self.iteration,
            problem_id=self.prompted.problem.id,
            sample=self.sample,
            seed=c.seed,
            weights_version=c.weights_version,
            prompt_ids=self.prompted.prompt_ids,
            token_ids=c.token_ids,
            logprobs=c.logprobs,
            finish_reason=c.finish_reason,
            text=self.text,
            answer=answer,
            reward=reward,
            boundaries=self.boundaries,
            started=c.started,
            seconds=c.seconds,
        )


@dataclass
class RolloutSampler:
    """Samples units of work through one generator."""

    generator: Generator
    tokens: TokenBytes
    plan: RolloutPlan
    concurrency: int = 256
    """Traces under way at once: enough to fill the server, no more than it can hold, so that branches find their
    prefix in its cache."""

    async def sample(self, problems: Iterable[PromptedProblem]) -> AsyncIterator[SampledTrace]:
        """Every trace of every problem, each as soon as its branches are finished, in no particular order.

        Args:
            problems: asked for the next one only when there is room for its whole group.

        Raises:
            UserError: the server refused a request, or stayed unreachable.
        """
        done: asyncio.Queue[SampledTrace | None] = asyncio.Queue()
        work = asyncio.create_task(self._sample_all(problems, done))
        work.add_done_callback(lambda _: done.put_nowait(None))
        try:
            while (trace := await done.get()) is not None:
                yield trace
            await work
        finally:
            work.cancel()

    async def _sample_all(self, problems: Iterable[PromptedProblem], done: asyncio.Queue[SampledTrace | None]) -> None:
        room = asyncio.Semaphore(max(self.concurrency, self.plan.group_size))
        try:
            async with asyncio.TaskGroup() as tasks:
                waiting = iter(problems)
                while await self._has_room(room) and (prompted := next(waiting, None)) is not None:
                    tasks.create_task(self._sample_group(prompted, room, tasks, done))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures  # the first failure cancelled all else

    async def _has_room(self, room: asyncio.Semaphore) -> bool:
        """Wait for room for a whole group, and take it."""
        for _ in range(self.plan.group_size):
            await room.acquire()
        return True

    async def _sample_group(
        self,
        prompted: PromptedProblem,
        room: asyncio.Semaphore,
        tasks: asyncio.TaskGroup,
        done: asyncio.Queue[SampledTrace | None],
    ) -> None:
        """One request for the group; each of its traces goes on by itself."""
        seeds = [self.plan.rollout_seed(prompted.problem.id, s) for s in range(self.plan.group_size)]
        async for completion in self.generator.stream([Request(prompted.prompt_ids, seeds, self.plan.settings)]):
            room.release()
            trace = self._cut(prompted, completion)
            if self.plan.prover is None:
                done.put_nowait(trace)
            else:
                tasks.create_task(self._fork(trace, self.plan.prover, done))

    def _cut(self, prompted: PromptedProblem, completion: Completion) -> SampledTrace:
        """Find the end of the thought and the boundaries of its episodes."""
        stopped = completion.finish_reason is FinishReason.STOP
        pieces = self.tokens.pieces(completion.token_ids[:-1] if stopped else completion.token_ids)
        whole = b"".join(pieces)
        thought, end_mark, answer = whole.partition(self.plan.thought_end)
        boundaries = cut_episodes(pieces[: tokens_within(pieces, len(thought))], self.plan.rule)
        return SampledTrace(
            iteration=self.plan.iteration,
            prompted=prompted,
            sample=completion.sample,
            text=whole.decode(errors="replace"),
            answer_text=(answer if end_mark else whole).decode(errors="replace"),
            boundaries=boundaries,
            completion=completion,
        )

    async def _fork(self, trace: SampledTrace, prover: Prover, done: asyncio.Queue[SampledTrace | None]) -> None:
        """Branches from every boundary, in one request."""
        requests = [self._fork_request(trace, prover, j) for j in range(len(trace.boundaries))]
        async for completion in self.generator.stream(requests):
            trace.branches.append(self._branch(trace, prover, completion))
        trace.branches.sort(key=lambda b: (b.boundary, b.branch))
        done.put_nowait(trace)

    def _fork_request(self, trace: SampledTrace, prover: Prover, boundary: int) -> Request:
        prefix = trace.completion.token_ids[: trace.boundaries[boundary]]
        problem_id = trace.prompted.problem.id
        seeds = [self.plan.branch_seed(problem_id, trace.sample, boundary, g) for g in range(prover.branches)]
        return Request([*trace.prompted.prompt_ids, *prefix, *prover.forced_ids], seeds, prover.settings)

    def _branch(self, trace: SampledTrace, prover: Prover, completion: Completion) -> SampledBranch:
        stopped = completion.finish_reason is FinishReason.STOP
        ids = completion.token_ids[:-1] if stopped else completion.token_ids
        return SampledBranch(
            iteration=self.plan.iteration,
            problem_id=trace.prompted.problem.id,
            sample=trace.sample,
            boundary=completion.request,
            branch=completion.sample,
            text=prover.answer_start + self.tokens.text(ids),
            completion=completion,
        )


def tokens_within(pieces: Sequence[bytes], length: int) -> int:
    """How many tokens lie wholly within the first ``length`` bytes; one that runs across the end lies outside."""
    return sum(1 for end in accumulate(map(len, pieces)) if end <= length)
