"""The inference role: rollouts and branches of a segment's iterations, one shard an iteration and task.

The task owns a vLLM server for as long as the segment lasts. For each iteration it waits for weights that are fresh
enough, loads them in place, samples its share of the problems, forks branches while the prefixes are in the server's
cache, grades, and commits one shard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.inference.client import Settings, connect
from mrt_hpc.inference.sampler import Prover, RolloutPlan, RolloutSampler
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.mrt.episodes import EpisodeRule
from mrt_hpc.plan.model import Role
from mrt_hpc.roles.prompting import Prompter
from mrt_hpc.roles.serving import GradedTrace, TraceGrader, grader_pool, running_server
from mrt_hpc.run.data import draw_problems, read_problems, share
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.records import ShardStatistics
from mrt_hpc.run.shards import commit_iteration_shard
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from mrt_hpc.grading.pool import GraderPool
    from mrt_hpc.inference.sampler import PromptedProblem
    from mrt_hpc.inference.server import VllmServer
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.roles.task import Task
    from mrt_hpc.run.records import Branch, Problem, Rollout

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    """Sample every shard of the segment that is not there yet.

    Raises:
        UserError: the trainer failed, or something in the recipe does not fit the model.
    """
    missing = [i for i in task.iterations if not task.layout.shard(i, task.number).exists()]
    if not missing:
        log.info("all shards are there already")
        return
    version = awaited_version(task, missing[0])
    model_dir = task.layout.weights_version(version)
    worker = Worker.of(task)
    with grader_pool(task) as pool, running_server(task, model_dir, version, worker.max_model_len) as server:
        for iteration in missing:
            worker.sample_shard(iteration, server, pool)


def awaited_version(task: Task, iteration: int) -> int:
    """The newest published weights version, once it is fresh enough for an iteration."""
    oldest = max(0, iteration - task.recipe.schedule.max_staleness)

    def fresh_enough() -> list[int]:
        return [v for v in published_versions(task.layout) if v >= oldest]

    return max(task.wait(fresh_enough, reason=f"weights version {oldest}", producers=Role.TRAINER))


@dataclass(frozen=True)
class Worker:
    """What stays the same over the iterations of a segment."""

    task: Task
    prompter: Prompter
    tokens: TokenBytes
    problems: list[Problem]

    @staticmethod
    def of(task: Task) -> Worker:
        """Read the tokenizer and the training problems."""
        prompter = Prompter.of(task.layout.weights_version(0), task.recipe.prompt)
        return Worker(task, prompter, TokenBytes(prompter.tokenizer), read_problems(task.layout.train_data))

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence that the server must hold."""
        sampling, prover = self.task.recipe.sampling, self.task.recipe.prover
        forced = 0 if prover is None else len(self.prompter.ids(prover.forced_text)) + prover.max_tokens
        return sampling.max_prompt_tokens + sampling.max_tokens + forced

    def sample_shard(self, iteration: int, server: VllmServer, pool: GraderPool) -> None:
        """Wait for weights, load them, sample, grade and commit."""
        clock = _Clock()
        version = awaited_version(self.task, iteration)
        clock.lap("waiting")
        if version != server.weights_version:
            server.load_weights(self.task.layout.weights_version(version), version)
            self.task.events.emit(EventKind.WEIGHTS_LOADED, version=version, iteration=iteration)
        clock.lap("loading")
        prompted = self._prompted(iteration)
        traces = asyncio.run(self._sample(iteration, prompted, server, pool, clock))
        self._commit(iteration, traces, clock)

    def _prompted(self, iteration: int) -> list[PromptedProblem]:
        recipe = self.task.recipe
        batch = draw_problems(self.problems, recipe.seed, iteration, recipe.sampling.problems_per_iteration)
        mine = share(batch, self.task.number, recipe.resources.inference.tasks)
        return self.prompter.prompted(mine, max_tokens=recipe.sampling.max_prompt_tokens)

    async def _sample(
        self, iteration: int, prompted: list[PromptedProblem], server: VllmServer, pool: GraderPool, clock: _Clock
    ) -> list[GradedTrace]:
        """Sample and grade; what is finished is graded while the rest is sampled."""
        grader = TraceGrader(pool, self.task.recipe.prompt.thought_end)
        async with connect(server.socket, server.key, revive=lambda: asyncio.to_thread(self._revive, server)) as client:
            concurrency = self.task.recipe.serving.max_concurrent_sequences
            sampler = RolloutSampler(
                client, self.tokens, rollout_plan(self.task.recipe, self.prompter, iteration), concurrency
            )
            grading = [grader.start(trace) async for trace in sampler.sample(prompted)]
            clock.lap("generation")
            traces = await asyncio.gather(*grading)
            clock.lap("grading")
        return sorted(traces, key=lambda t: (t.rollout.problem_id, t.rollout.sample))

    def _revive(self, server: VllmServer) -> bool:
        if restarted := server.restart_if_dead():
            self.task.events.emit(EventKind.SERVER_RESTARTED, version=server.weights_version, pid=server.pid)
        return restarted

    def _commit(self, iteration: int, traces: list[GradedTrace], clock: _Clock) -> None:
        rollouts, branches = [t.rollout for t in traces], [b for t in traces for b in t.branches]
        cost = statistics(rollouts, branches, clock.seconds)
        won = commit_iteration_shard(self.task.layout.shard(iteration, self.task.number), rollouts, branches, cost)
        kind = EventKind.SHARD_COMMITTED if won else EventKind.SHARD_DISCARDED
        self.task.events.emit(
            kind, what="rollouts", iteration=iteration, shard=self.task.number, rollouts=len(rollouts)
        )
        if troubles := sum(t.troubles for t in traces):
            self.task.events.emit(EventKind.GRADING, iteration=iteration, shard=self.task.number, troubles=troubles)
        log.info(
            "iteration %d: %d rollouts, %d branches in %.1f s", iteration, len(rollouts), len(branches), clock.total
        )


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


def statistics(rollouts: list[Rollout], branches: list[Branch], seconds: dict[str, float]) -> ShardStatistics:
    """What a shard cost."""
    return ShardStatistics(
        rollouts=len(rollouts),
        branches=len(branches),
        rollout_tokens=sum(len(r.token_ids) for r in rollouts),
        branch_tokens=sum(len(b.token_ids) for b in branches),
        prompt_tokens=sum(b.prompt_tokens for b in branches),
        cached_tokens=sum(b.cached_tokens or 0 for b in branches),
        seconds=dict(seconds),
    )


class _Clock:
    """Wall time, lap by lap."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Book the time since the last lap under a name."""
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start
