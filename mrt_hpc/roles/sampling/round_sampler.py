"""The sampling of one round: groups are claimed when there is room for them, sampled, graded and committed."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mrt_hpc.algorithms.base import algorithm_of
from mrt_hpc.inference.sampler import RolloutPlan
from mrt_hpc.mrt.episodes import EpisodeRule
from mrt_hpc.roles.sampling.collected import start_context
from mrt_hpc.roles.sampling.grading import graded_in_order, sampled_group
from mrt_hpc.roles.sampling.rounds import Place, groups_of
from mrt_hpc.roles.sampling.session import SamplingSession
from mrt_hpc.run.data import draw_problems
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.layout import is_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mrt_hpc.algorithms.starts import Starts
    from mrt_hpc.domains.pool import GraderPool
    from mrt_hpc.inference.sampler import Generator
    from mrt_hpc.inference.traces import PromptedGroup
    from mrt_hpc.provers.prover_session import ProverFactory, ProverModel, ProverSession
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.roles.sampling.grading import GradedTrace
    from mrt_hpc.roles.sampling.rounds import Round
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.groups import Sampled
    from mrt_hpc.run.records import GroupStatistics, Problem, Rollout
    from mrt_hpc.run.weights import Weights

log = logging.getLogger(__name__)

SHOWN = 400
"""The number of characters that the log shows of the beginning of a trace, and of its end."""


@dataclass(frozen=True)
class RoundSampler:
    """Samples rounds through the same clients. Rounds that are sampled at the same time share the room."""

    task: Task
    policy: ProverModel
    prover_maker: ProverFactory | None
    problems: list[Problem]
    """All training problems."""
    pool: GraderPool
    client: Generator
    """Of the servers that serve the policy."""
    mu: Generator
    """Of the servers that serve the prover."""
    held: Callable[[], Weights]
    """The weights that the policy's server holds at this moment."""
    room: asyncio.Semaphore
    """One place for each trace that may be sampled at a time."""
    sampling: set[Place]
    """The groups that have been claimed, and are not committed yet."""

    async def sample(self, work: Round, loading_s: float = 0.0, all_claimed: asyncio.Event | None = None) -> None:
        """Sample, grade and commit the groups of a round; finished groups are graded and committed while others are
        sampled.

        Args:
            work: the round.
            loading_s: the seconds that the loading of the weights took before it.
            all_claimed: is set when the last group of the round has a place.
        """
        clock = RoundClock(waiting=work.waited_s, loading=loading_s)
        context = start_context(self.task, self.policy.prompter, self.policy.tokens, self.problems, work.iteration)
        starts = algorithm_of(self.task.recipe).starts(context)
        plan = rollout_plan(self.task.recipe, work.iteration, starts.group_size)
        prover = self._prover_session(work.iteration)
        session = SamplingSession(self.client, self.policy.tokens, self.pool, plan, prover, self.room)
        finish = GroupFinisher(self.task, work, clock, self.sampling)
        await session.sample(self._claimed(work, starts, finish, all_claimed or asyncio.Event()), finish.commit)
        log.info("iteration %d: %d groups in %.1f s", work.iteration, len(finish.claims), clock.now)

    def _prover_session(self, iteration: int) -> ProverSession | None:
        """What asks the prover about the traces of an iteration; None where no boundary is asked about."""
        boundaries = algorithm_of(self.task.recipe).boundaries(iteration)
        if self.prover_maker is None or boundaries is None:
            return None
        return self.prover_maker.session(self.mu, boundaries)

    def _claimed(
        self, work: Round, starts: Starts, finish: GroupFinisher, all_claimed: asyncio.Event
    ) -> Iterator[PromptedGroup]:
        """The groups of the round; the task claims each at the moment when the sampler has room for it."""
        drawn = self._drawn(work.iteration)
        for position in work.positions:
            if self.task.retrying(partial(work.leases.claim, position), "a lease"):
                finish.claims[drawn[position].id] = Claim(position, self.held())
                self.sampling.add(Place(work.iteration, position))
                yield starts.group(drawn[position])
        all_claimed.set()

    def _drawn(self, iteration: int) -> list[Problem]:
        """The problems of an iteration, by position."""
        if is_collection(iteration):
            return self.problems
        count = groups_of(self.task.recipe, iteration, len(self.problems))
        return draw_problems(self.problems, self.task.recipe.seed, iteration, count)


def rollout_plan(recipe: Recipe, iteration: int, group_size: int) -> RolloutPlan:
    """How the rollouts of an iteration are sampled and cut."""
    return RolloutPlan(
        run_seed=recipe.seed,
        iteration=iteration,
        group_size=group_size,
        thought_end=recipe.prompt.thought_end.encode(),
        rule=EpisodeRule(**recipe.episodes.model_dump()),
    )


@dataclass(frozen=True)
class Claim:
    """A group that this task samples."""

    position: int
    weights: Weights
    """Those that the server held when the group was claimed, the oldest that may sample a token of it."""


@dataclass
class GroupFinisher:
    """Commits the groups of a round as they are graded."""

    task: Task
    work: Round
    clock: RoundClock
    sampling: set[Place]
    """See :class:`RoundSampler`."""
    claims: dict[str, Claim] = field(default_factory=dict)
    """By the id of the problem."""

    async def commit(self, group: list[asyncio.Task[GradedTrace]]) -> None:
        """Commit a group when it is graded, unless another task has committed it before."""
        generated = self.clock.now
        traces = await graded_in_order(group)
        seconds = {**self.clock.before, "generation": generated, "grading": self.clock.now - generated}
        claim = self.claims[traces[0].rollout.problem_id]
        sampled = await asyncio.to_thread(sampled_group, traces, seconds)
        won = await asyncio.to_thread(self._commit, claim, sampled)
        self.sampling.discard(Place(self.work.iteration, claim.position))
        self._tell(claim.position, traces, sampled.statistics, won)

    def _commit(self, claim: Claim, sampled: Sampled) -> bool:
        if self.task.layout.group_archive(self.work.iteration).exists():
            return False  # training has passed the iteration: the other tasks took this one for lost
        return self.task.retrying(
            lambda: commit_group(
                self.task.layout.group(self.work.iteration, claim.position),
                sampled,
                holder=self.work.leases.mine.as_json(),
                weights={"version": claim.weights.version, "digest": claim.weights.digest},
            ),
            f"group {claim.position} of iteration {self.work.iteration}",
        )

    def _tell(self, position: int, traces: list[GradedTrace], cost: GroupStatistics, won: bool) -> None:
        kind = EventKind.SHARD_COMMITTED if won else EventKind.SHARD_DISCARDED
        where = {"iteration": self.work.iteration, "position": position}
        tokens = {"rollout_tokens": cost.rollout_tokens, "branch_tokens": cost.branch_tokens}
        self.task.events.emit(kind, what="group", **where, rollouts=len(traces), **tokens)
        if position == 0 and self.work.iteration <= 0:
            log.info("%s", trace_in_words(traces[0].rollout))
        if troubles := sum(t.troubles for t in traces):
            self.task.events.emit(EventKind.GRADING, **where, troubles=troubles)


def trace_in_words(rollout: Rollout) -> str:
    """The text that the log shows of a trace: its beginning and end, escaped, and what was found in it."""
    text = rollout.text
    if len(text) > 2 * SHOWN:
        text = f"{text[:SHOWN]} [{len(text) - 2 * SHOWN:,} characters] {text[-SHOWN:]}"
    found = "no answer found" if rollout.answer is None else f"answer {rollout.answer!r}"
    return (
        f"a trace of problem {rollout.problem_id}: {len(rollout.token_ids)} tokens, ended by {rollout.finish_reason}, "
        f"{max(0, len(rollout.boundaries) - 1)} episodes, {found}, reward {rollout.reward:g}: {text!r}"
    )


class RoundClock:
    """The wall time of a round: of the steps before the sampling, and since the sampling began."""

    def __init__(self, **before: float) -> None:
        self.before = before
        self._start = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the sampling began."""
        return time.monotonic() - self._start
