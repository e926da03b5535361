"""The rounds of an inference task: which groups it samples next, and how. Rounds may overlap."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from mrt_hpc.algorithms.base import RolloutAlgorithm, Starts, algorithm_of
from mrt_hpc.algorithms.learnt_batch import learnt_batch
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.inference.sampler import Generator, RolloutPlan, RolloutSampler
from mrt_hpc.inference.traces import PromptedGroup
from mrt_hpc.plan.jobs import Role
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel, ProverSession
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.roles.sampling.collected import start_context
from mrt_hpc.roles.sampling.sampling_session import SamplingSession, gather_in_order
from mrt_hpc.roles.task.context import Task, is_trained, positions_there
from mrt_hpc.roles.task.peers import PeerStatus
from mrt_hpc.run.archive import commit_sampled
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import Group, Sampled, include_thrown, merge_samples, refuse_other_samples
from mrt_hpc.run.layout import collecting_version, is_collection
from mrt_hpc.run.leases import Leases, group_leases
from mrt_hpc.run.problems import draw_places
from mrt_hpc.run.records import GroupStatistics, Problem, Rollout
from mrt_hpc.run.weights import Weights, published_versions

log = logging.getLogger(__name__)

LOOK_WHILE_STARTING_S = 5.0
"""Between two checks whether a starting server is still needed."""
SHOWN = 400
"""Characters of a trace's beginning and end in the log."""


class NotNeededError(Exception):
    """The segment ended before the server started."""


class GroupPlace(NamedTuple):
    iteration: int
    position: int


@dataclass(frozen=True)
class Round:
    iteration: int
    version: int
    """To begin with; a server that is not drained may load newer versions during the round."""
    positions: list[int]
    """Unleased at the last look; each is claimed when there is room for it."""
    leases: Leases
    waited_s: float


@dataclass
class Rounds:
    task: Task
    problems: int
    rest: Callable[[], None] = lambda: None
    """Called while there is nothing to sample: gives shared GPUs to the trainer."""
    _began: float = field(default_factory=time.monotonic, init=False)
    _leases: dict[int, Leases] = field(default_factory=dict, init=False)
    """By iteration not trained on yet."""

    def await_round(self) -> Round | None:
        """The next round, once this process has the turn on the GPUs; None when the segment needs no more."""
        producers = self.task.peers(Role.INFERENCE if self._collects else Role.TRAINER)
        wait = self.task.peer_wait("weights or groups to work on", producers)
        wait.check()  # groups that will not be trained on need not be sampled
        return self.task.wait_for_peers(wait, self._look)[0]

    @property
    def _collects(self) -> bool:
        """Whether this task collects the traces that training starts from: with one version, even after later ones."""
        return is_collection(self.task.iterations[0])

    def next_round(self, held: int, sampling: Collection[GroupPlace]) -> Round | None:
        """The next round, without waiting. ``held`` is the server's version, perhaps not the newest; ``sampling`` are
        groups being sampled here, whose leases this task could take once more.
        """
        missing = self._missing_positions(self._newest)
        others = {i: [p for p in positions if GroupPlace(i, p) not in sampling] for i, positions in missing.items()}
        return self._free_work(held, others)

    def are_over(self) -> bool:
        return self._segment_is_over(newest := self._newest, self._missing_positions(newest))

    @property
    def _newest(self) -> int:
        """The version to sample with, or -1. Version v means that iterations 0 to v - 1 were trained."""
        if self._collects:
            return collecting_version(self.task.iterations[0])
        return max(published_versions(self.task.layout), default=-1)

    def _look(self) -> tuple[Round | None] | None:
        """The next round, (None,) if there will be none, or None to wait on."""
        turn, newest = self.task.turn, self._newest
        had_turn, missing = turn.is_mine, self._missing_positions(newest)
        work = self._free_work(newest, missing)
        if work is not None and (had_turn or turn.take()):
            return (work,) if had_turn else self._look()  # while another process had the turn, weights have changed
        if self._segment_is_over(newest, missing):
            return (None,)
        if work is None:
            self.rest()
        return None

    def _missing_positions(self, newest: int) -> dict[int, list[int]]:
        wanted = [i for i in self.task.iterations if self._collects or i >= newest]
        every = set(range(groups_of(self.task.recipe, wanted[0], self.problems) if wanted else 0))
        missing = {i: sorted(every - positions_there(self.task, i)) for i in wanted}
        return {iteration: positions for iteration, positions in missing.items() if positions}

    def _free_work(self, version: int, missing: dict[int, list[int]]) -> Round | None:
        ahead = version + self.task.recipe.schedule.max_staleness
        self._leases = {iteration: self._leases_of(iteration) for iteration in missing}
        for iteration, positions in missing.items():
            leases = self._leases[iteration]
            if iteration <= ahead and (free := leases.free(positions)):
                return Round(iteration, version, self._share(free), leases, time.monotonic() - self._began)
        return None

    def _segment_is_over(self, newest: int, missing: dict[int, list[int]]) -> bool:
        """Whether the trainer finished the segment, or does not run and has all its groups: a running one may find a
        group damaged, or return to an earlier state.
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
        """An equal part for each working task; the first to finish takes from the rest."""
        lives = self.task.peers(Role.INFERENCE).lives()
        me = (self.task.job.name, self.task.index)
        at_work = sorted({me, *(peer for peer, life in lives.items() if life is PeerStatus.RUNNING)})
        return free[at_work.index(me) :: len(at_work)] or free[:1]


@dataclass
class NeedWatch:
    """Checks at intervals whether a starting server, which may hang for long, is still needed."""

    rounds: Rounds
    _next: float = field(default=0.0, init=False)

    def look(self) -> None:
        """Raises NotNeededError once the segment is over; it checks once every ``LOOK_WHILE_STARTING_S``."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK_WHILE_STARTING_S
        if self.rounds.are_over():
            raise NotNeededError


def groups_of(recipe: Recipe, iteration: int, problems: int) -> int:
    """Groups of an iteration; a collection has one for each of all ``problems``."""
    return problems if is_collection(iteration) else recipe.sampling.problems_per_iteration or 0


@dataclass(frozen=True)
class RoundSampler:
    task: Task
    policy: ProverModel
    prover_maker: ProverFactory | None
    problems: list[Problem]
    pool: GraderPool
    client: Generator
    """For the policy; ``mu`` is for the prover."""
    mu: Generator
    held: Callable[[], Weights]
    """The policy server's current weights."""
    room: asyncio.Semaphore
    """One place for each concurrent trace."""
    sampling: set[GroupPlace]
    """Claimed and not yet committed."""

    async def sample(self, work: Round, loading_s: float = 0.0, all_claimed: asyncio.Event | None = None) -> None:
        """Sample a round; finished groups are graded and committed while others are sampled.

        ``all_claimed`` is set when the last group has a place.
        """
        began, before = time.monotonic(), {"waiting": work.waited_s, "loading": loading_s}
        context = start_context(self.task, self.policy.prompter, self.policy.tokens, self.problems, work.iteration)
        starts = algorithm_of(self.task.recipe).starts(context)
        plan = rollout_plan(self.task.recipe, work.iteration, starts.group_size)
        sampler = RolloutSampler(self.client, self.policy.tokens, plan, room=self.room)
        session = SamplingSession(sampler, self.pool, self._prover_session(work.iteration))
        finish = GroupFinisher(self.task, work, before, self.sampling, session, starts, self._question_ids)
        await session.sample(self._claim_groups(work, starts, finish, all_claimed or asyncio.Event()), finish.commit)
        groups = len({claim.position for claim in finish.claims.values()})
        log.info("iteration %d: %d groups in %.1f s", work.iteration, groups, time.monotonic() - began)

    def _prover_session(self, iteration: int) -> ProverSession | None:
        boundaries = algorithm_of(self.task.recipe).boundaries(iteration)
        if self.prover_maker is None or boundaries is None:
            return None
        return self.prover_maker.session(self.mu, boundaries)

    def _question_ids(self) -> Sequence[int]:
        prover = self.task.recipe.prover
        return [] if prover is None else self.policy.prompter.ids(prover.question)

    def _claim_groups(
        self, work: Round, starts: Starts, finish: "GroupFinisher", all_claimed: asyncio.Event
    ) -> Iterator[PromptedGroup]:
        places = [[problem] for problem in self.problems]
        if not is_collection(work.iteration):
            places = draw_places(self.problems, self.task.recipe, work.iteration)
        for position in work.positions:
            if self.task.retry(partial(work.leases.claim, position), "a lease"):
                problem, *others = places[position]
                finish.claims[problem.id] = Claim(position, self.held(), others)
                self.sampling.add(GroupPlace(work.iteration, position))
                yield starts.group(problem)
        all_claimed.set()


def rollout_plan(recipe: Recipe, iteration: int, group_size: int) -> RolloutPlan:
    thought_end = recipe.prompt.thought_end.encode()
    return RolloutPlan(
        run_seed=recipe.seed, iteration=iteration, group_size=group_size, thought_end=thought_end, rule=recipe.episodes
    )


@dataclass(frozen=True)
class Claim:
    position: int
    weights: Weights
    """Held when the group was claimed: the oldest that may sample a token of it."""
    others: Sequence[Problem] = ()
    """The problems that may be sampled in its place, in order."""
    thrown: tuple[GroupStatistics, ...] = ()
    """Of the groups that were thrown away here."""


def is_wanted(group: Sampled, recipe: Recipe, question_ids: Callable[[], Sequence[int]]) -> bool:
    """Whether ``sampling.resample`` keeps a group where other problems are left."""
    match recipe.sampling.resample:
        case "outcome":
            return len({rollout.reward for rollout in group.rollouts if rollout.judged and not rollout.forced}) > 1
        case "advantage":
            batch = learnt_batch([Group(**vars(group), digest="")], recipe, question_ids)
            algorithm = require_kind(recipe.algorithm, RolloutAlgorithm)
            return bool(batch.rollouts) and algorithm.has_signal(batch)
    return True


@dataclass
class GroupFinisher:
    task: Task
    work: Round
    before: dict[str, float]
    """Seconds of the steps before sampling."""
    sampling: set[GroupPlace]
    """See :class:`RoundSampler`."""
    session: SamplingSession
    starts: Starts
    question_ids: Callable[[], Sequence[int]]
    """See :class:`mrt_hpc.algorithms.batch.Batch`."""
    claims: dict[str, Claim] = field(default_factory=dict)
    """By problem id."""
    _began: float = field(default_factory=time.monotonic, init=False)

    async def commit(self, group: list[asyncio.Task[Sampled]]) -> None:
        """Commit a group, or sample the next problem of its place. Another task may have been first."""
        generated = time.monotonic()
        traces = await gather_in_order(group)
        seconds = {"generation": generated - self._began, "grading": time.monotonic() - generated}
        sampled = await asyncio.to_thread(merge_samples, traces, self.before | seconds)
        claim = self.claims[sampled.rollouts[0].problem_id]
        if sampled.troubles:
            where = {"iteration": self.work.iteration, "position": claim.position}
            self.task.events.emit(EventKind.GRADING, **where, troubles=sampled.troubles)
        if claim.others and not await asyncio.to_thread(is_wanted, sampled, self.task.recipe, self.question_ids):
            await self._sample_next(claim, sampled)
            return
        sampled = include_thrown(sampled, claim.thrown)
        won = await asyncio.to_thread(self._commit, claim, sampled)
        self.sampling.discard(GroupPlace(self.work.iteration, claim.position))
        self._record_end(claim.position, sampled, won)

    async def _sample_next(self, claim: Claim, thrown: Sampled) -> None:
        problem, *others = claim.others
        self.claims[problem.id] = Claim(claim.position, claim.weights, others, (*claim.thrown, thrown.statistics))
        await self.session.sample([self.starts.group(problem)], self.commit)

    def _commit(self, claim: Claim, sampled: Sampled) -> bool:
        layout, recipe, iteration = self.task.layout, self.task.recipe, self.work.iteration
        samples = range(recipe.algorithm.group_size(recipe, iteration))  # what readers ask for
        path = layout.group(iteration, claim.position)
        refuse_other_samples(sampled, sampled.rollouts[0].problem_id, samples, path)
        weights = {"version": claim.weights.version, "digest": claim.weights.digest}
        about = {"holder": self.work.leases.mine.as_json(), "weights": weights}
        committing = partial(commit_sampled, layout, iteration, claim.position, sampled, **about)
        return self.task.retry(committing, f"group {claim.position} of iteration {iteration}")

    def _record_end(self, position: int, sampled: Sampled, won: bool) -> None:
        kind = EventKind.GROUP_COMMITTED if won else EventKind.GROUP_DISCARDED
        where, cost = {"iteration": self.work.iteration, "position": position}, sampled.statistics
        tokens = {"rollout_tokens": cost.rollout_tokens, "branch_tokens": cost.branch_tokens}
        thrown = {"thrown_groups": cost.thrown_groups, "thrown_tokens": cost.thrown_tokens}
        self.task.events.emit(kind, **where, rollouts=cost.rollouts, **tokens, **thrown)
        if position == 0 and self.work.iteration <= 0:
            log.info("%s", trace_in_words(sampled.rollouts[0]))


def trace_in_words(rollout: Rollout) -> str:
    text = rollout.text
    if len(text) > 2 * SHOWN:
        text = f"{text[:SHOWN]} [{len(text) - 2 * SHOWN:,} characters] {text[-SHOWN:]}"
    answer = "no answer found" if rollout.answer is None else f"answer {rollout.answer!r}"
    return (
        f"a trace of problem {rollout.problem_id}: {len(rollout.token_ids)} tokens, ended by {rollout.finish_reason}, "
        f"{max(0, len(rollout.boundaries) - 1)} episodes, {answer}, reward {rollout.reward:g}: {text!r}"
    )
