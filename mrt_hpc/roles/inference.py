"""The inference role: it samples the rollouts and branches of a segment's iterations, group by group.

The task owns a vLLM server for as long as the segment lasts. It takes leases on groups without a lease, of the
oldest iteration that is incomplete and for which the weights are fresh enough; samples them, forks branches while the
prefixes are in the server's cache, grades, and commits each group when its last trace is finished. Tasks may come and
go at any time: the groups of one that is lost are taken over, and one that comes back finds what is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.algorithms.base import algorithm_of
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import RolloutPlan
from mrt_hpc.mrt.episodes import EpisodeRule
from mrt_hpc.plan.jobs import Role
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.roles.sampling.collected import start_context
from mrt_hpc.roles.sampling.grading import graded_in_order, sampled_group
from mrt_hpc.roles.sampling.prefetch import Prefetch
from mrt_hpc.roles.sampling.serving import (
    client_of,
    collecting_weights,
    grader_pool,
    policy_server,
    running_server,
    verified_weights,
)
from mrt_hpc.roles.sampling.session import SamplingSession
from mrt_hpc.roles.task.peers import PeerStatus
from mrt_hpc.roles.task.sampled_groups import positions_there
from mrt_hpc.roles.task.shutdown import run_until_told
from mrt_hpc.run.data import draw_problems, read_problems
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.layout import collecting_version, is_collection
from mrt_hpc.run.leases import group_leases
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.uses import Use
from mrt_hpc.run.weights import Weights, published_versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.algorithms.starts import Starts
    from mrt_hpc.domains.pool import GraderPool
    from mrt_hpc.inference.client import GenerationClient
    from mrt_hpc.inference.server_control import Server
    from mrt_hpc.inference.traces import PromptedGroup
    from mrt_hpc.provers.prover_session import ProverSession
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.roles.sampling.grading import GradedTrace
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.groups import Sampled
    from mrt_hpc.run.leases import Leases
    from mrt_hpc.run.records import GroupStatistics, Problem, Rollout


log = logging.getLogger(__name__)

SHOWN = 400
"""The number of characters that the log shows of the beginning of a trace, and of its end."""
LOOK_WHILE_STARTING_S = 5.0
"""Seconds between two checks whether a server that is starting is still needed."""


def run(task: Task) -> None:
    """Sample the groups that the segment lacks, until its last weights version is published.

    Raises:
        UserError: the trainer failed; it does not run, and the nodes are given back; or something in the recipe does
            not fit the model.
    """
    problems = read_problems(task.layout.train_data)
    if Rounds(task, len(problems)).awaited() is None:
        log.info("all groups of the segment are sampled already")
        return
    task.spend(Use.STARTING)
    weights = verified_weights(task, 0)  # never removed, however long the server takes to start
    worker = Worker.of(task, problems, weights)
    try:
        with equipped(task, weights, worker.max_model_len, NeedWatch(Rounds(task, len(problems)))) as equipment:
            while (
                work := Rounds(task, len(problems)).awaited()
            ) is not None:  # # other tasks continued while it started
                if worker.has_weights(work, equipment.server):
                    task.spend(Use.GENERATING)
                    worker.sample(work, equipment)
            task.spend(Use.ENDING)
    except NotNeededError:
        log.info("other tasks have sampled all that was left while the server of this task started")


@dataclass(frozen=True)
class Equipment:
    """What a task samples and grades with."""

    server: Server
    """Of the policy."""
    mu: Server | None
    """Of the prover, where that is another model."""
    pool: GraderPool


class NotNeededError(Exception):
    """The segment ended before the server had started."""


@contextmanager
def equipped(task: Task, weights: Weights, max_model_len: int, watch: NeedWatch) -> Iterator[Equipment]:
    """Start the servers and graders of a task for the length of the block.

    Raises:
        NotNeededError: the segment was over before.
    """
    prover = task.recipe.prover
    common = prover is not None and prover.shares_seeds
    policy = partial(policy_server, task, common_seeds=common, while_starting=watch.look)
    with ExitStack() as stack:
        pool = stack.enter_context(grader_pool(task, task.recipe.problems))
        if prover is None or prover.model is None:
            server = stack.enter_context(policy(weights, max_model_len))
            yield Equipment(server, None, pool)
            return
        share, fixed = prover.memory_share, Weights(0, "", Path(prover.model))
        server = stack.enter_context(policy(weights, max_model_len, share=1.0 - share))
        length = prover.model_max_tokens or max_model_len
        own = running_server(
            task, fixed, length, name="vllm-mu", share=share, common_seeds=common, while_starting=watch.look
        )
        mu = stack.enter_context(own)
        yield Equipment(server, mu, pool)


@dataclass(frozen=True)
class Round:
    """Some groups of one iteration, for one task to sample with one weights version."""

    iteration: int
    version: int
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
    _began: float = field(default_factory=time.monotonic, init=False)

    def awaited(self) -> Round | None:
        """The next round, once there is one; None when the segment needs no more rollouts.

        Raises:
            UserError: the trainer has failed, or does not run.
        """
        producers = self.task.peers(Role.INFERENCE if self._collects else Role.TRAINER)
        vigil = self.task.vigil("weights or groups to work on", producers)
        vigil.check()  # groups that will not be trained on need not be sampled
        found = self.task.keep(vigil, self._look)
        return found[0]

    @property
    def _collects(self) -> bool:
        """Whether this task collects the traces that training starts from: with one weights version, even where later
        ones have been published.
        """
        return is_collection(self.task.iterations[0])

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
        newest = self._newest
        missing = self._missing(newest)
        work = self._free_work(newest, missing)
        if work is not None:
            return (work,)
        return (None,) if self._over(newest, missing) else None

    def _missing(self, newest: int) -> dict[int, list[int]]:
        """The positions of the groups that are missing, by iteration, of the iterations that are not trained on yet."""
        wanted = [i for i in self.task.iterations if self._collects or i >= newest]
        every = set(range(groups_of(self.task.recipe, wanted[0], self.problems) if wanted else 0))
        missing = {i: sorted(every - positions_there(self.task, i)) for i in wanted}
        return {iteration: positions for iteration, positions in missing.items() if positions}

    def _free_work(self, newest: int, missing: dict[int, list[int]]) -> Round | None:
        ahead = newest + self.task.recipe.schedule.max_staleness
        for iteration, positions in missing.items():
            leases = self._leases(iteration)
            if iteration <= ahead and (free := leases.free(positions)):
                return Round(iteration, newest, self._share(free), leases, time.monotonic() - self._began)
        return None

    def _over(self, newest: int, missing: dict[int, list[int]]) -> bool:
        """Whether the trainer has finished the segment, or is not running and has all groups that it needs.

        A trainer at work may still find a group damaged and want it sampled again.
        """
        if not self._collects and newest >= self.task.job.end_iteration:
            return True
        return not missing and PeerStatus.RUNNING not in self.task.peers(Role.TRAINER).lives().values()

    def _leases(self, iteration: int) -> Leases:
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


@dataclass
class Worker:
    """Samples one round after the other through one server."""

    task: Task
    policy: ProverModel
    prover_maker: ProverFactory | None
    problems: list[Problem]
    weights: Weights
    """The weights version that the server holds."""
    loading_s: float = 0.0
    """Seconds that the loading of the weights took for the current round."""
    prefetch: Prefetch | None = None
    """The weights version that was verified while the last round was sampled."""

    @staticmethod
    def of(task: Task, problems: list[Problem], weights: Weights) -> Worker:
        """Read the tokenizer."""
        prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)
        policy, wanted = ProverModel.of(prompter), task.recipe.prover
        maker = None if wanted is None else ProverFactory.of(wanted, policy, task.recipe.seed)
        return Worker(task, policy, maker, problems, weights)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence that the server must hold."""
        sampling, maker = self.task.recipe.sampling, self.prover_maker
        question = 0 if maker is None else maker.longest_question
        return sampling.max_prompt_tokens + sampling.max_tokens + question

    def has_weights(self, work: Round, server: Server) -> bool:
        """Make the server hold the weights of a round; False when they were found damaged or missing."""
        started = time.monotonic()
        try:
            if not self._is_loaded(work.version):
                self.task.spend(Use.LOADING)
                self._load(self._verified(work), server)
        except DamagedError as damage:
            log.warning("the trainer has to publish weights version %d again: %s", work.version, damage)
            return False
        finally:
            self.loading_s = time.monotonic() - started
        return True

    def _verified(self, work: Round) -> Weights:
        """The weights of a round: as they were verified while the last round was sampled, else verified now.

        Raises:
            DamagedError: they are damaged.
        """
        if self.prefetch is not None and (ready := self.prefetch.weights(work.version)) is not None:
            return ready
        verified = collecting_weights if is_collection(work.iteration) else verified_weights
        return verified(self.task, work.version)

    def _is_loaded(self, version: int) -> bool:
        """Whether the published version is the one that the server holds, by its number and digest."""
        try:
            digest = read_manifest(self.task.layout.weights_version(version)).digest
        except DamagedError:
            return False
        return (version, digest) == (self.weights.version, self.weights.digest)

    def _load(self, weights: Weights, server: Server) -> None:
        server.load_weights(weights.directory, weights.version)
        self.weights = weights
        self.task.events.emit(EventKind.WEIGHTS_LOADED, version=weights.version, digest=weights.digest)

    def sample(self, work: Round, equipment: Equipment) -> None:
        """Claim, sample, grade and commit."""
        clock = _Clock(waiting=work.waited_s, loading=self.loading_s)
        self.prefetch = Prefetch(self.task.layout, self.weights.version, self._last_version(work))
        with self.prefetch.running():
            count = run_until_told(self.task.shutdown, self._sample(work, equipment, clock))
        log.info("iteration %d: %d groups in %.1f s", work.iteration, count, clock.now)

    def _last_version(self, work: Round) -> int:
        """The newest weights version that may be published during a round and used after it. With max_staleness 0 the
        trainer starts only when all groups are sampled.
        """
        if is_collection(work.iteration) or not self.task.recipe.schedule.max_staleness:
            return work.version
        return self.task.job.end_iteration - 1

    async def _sample(self, work: Round, equipment: Equipment, clock: _Clock) -> int:
        """Sample, grade and commit the groups of a round; finished groups are graded and committed while others are
        sampled.
        """
        task, recipe = self.task, self.task.recipe
        context = start_context(task, self.policy.prompter, self.policy.tokens, self.problems, work.iteration)
        starts = algorithm_of(recipe).starts(context)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(client_of(task, equipment.server))
            mu = client if equipment.mu is None else await stack.enter_async_context(client_of(task, equipment.mu))
            plan = rollout_plan(recipe, work.iteration, starts.group_size)
            prover, concurrency = self._prover_session(mu, work.iteration), recipe.serving.max_concurrent_sequences
            session = SamplingSession(client, self.policy.tokens, equipment.pool, plan, prover, concurrency)
            finish = GroupFinisher(task, work, self.weights, clock)
            await session.sample(self._claimed(work, starts, finish), finish.commit)
        return len(finish.positions)

    def _prover_session(self, mu: GenerationClient, iteration: int) -> ProverSession | None:
        """What asks the prover about the traces of an iteration; None where no boundary is asked about."""
        boundaries = algorithm_of(self.task.recipe).boundaries(iteration)
        if self.prover_maker is None or boundaries is None:
            return None
        return self.prover_maker.session(mu, boundaries)

    def _claimed(self, work: Round, starts: Starts, finish: GroupFinisher) -> Iterator[PromptedGroup]:
        """The groups of the round; the task claims each at the moment when the sampler has room for it."""
        drawn = self._drawn(work.iteration)
        for position in work.positions:
            if self.task.retrying(partial(work.leases.claim, position), "a lease"):
                finish.positions[drawn[position].id] = position
                yield starts.group(drawn[position])

    def _drawn(self, iteration: int) -> list[Problem]:
        """The problems of an iteration, by position."""
        if is_collection(iteration):
            return self.problems
        count = groups_of(self.task.recipe, iteration, len(self.problems))
        return draw_problems(self.problems, self.task.recipe.seed, iteration, count)


@dataclass
class GroupFinisher:
    """Commits the groups of a round as they are graded."""

    task: Task
    work: Round
    weights: Weights
    clock: _Clock
    positions: dict[str, int] = field(default_factory=dict)
    """Position of each claimed problem, by its id."""

    async def commit(self, group: list[asyncio.Task[GradedTrace]]) -> None:
        """Commit a group when it is graded, unless another task has committed it before."""
        generated = self.clock.now
        traces = await graded_in_order(group)
        seconds = {**self.clock.before, "generation": generated, "grading": self.clock.now - generated}
        position = self.positions[traces[0].rollout.problem_id]
        sampled = await asyncio.to_thread(sampled_group, traces, seconds)
        won = await asyncio.to_thread(self._commit, position, sampled)
        self._tell(position, traces, sampled.statistics, won)

    def _commit(self, position: int, sampled: Sampled) -> bool:
        if self.task.layout.group_archive(self.work.iteration).exists():
            return False  # training has passed the iteration: the other tasks took this one for lost
        return self.task.retrying(
            lambda: commit_group(
                self.task.layout.group(self.work.iteration, position),
                sampled,
                holder=self.work.leases.mine.as_json(),
                weights={"version": self.weights.version, "digest": self.weights.digest},
            ),
            f"group {position} of iteration {self.work.iteration}",
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


def rollout_plan(recipe: Recipe, iteration: int, group_size: int) -> RolloutPlan:
    """How the rollouts of an iteration are sampled and cut."""
    return RolloutPlan(
        run_seed=recipe.seed,
        iteration=iteration,
        group_size=group_size,
        thought_end=recipe.prompt.thought_end.encode(),
        rule=EpisodeRule(**recipe.episodes.model_dump()),
    )


class _Clock:
    """The wall time of a round: of the steps before the sampling, and since the sampling began."""

    def __init__(self, **before: float) -> None:
        self.before = before
        self._start = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the sampling began."""
        return time.monotonic() - self._start
