"""The inference role: rollouts and branches of a segment's iterations, group by group.

The task owns a vLLM server for as long as the segment lasts. It takes leases on groups that nobody samples yet, of the
oldest iteration that is incomplete and for which the weights are fresh enough; samples them, forks branches while the
prefixes are in the server's cache, grades, and commits each group when its last trace is finished. Tasks may come and
go at any time: the groups of one that is lost are taken over, and one that comes back finds what is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from mrt_hpc.inference.client import Settings
from mrt_hpc.inference.sampler import Prover, RolloutPlan, RolloutSampler
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.mrt.episodes import EpisodeRule
from mrt_hpc.plan.model import Role
from mrt_hpc.roles.peers import Life
from mrt_hpc.roles.prompting import Prompter
from mrt_hpc.roles.serving import (
    GradedTrace,
    TraceGrader,
    client_of,
    grader_pool,
    running_server,
    verified_weights,
)
from mrt_hpc.run.data import draw_problems, read_problems
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import commit_group, complete_groups
from mrt_hpc.run.leases import Holder, Leases
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.records import GroupStatistics
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.grading.pool import GraderPool
    from mrt_hpc.inference.sampler import PromptedProblem, SampledTrace
    from mrt_hpc.inference.server import VllmServer
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.roles.task import Task
    from mrt_hpc.run.records import Branch, Problem, Rollout
    from mrt_hpc.run.weights import Weights

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    """Sample what is missing of the segment, until its last weights version is published.

    Raises:
        UserError: the trainer failed; it does not run, and the nodes are given back; or something in the recipe does
            not fit the model.
    """
    if Rounds(task).awaited() is None:
        log.info("nothing is left to sample")
        return
    weights = verified_weights(task, 0)  # never removed, however long the server takes to start
    worker = Worker.of(task, weights)
    with grader_pool(task) as pool, running_server(task, weights, worker.max_model_len) as server:
        while (work := Rounds(task).awaited()) is not None:  # others have gone on while the server started
            if worker.has_weights(work, server):
                worker.sample(work, server, pool)


@dataclass(frozen=True)
class Round:
    """Some groups of one iteration, for one task to sample with one weights version."""

    iteration: int
    version: int
    positions: list[int]
    """Free when last looked at; each is claimed when there is room for it."""
    leases: Leases
    waited_s: float


@dataclass
class Rounds:
    """Finds the next round of work for a task."""

    task: Task
    _began: float = field(default_factory=time.monotonic, init=False)

    def awaited(self) -> Round | None:
        """The next round, once there is one; None when the segment needs no more rollouts.

        Raises:
            UserError: the trainer has failed, or does not run.
        """
        vigil = self.task.vigil("weights or groups to work on", self.task.peers(Role.TRAINER))
        vigil.check()  # what nobody will train on need not be sampled
        found = self.task.keep(vigil, self._look)
        return found[0]

    def _look(self) -> tuple[Round | None] | None:
        """A round, or (None,) when there will be none; None to go on waiting."""
        # Version v says that iterations 0 to v - 1 have been trained on.
        newest = max(published_versions(self.task.layout), default=-1)
        missing = self._missing(newest)
        work = self._free_work(newest, missing)
        if work is not None:
            return (work,)
        return (None,) if self._over(newest, missing) else None

    def _missing(self, newest: int) -> dict[int, list[int]]:
        """Positions of the groups that are not there, by iteration, of those that are not trained on yet."""
        every = set(range(self.task.recipe.sampling.problems_per_iteration))
        groups = self.task.layout.groups
        missing = {i: sorted(every - complete_groups(groups(i))) for i in self.task.iterations if i >= newest}
        return {iteration: positions for iteration, positions in missing.items() if positions}

    def _free_work(self, newest: int, missing: dict[int, list[int]]) -> Round | None:
        ahead = newest + self.task.recipe.schedule.max_staleness
        for iteration, positions in missing.items():
            leases = self._leases(iteration)
            if iteration <= ahead and (free := leases.free(positions)):
                return Round(iteration, newest, self._share(free), leases, time.monotonic() - self._began)
        return None

    def _over(self, newest: int, missing: dict[int, list[int]]) -> bool:
        """Whether the trainer is through with the segment, or can go on by itself and is not at work just now.

        A trainer at work may still find a group damaged and want it anew.
        """
        if newest >= self.task.job.end_iteration:
            return True
        return not missing and Life.RUNNING not in self.task.peers(Role.TRAINER).lives().values()

    def _leases(self, iteration: int) -> Leases:
        task = self.task
        return Leases(task.layout, iteration, Holder(task.job.name, task.index, task.attempt), task.observer)

    def _share(self, free: list[int]) -> list[int]:
        """An equal part of what is free among the tasks at work. Who is through first takes of what is left then."""
        lives = self.task.peers(Role.INFERENCE).lives()
        me = (self.task.job.name, self.task.index)
        at_work = sorted({me, *(peer for peer, life in lives.items() if life is Life.RUNNING)})
        return free[at_work.index(me) :: len(at_work)] or free[:1]


@dataclass
class Worker:
    """Samples round after round through one server."""

    task: Task
    prompter: Prompter
    tokens: TokenBytes
    problems: list[Problem]
    weights: Weights
    """What the server holds."""
    loading_s: float = 0.0
    """What it took to load them for the round under way."""

    @staticmethod
    def of(task: Task, weights: Weights) -> Worker:
        """Read the tokenizer and the training problems."""
        prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)
        return Worker(task, prompter, TokenBytes(prompter.tokenizer), read_problems(task.layout.train_data), weights)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence that the server must hold."""
        sampling, prover = self.task.recipe.sampling, self.task.recipe.prover
        forced = 0 if prover is None else len(self.prompter.ids(prover.forced_text)) + prover.max_tokens
        return sampling.max_prompt_tokens + sampling.max_tokens + forced

    def has_weights(self, work: Round, server: VllmServer) -> bool:
        """See to it that the server holds a round's weights; False when they turned out damaged, or gone."""
        started = time.monotonic()
        try:
            if not self._is_loaded(work.version):
                self._load(verified_weights(self.task, work.version), server)
        except DamagedError as damage:
            log.warning("the trainer has to publish weights version %d again: %s", work.version, damage)
            return False
        finally:
            self.loading_s = time.monotonic() - started
        return True

    def _is_loaded(self, version: int) -> bool:
        """Whether the published version is the one that the server holds, by its number and digest."""
        try:
            digest = read_manifest(self.task.layout.weights_version(version)).digest
        except DamagedError:
            return False
        return (version, digest) == (self.weights.version, self.weights.digest)

    def _load(self, weights: Weights, server: VllmServer) -> None:
        server.load_weights(weights.directory, weights.version)
        self.weights = weights
        self.task.events.emit(EventKind.WEIGHTS_LOADED, version=weights.version, digest=weights.digest)

    def sample(self, work: Round, server: VllmServer, pool: GraderPool) -> None:
        """Claim, sample, grade and commit."""
        clock = _Clock(waiting=work.waited_s, loading=self.loading_s)
        count = asyncio.run(self._sample(work, server, pool, clock))
        log.info("iteration %d: %d groups in %.1f s", work.iteration, count, clock.now)

    async def _sample(self, work: Round, server: VllmServer, pool: GraderPool, clock: _Clock) -> int:
        """Sample, grade and commit; what is finished is graded and committed while the rest is sampled."""
        recipe = self.task.recipe
        finish = GroupFinisher(self.task, work, self.weights, TraceGrader(pool, recipe.prompt.thought_end), clock)
        async with client_of(self.task, server) as client:
            plan = rollout_plan(recipe, self.prompter, work.iteration)
            sampler = RolloutSampler(client, self.tokens, plan, recipe.serving.max_concurrent_sequences)
            try:
                async with asyncio.TaskGroup() as finishing:
                    async for trace in sampler.sample(self._claimed(work, finish)):
                        if group := finish.add(trace):
                            finishing.create_task(finish.commit(group))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from failures  # the first failure cancelled all else
        return len(finish.positions)

    def _claimed(self, work: Round, finish: GroupFinisher) -> Iterator[PromptedProblem]:
        """The round's problems, each claimed in the moment when the sampler has room for it."""
        sampling = self.task.recipe.sampling
        batch = draw_problems(self.problems, self.task.recipe.seed, work.iteration, sampling.problems_per_iteration)
        for position in work.positions:
            if self.task.patiently(partial(work.leases.claim, position), "a lease"):
                finish.positions[batch[position].id] = position
                yield from self.prompter.prompted([batch[position]], max_tokens=sampling.max_prompt_tokens)


@dataclass
class GroupFinisher:
    """Gathers the traces of each group, then grades and commits it."""

    task: Task
    work: Round
    weights: Weights
    grader: TraceGrader
    clock: _Clock
    positions: dict[str, int] = field(default_factory=dict)
    """Of the problems claimed, by id."""
    _waiting: dict[str, list[SampledTrace]] = field(default_factory=dict, init=False)

    def add(self, trace: SampledTrace) -> list[SampledTrace] | None:
        """Take note of a trace; the whole group when this was its last."""
        group = self._waiting.setdefault(trace.prompted.problem.id, [])
        group.append(trace)
        return group if len(group) == self.task.recipe.sampling.rollouts_per_problem else None

    async def commit(self, group: list[SampledTrace]) -> None:
        """Grade a whole group and commit it, unless another task was faster."""
        generated = self.clock.now
        graded = await asyncio.gather(*(self.grader.grade(trace) for trace in group))
        traces = sorted(graded, key=lambda t: t.rollout.sample)
        seconds = {**self.clock.before, "generation": generated, "grading": self.clock.now - generated}
        position = self.positions[group[0].prompted.problem.id]
        won = await asyncio.to_thread(self._commit, position, traces, seconds)
        self._tell(position, traces, won)

    def _commit(self, position: int, traces: list[GradedTrace], seconds: dict[str, float]) -> bool:
        rollouts, branches = [t.rollout for t in traces], [b for t in traces for b in t.branches]
        return self.task.patiently(
            lambda: commit_group(
                self.task.layout.group(self.work.iteration, position),
                rollouts,
                branches,
                statistics(rollouts, branches, seconds),
                holder=asdict(self.work.leases.mine),
                weights={"version": self.weights.version, "digest": self.weights.digest},
            ),
            f"group {position} of iteration {self.work.iteration}",
        )

    def _tell(self, position: int, traces: list[GradedTrace], won: bool) -> None:
        kind = EventKind.SHARD_COMMITTED if won else EventKind.SHARD_DISCARDED
        where = {"iteration": self.work.iteration, "position": position}
        self.task.events.emit(kind, what="group", **where, rollouts=len(traces))
        if troubles := sum(t.troubles for t in traces):
            self.task.events.emit(EventKind.GRADING, **where, troubles=troubles)


def rollout_plan(recipe: Recipe, prompter: Prompter, iteration: int) -> RolloutPlan:
    """How the rollouts of an iteration are sampled."""
    sampling = recipe.sampling
    return RolloutPlan(
        run_seed=recipe.seed,
        iteration=iteration,
        group_size=sampling.rollouts_per_problem,
        settings=Settings(sampling.max_tokens, sampling.temperature, stop_token_ids=prompter.stop_token_ids),
        thought_end=recipe.prompt.thought_end.encode(),
        rule=EpisodeRule(**recipe.episodes.model_dump()),
        prover=_prover(recipe, prompter),
    )


def _prover(recipe: Recipe, prompter: Prompter) -> Prover | None:
    if (mu := recipe.prover) is None:
        return None
    return Prover(
        forced_ids=prompter.ids(mu.forced_text),
        answer_start=mu.forced_text.rpartition(recipe.prompt.thought_end)[2],
        branches=mu.branches,
        settings=Settings(mu.max_tokens, mu.temperature, stop_token_ids=prompter.stop_token_ids),
    )


def statistics(rollouts: list[Rollout], branches: list[Branch], seconds: dict[str, float]) -> GroupStatistics:
    """What a group cost."""
    return GroupStatistics(
        rollouts=len(rollouts),
        branches=len(branches),
        rollout_tokens=sum(len(r.token_ids) for r in rollouts),
        branch_tokens=sum(len(b.token_ids) for b in branches),
        prompt_tokens=sum(b.prompt_tokens for b in branches),
        cached_tokens=sum(b.cached_tokens or 0 for b in branches),
        seconds=dict(seconds),
    )


class _Clock:
    """Wall time of a round: what came before the sampling, and the time since it began."""

    def __init__(self, **before: float) -> None:
        self.before = before
        self._start = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the sampling began."""
        return time.monotonic() - self._start
