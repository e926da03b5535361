"""The evaluation role: one weights version on one part of one benchmark, sampled, graded and committed as a shard.

Whoever finds all shards of a version and benchmark complete writes the summary; it follows from the shards alone, so
two who write it write the same.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.analysis.statistics import summarise_evaluation
from mrt_hpc.inference.client import Settings
from mrt_hpc.inference.sampler import RolloutPlan, RolloutSampler
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.plan.model import Role
from mrt_hpc.recipe.errors import UserError
from mrt_hpc.roles.prompting import Prompter
from mrt_hpc.roles.quality import trace_quality
from mrt_hpc.roles.serving import TraceGrader, client_of, grader_pool, running_server, verified_weights
from mrt_hpc.run.data import read_problems, share
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.records import FinishReason, Rollout
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.shards import commit_shard, read_shard
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.grading.pool import GraderPool
    from mrt_hpc.inference.sampler import PromptedProblem
    from mrt_hpc.inference.server import VllmServer
    from mrt_hpc.plan.model import EvaluationUnit
    from mrt_hpc.recipe.schema import Benchmark
    from mrt_hpc.roles.task import Task

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    """Evaluate this task's unit, unless its shard is there.

    Raises:
        UserError: the weights version is not there, and nobody will publish it.
    """
    evaluation = UnitEvaluation(task, task.job.evaluations[task.index])
    if evaluation.is_sampled():
        log.info("the shard is there already")
    else:
        evaluation.sample()
    evaluation.summarise_if_complete()


@dataclass(frozen=True)
class UnitEvaluation:
    """One version, benchmark and problem shard."""

    task: Task
    unit: EvaluationUnit

    @property
    def benchmark(self) -> Benchmark:
        """The recipe's entry for it."""
        return next(b for b in self.task.recipe.evaluation.benchmarks if b.name == self.unit.benchmark)

    @property
    def shard(self) -> Path:
        """Where the samples go."""
        return self.task.layout.evaluation_shard(self.unit.version, self.unit.benchmark, self.unit.shard)

    def is_sampled(self) -> bool:
        """Whether its shard is there and whole; a damaged one is set aside."""
        return self.shard.exists() and self._rollouts(self.shard) is not None

    def _rollouts(self, shard: Path) -> list[Rollout] | None:
        """What a shard holds; None for a damaged one, or one of other weights than those published, which is set
        aside.
        """
        try:
            return self.task.patiently(lambda: self._read(shard), f"reading {shard}")
        except DamagedError as damage:
            if shard != self.shard:
                self._ask_for_again(shard)
            self.task.set_aside([shard], f"a damaged shard: {damage.what} ({damage.where})")
            return None

    def _read(self, shard: Path) -> list[Rollout]:
        records, by = read_shard(shard, Rollout), read_manifest(shard).about.get("weights")
        if (published := self._published()) not in (by, None):
            raise DamagedError("other weights than those published sampled it", where=shard, expected=published)
        return records

    def _published(self) -> str | None:
        """Digest of the weights version; None while it is not there, or where it is damaged."""
        try:
            return read_manifest(self.task.layout.weights_version(self.unit.version)).digest
        except DamagedError:
            return None

    def _await_version(self) -> None:
        """Wait for the weights version where training has fallen behind it: a checkpoint was damaged.

        Raises:
            UserError: no trainer will publish it.
        """
        version, layout = self.unit.version, self.task.layout

        def is_there() -> bool:
            published = published_versions(layout)
            if version not in published and max(published, default=0) > version:
                raise UserError(
                    f"weights version {version} is to be evaluated, and training has gone on without it",
                    where=layout.weights_version(version),
                    advice=f"see {layout.set_aside} for why it is not there",
                )
            return version in published

        trainers = self.task.peers(Role.TRAINER, range(max(0, version - 1), self.task.plan.iterations))
        self.task.keep(self.task.vigil(f"weights version {version}", trainers), is_there)

    def sample(self) -> None:
        """Sample, grade and commit the shard."""
        recipe, unit = self.task.recipe, self.unit
        self._await_version()
        weights = verified_weights(self.task, unit.version)
        prompter = Prompter.of(weights.directory, recipe.prompt)
        problems = read_problems(self.task.layout.benchmark_data(unit.benchmark))
        mine = share(problems, unit.shard, recipe.evaluation.problem_shards)
        prompted = prompter.prompted(mine, max_tokens=recipe.sampling.max_prompt_tokens)
        length = recipe.sampling.max_prompt_tokens + recipe.evaluation.max_tokens
        with grader_pool(self.task) as pool, running_server(self.task, weights, length) as server:
            rollouts = asyncio.run(self._sample(prompter, prompted, server, pool))
        won = self.task.patiently(
            lambda: commit_shard(self.shard, rollouts, Rollout, weights=weights.digest), f"the shard {self.shard}"
        )
        kind = EventKind.SHARD_COMMITTED if won else EventKind.SHARD_DISCARDED
        self.task.events.emit(kind, what="evaluation", version=unit.version, benchmark=unit.benchmark, shard=unit.shard)

    async def _sample(
        self, prompter: Prompter, prompted: list[PromptedProblem], server: VllmServer, pool: GraderPool
    ) -> list[Rollout]:
        grader = TraceGrader(pool, self.task.recipe.prompt.thought_end)
        async with client_of(self.task, server) as client:
            concurrency = self.task.recipe.serving.max_concurrent_sequences
            sampler = RolloutSampler(client, TokenBytes(prompter.tokenizer), self._plan(prompter), concurrency)
            grading = [grader.start(trace) async for trace in sampler.sample(prompted)]
            rollouts = [graded.rollout for graded in await asyncio.gather(*grading)]
        return sorted(rollouts, key=lambda r: (r.problem_id, r.sample))

    def _plan(self, prompter: Prompter) -> RolloutPlan:
        """Every version meets the same seeds, so that versions are compared on the same draws."""
        settings = self.task.recipe.evaluation
        return RolloutPlan(
            run_seed=derive_seed(self.task.recipe.seed, "evaluation", self.unit.benchmark),
            iteration=0,
            group_size=self.benchmark.samples,
            settings=Settings(
                settings.max_tokens, settings.temperature, settings.top_p, stop_token_ids=prompter.stop_token_ids
            ),
            thought_end=self.task.recipe.prompt.thought_end.encode(),
        )

    def summarise_if_complete(self) -> None:
        """Write the summary once all problem shards are there.

        Raises:
            DamagedError: this task's own shard turned out damaged; it may be sampled again at once.
        """
        layout, unit = self.task.layout, self.unit
        shards = self.task.recipe.evaluation.problem_shards
        paths = [layout.evaluation_shard(unit.version, unit.benchmark, number) for number in range(shards)]
        read = [self._rollouts(path) for path in paths] if all(path.exists() for path in paths) else [None]
        if not self.shard.exists():  # set aside, by somebody or just now
            raise DamagedError("this task's own shard was damaged", where=self.shard)
        if None in read:
            return
        rollouts = [rollout for part in read for rollout in part or []]
        statements = {p.id: p.problem for p in read_problems(layout.benchmark_data(unit.benchmark))}
        traces = [(statements[r.problem_id], r.text) for r in rollouts]
        summary = summarise_evaluation(
            unit.version,
            unit.benchmark,
            _rewards(rollouts),
            tokens_per_rollout=sum(len(r.token_ids) for r in rollouts) / len(rollouts),
            truncated_share=sum(r.finish_reason is FinishReason.LENGTH for r in rollouts) / len(rollouts),
            quality=trace_quality(self.benchmark.problems, traces),
        )
        path = layout.evaluation_summary(unit.version, unit.benchmark)
        self.task.patiently(lambda: summary.write(path), "the summary of an evaluation")
        log.info("version %d on %s: accuracy %.3f", unit.version, unit.benchmark, summary.accuracy)

    def _ask_for_again(self, shard: Path) -> None:
        """The shard of another task of this version and benchmark is damaged: whoever sampled it has to do so again."""
        for job in self.task.plan.jobs:
            for index, unit in enumerate(job.evaluations):
                if self.task.layout.evaluation_shard(unit.version, unit.benchmark, unit.shard) == shard:
                    self.task.reopen([(job.name, index)], f"{shard}, which it had sampled, was damaged")


def _rewards(rollouts: list[Rollout]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        rewards.setdefault(rollout.problem_id, []).append(rollout.reward)
    return rewards
