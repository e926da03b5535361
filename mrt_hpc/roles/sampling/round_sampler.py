"""The rounds of an inference task: which groups it samples next, and how a round is sampled.

Groups are claimed when there is room for them, sampled, graded and committed. Rounds may overlap.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from mrt_hpc.algorithms.base import Starts, algorithm_of
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.inference.sampler import Generator, RolloutPlan, RolloutSampler
from mrt_hpc.inference.traces import PromptedGroup
from mrt_hpc.plan.jobs import Role
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel, ProverSession
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.roles.sampling.collected import start_context
from mrt_hpc.roles.sampling.grading import SamplingSession, graded_in_order
from mrt_hpc.roles.task.context import LONGEST_LOOK_S, Task, is_trained, positions_there
from mrt_hpc.roles.task.peers import PeerStatus
from mrt_hpc.run.archive import commit_sampled
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import Sampled, merged, refuse_other_samples
from mrt_hpc.run.layout import collecting_version, is_collection
from mrt_hpc.run.leases import Leases, group_leases
from mrt_hpc.run.problems import draw_problems
from mrt_hpc.run.records import Problem, Rollout
from mrt_hpc.run.weights import Weights, published_versions

log = logging.getLogger(__name__)


LOOK_WHILE_STARTING_S = 5.0
"""Seconds between two checks whether a server that is starting is still needed."""


class NotNeededError(Exception):
    """The segment ended before the server had started."""


class GroupPlace(NamedTuple):
    """Where a group belongs."""

    iteration: int
    position: int


@dataclass(frozen=True)
class Round:
    """Some groups of one iteration, for one task to sample."""

    iteration: int
    version: int
    """The weights version to begin with. Newer ones may be loaded during the round, where the server is not drained."""
    positions: list[int]
    """The groups that had no lease at the last look; the task claims each when there is room for it."""
    leases: Leases
    waited_s: float


@dataclass
class Rounds:
    """Finds the next round of work for a task."""

    task: Task
    problems: int
    """The number of all training problems."""
    rest: Callable[[], None] = lambda: None
    """Called while there is nothing to sample: leaves the GPUs to the trainer, where it shares them."""
    _began: float = field(default_factory=time.monotonic, init=False)
    _leases: dict[int, Leases] = field(default_factory=dict, init=False)
    """The leases of each iteration that is not trained on yet, with what is known of them."""

    def awaited(self) -> Round | None:
        """The next round, once there is one and this process has the turn on the task's GPUs; None when the segment
        needs no more rollouts.

        Raises:
            UserError: the trainer has failed, or does not run.
        """
        producers = self.task.peers(Role.INFERENCE if self._collects else Role.TRAINER)
        wait = self.task.peer_wait("weights or groups to work on", producers)
        wait.check()  # groups that will not be trained on need not be sampled
        weights = self.task.wait_for_peers(wait, self._look)
        return weights[0]

    @property
    def _collects(self) -> bool:
        """Whether this task collects the traces that training starts from: with one weights version, even where later
        ones have been published.
        """
        return is_collection(self.task.iterations[0])

    def following(self, held: int, sampling: Collection[GroupPlace]) -> Round | None:
        """The next round that can be sampled with the weights version that the server holds, without waiting; None
        where there is none at this moment.

        Args:
            held: the weights version. It may be older than the newest one published.
            sampling: the groups that this task is sampling. It could take their leases once more, as a task may after
                it was interrupted.
        """
        missing = self._missing(self._newest)
        others = {i: [p for p in positions if GroupPlace(i, p) not in sampling] for i, positions in missing.items()}
        return self._free_work(held, others)

    def are_over(self) -> bool:
        """Whether the segment needs no more rollouts."""
        return self._over(newest := self._newest, self._missing(newest))

    @property
    def _newest(self) -> int:
        """The weights version to sample with, or -1 without one. Version v means that iterations 0 to v - 1 have been
        trained on.
        """
        if self._collects:
            return collecting_version(self.task.iterations[0])
        return max(published_versions(self.task.layout), default=-1)

    def _look(self) -> tuple[Round | None] | None:
        """The next round, (None,) if there will be none, or None to continue waiting."""
        turn, newest = self.task.turn, self._newest
        had_turn, missing = turn.is_mine, self._missing(newest)
        work = self._free_work(newest, missing)
        if work is not None and (had_turn or turn.take()):
            return (work,) if had_turn else self._look()  # while another process had the turn, weights have changed
        if self._over(newest, missing):
            return (None,)
        if work is None:
            self.rest()
        return None

    def _missing(self, newest: int) -> dict[int, list[int]]:
        """The positions of the groups that are missing, by iteration, of the iterations that are not trained on yet."""
        wanted = [i for i in self.task.iterations if self._collects or i >= newest]
        every = set(range(groups_of(self.task.recipe, wanted[0], self.problems) if wanted else 0))
        missing = {i: sorted(every - positions_there(self.task, i)) for i in wanted}
        return {iteration: positions for iteration, positions in missing.items() if positions}

    def _free_work(self, version: int, missing: dict[int, list[int]]) -> Round | None:
        """The oldest groups without a lease for which a weights version is new enough."""
        ahead = version + self.task.recipe.schedule.max_staleness
        self._leases = {iteration: self._leases_of(iteration) for iteration in missing}
        for iteration, positions in missing.items():
            leases = self._leases[iteration]
            if iteration <= ahead and (free := leases.free(positions)):
                return Round(iteration, version, self._share(free), leases, time.monotonic() - self._began)
        return None

    def _over(self, newest: int, missing: dict[int, list[int]]) -> bool:
        """Whether the trainer has finished the segment, or is not running and has all groups that it needs.

        A trainer at work may still find a group damaged and want it sampled again. That of a colocated task may also go
        back to an earlier state after the last weights version, and no other task could sample for it.
        """
        if self.task.job.role is Role.COLOCATED:
            return is_trained(self.task)
        if not self._collects and newest >= self.task.job.end_iteration:
            return True
        return not missing and PeerStatus.RUNNING not in self.task.peers(Role.TRAINER).lives().values()

    def _leases_of(self, iteration: int) -> Leases:
        if iteration in self._leases:
            return self._leases[iteration]
        return group_leases(self.task.layout, iteration, self.task.holder, self.task.observer)

    def _share(self, free: list[int]) -> list[int]:
        """An equal part of the free groups for each task at work. The task that finishes first takes from those that
        are left.
        """
        lives = self.task.peers(Role.INFERENCE).lives()
        me = (self.task.job.name, self.task.index)
        at_work = sorted({me, *(peer for peer, life in lives.items() if life is PeerStatus.RUNNING)})
        return free[at_work.index(me) :: len(at_work)] or free[:1]


@dataclass
class NeedWatch:
    """Checks at intervals whether a server that is starting is still needed: a start may hang for a long time."""

    rounds: Rounds
    _next: float = field(default=0.0, init=False)

    def look(self) -> None:
        """Check, unless the last check was less than ``LOOK_WHILE_STARTING_S`` ago.

        Raises:
            NotNeededError: the segment is over.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_WHILE_STARTING_S
        if self.rounds.are_over():
            raise NotNeededError


def groups_of(recipe: Recipe, iteration: int, problems: int) -> int:
    """The number of groups of an iteration; a collection has one group for each problem.

    Args:
        recipe: the run's.
        iteration: which.
        problems: all training problems.
    """
    return problems if is_collection(iteration) else recipe.sampling.problems_per_iteration or 0


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
    """The client of the servers that serve the policy."""
    mu: Generator
    """The client of the servers that serve the prover."""
    held: Callable[[], Weights]
    """The weights that the policy's server holds at this moment."""
    room: asyncio.Semaphore
    """One place for each trace that may be sampled at a time."""
    sampling: set[GroupPlace]
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
        sampler = RolloutSampler(self.client, self.policy.tokens, plan, room=self.room)
        session = SamplingSession(sampler, self.pool, self._prover_session(work.iteration))
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
        self, work: Round, starts: Starts, finish: "GroupFinisher", all_claimed: asyncio.Event
    ) -> Iterator[PromptedGroup]:
        """The groups of the round; the task claims each at the moment when the sampler has room for it."""
        drawn = self._drawn(work.iteration)
        for position in work.positions:
            if self.task.retrying(partial(work.leases.claim, position), "a lease"):
                finish.claims[drawn[position].id] = Claim(position, self.held())
                self.sampling.add(GroupPlace(work.iteration, position))
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
        rule=recipe.episodes,
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
    clock: "RoundClock"
    sampling: set[GroupPlace]
    """See :class:`RoundSampler`."""
    claims: dict[str, Claim] = field(default_factory=dict)
    """The claims by the id of the problem."""

    async def commit(self, group: list[asyncio.Task[Sampled]]) -> None:
        """Commit a group when it is graded, unless another task has committed it before."""
        generated = self.clock.now
        traces = await graded_in_order(group)
        seconds = {**self.clock.before, "generation": generated, "grading": self.clock.now - generated}
        sampled = await asyncio.to_thread(merged, traces, seconds)
        claim = self.claims[sampled.rollouts[0].problem_id]
        won = await asyncio.to_thread(self._commit, claim, sampled)
        self.sampling.discard(GroupPlace(self.work.iteration, claim.position))
        self._record_end(claim.position, sampled, won)

    def _commit(self, claim: Claim, sampled: Sampled) -> bool:
        layout, recipe, iteration = self.task.layout, self.task.recipe, self.work.iteration
        samples = range(recipe.algorithm.group_size(recipe, iteration))  # what readers ask for
        path = layout.group(iteration, claim.position)
        refuse_other_samples(sampled, sampled.rollouts[0].problem_id, samples, path)
        return self.task.retrying(
            lambda: commit_sampled(
                layout,
                iteration,
                claim.position,
                sampled,
                holder=self.work.leases.mine.as_json(),
                weights={"version": claim.weights.version, "digest": claim.weights.digest},
            ),
            f"group {claim.position} of iteration {iteration}",
        )

    def _record_end(self, position: int, sampled: Sampled, won: bool) -> None:
        kind = EventKind.GROUP_COMMITTED if won else EventKind.GROUP_DISCARDED
        where = {"iteration": self.work.iteration, "position": position}
        cost = sampled.statistics
        tokens = {"rollout_tokens": cost.rollout_tokens, "branch_tokens": cost.branch_tokens}
        self.task.events.emit(kind, **where, rollouts=cost.rollouts, **tokens)
        if position == 0 and self.work.iteration <= 0:
            log.info("%s", trace_in_words(sampled.rollouts[0]))
        if sampled.troubles:
            self.task.events.emit(EventKind.GRADING, **where, troubles=sampled.troubles)


def trace_in_words(rollout: Rollout) -> str:
    """The text that the log shows of a trace: its beginning and end, escaped, and what was found in it."""
    text = rollout.text
    if len(text) > 2 * SHOWN:
        text = f"{text[:SHOWN]} [{len(text) - 2 * SHOWN:,} characters] {text[-SHOWN:]}"
    answer = "no answer found" if rollout.answer is None else f"answer {rollout.answer!r}"
    return (
        f"a trace of problem {rollout.problem_id}: {len(rollout.token_ids)} tokens, ended by {rollout.finish_reason}, "
        f"{max(0, len(rollout.boundaries) - 1)} episodes, {answer}, reward {rollout.reward:g}: {text!r}"
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


# Sampling that never drains the server: rounds overlap, and newer weights are loaded while traces are sampled.
#
# The next round begins when the last group of the one before has a place, so the long traces of one iteration are
# sampled beside the first ones of the next. How far ahead that goes is decided by the weights version that the server
# holds: a group is claimed only while that version is new enough for its iteration, and newer weights that are loaded
# later only make it newer.


@dataclass(frozen=True)
class RollingSampler:
    """Samples one round after the other without waiting for the end of any."""

    sampler: RoundSampler
    following: Callable[[frozenset[GroupPlace]], Round | None]
    """Looks for a round that can be sampled now beside those groups that are being sampled; reads the run directory."""
    swap: Callable[[], bool]
    """Loads newer weights, if there are verified ones; returns whether it has loaded some."""

    async def sample(self, first: Round, loading_s: float = 0.0) -> None:
        """Sample a round, and all that follow while some are sampled. Ends when nothing is being sampled and no round
        can be sampled at this moment.

        Raises:
            UserError: sampling, or the loading of weights, failed. The first failure cancels all else.
        """
        over, swapped = asyncio.Event(), asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._swap_until(over, swapped))
                await self._sample_rounds(first, loading_s, swapped, tasks)
                over.set()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    async def _sample_rounds(
        self, first: Round, loading_s: float, swapped: asyncio.Event, tasks: asyncio.TaskGroup
    ) -> None:
        work: Round | None = first
        running: set[asyncio.Task[None]] = set()
        while work is not None or running:
            if work is not None:
                all_claimed = asyncio.Event()
                running.add(tasks.create_task(self.sampler.sample(work, loading_s, all_claimed)))
                await all_claimed.wait()
            else:
                await _set_or_late(swapped)  # other tasks may be lost, and leave groups, at any time
            swapped.clear()
            running = {task for task in running if not task.done()}
            sampling = frozenset(self.sampler.sampling)  # taken here: the event loop changes it
            work, loading_s = await asyncio.to_thread(self.following, sampling), 0.0

    async def _swap_until(self, over: asyncio.Event, swapped: asyncio.Event) -> None:
        """Look for newer weights at intervals, until the sampling is over."""
        while not over.is_set():
            if await asyncio.to_thread(self.swap):
                swapped.set()
            await _set_or_late(over)


async def _set_or_late(event: asyncio.Event) -> None:
    """Wait for an event, but not longer than to the next look."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), LONGEST_LOOK_S)
