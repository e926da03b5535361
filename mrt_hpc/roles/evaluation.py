"""The evaluation role: it samples and grades one part of one benchmark with one weights version, commits problem by
problem, and makes a shard of the problems when all are there.

The task that finds all shards of a version and benchmark complete writes the summary. The summary follows from the
shards alone, so two tasks that write it write the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from mrt_hpc.algorithms.starts import WholeTraces
from mrt_hpc.analysis.intervals import summarise_evaluation
from mrt_hpc.analysis.measures import few_answers
from mrt_hpc.domains.small_world.quality import trace_quality
from mrt_hpc.errors import UserError
from mrt_hpc.inference.client import SamplingSettings
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import RolloutPlan, TraceCutter
from mrt_hpc.modes.base import Mode
from mrt_hpc.modes.direct import Direct
from mrt_hpc.modes.writer import Writer
from mrt_hpc.mrt.episodes import EpisodeRule
from mrt_hpc.mrt.regret import TraceCurve, regret_by_problem, tokens_to_answer
from mrt_hpc.plan.jobs import Role
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.roles.preparation.prompt_lengths import check_benchmark
from mrt_hpc.roles.sampling.grading import graded_in_order, sampled_group
from mrt_hpc.roles.sampling.parts import Parts, merged
from mrt_hpc.roles.sampling.serving import client_of, grader_pool, running_server, verified_weights
from mrt_hpc.roles.sampling.session import SamplingSession
from mrt_hpc.roles.task.shutdown import run_until_told
from mrt_hpc.run.data import read_problems, share
from mrt_hpc.run.evaluation_settings import has_samples, passed_over, settings_of
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import Sampled, commit_group, read_group
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.records import FinishReason
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mrt_hpc.domains.pool import GraderPool
    from mrt_hpc.inference.server_control import Server
    from mrt_hpc.inference.traces import PromptedGroup
    from mrt_hpc.plan.jobs import EvaluationUnit
    from mrt_hpc.recipe.schema import Benchmark
    from mrt_hpc.roles.sampling.grading import GradedTrace
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.evaluation_settings import EvaluationSettings
    from mrt_hpc.run.records import Branch, Problem, Rollout
    from mrt_hpc.run.weights import Weights

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    """Evaluate this task's unit, unless its shard is there.

    Raises:
        UserError: the weights version is not there, and no trainer will publish it.
    """
    evaluation = UnitEvaluation(task, task.job.evaluations[task.index])
    if evaluation.is_passed_over():
        log.warning("weights version %d was pruned before this evaluation was asked for", evaluation.unit.version)
        return
    if evaluation.is_sampled():
        log.info("this part of the evaluation is finished already")
    else:
        evaluation.sample()
    evaluation.summarise_if_complete()


@dataclass(frozen=True)
class UnitEvaluation:
    """The work of one task: a part of the problems of one benchmark, for one weights version."""

    task: Task
    unit: EvaluationUnit

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark in the recipe."""
        return next(b for b in self.task.recipe.evaluation.benchmarks if b.name == self.unit.benchmark)

    @property
    def shard(self) -> Path:
        """The directory of the samples."""
        return self.task.layout.evaluation_shard(self.unit.version, self.unit.benchmark, self.unit.shard)

    @property
    def settings(self) -> EvaluationSettings:
        """The settings that the samples have to be made with."""
        return settings_of(self.task.layout, self.task.recipe, self.benchmark)

    def is_passed_over(self) -> bool:
        """Whether the evaluation cannot be made, because its weights version was removed. What other settings made of
        that version stays.
        """
        if self.unit.version not in passed_over(self.task.layout):
            return False
        return not has_samples(self.shard, self.settings)

    def is_sampled(self) -> bool:
        """Whether the shard is there, whole, and made with these settings. Any other shard is set aside."""
        return self.shard.exists() and self._sampled(self.shard) is not None

    def _sampled(self, shard: Path) -> Sampled | None:
        """The content of a shard. None for a damaged one or one of other weights or settings, which is set aside."""
        try:
            return self.task.retrying(lambda: self._read(shard), f"reading {shard}")
        except DamagedError as damage:
            if shard != self.shard:
                self._ask_for_again(shard)
            self.task.set_aside([shard], f"a damaged shard, or another's: {damage.what} ({damage.where})")
            return None

    def _read(self, shard: Path) -> Sampled:
        sampled, about = read_group(shard), read_manifest(shard).about
        by = about.get("weights")
        if (published := self._published()) not in (by, None):
            raise DamagedError("other weights than those published sampled it", where=shard, expected=published)
        if not self.settings.sampled(about.get("settings")):
            raise DamagedError("settings other than those of the recipe sampled it", where=shard)
        return sampled

    def _published(self) -> str | None:
        """The digest of the weights version; None while the version is not there, and where it is damaged."""
        try:
            return read_manifest(self.task.layout.weights_version(self.unit.version)).digest
        except DamagedError:
            return None

    def _await_version(self) -> None:
        """Wait for the weights version where training has fallen behind it, because a checkpoint was damaged.

        Raises:
            UserError: no trainer will publish it.
        """
        version, layout = self.unit.version, self.task.layout

        def is_there() -> bool:
            published = published_versions(layout)
            if version not in published and max(published, default=0) > version:
                raise UserError(
                    f"weights version {version}, which this task evaluates, is missing, and training has continued "
                    "without it",
                    where=layout.weights_version(version),
                    advice=f"ls {layout.set_aside} shows what was moved away and why; "
                    f"mrt-hpc report {layout.root} writes the report without it",
                )
            return version in published

        trainers = self.task.peers(Role.TRAINER, range(max(0, version - 1), self.task.plan.iterations))
        self.task.keep(self.task.vigil(f"weights version {version}", trainers), is_there)

    def sample(self) -> None:
        """Sample, grade and commit the problems that the shard lacks, one at a time; then commit the shard."""
        unit = self.unit
        self._await_version()
        weights = verified_weights(self.task, unit.version)
        check_benchmark(self.task, unit.benchmark, Prompter.of(weights.directory, self.task.recipe.prompt))
        problems = read_problems(self.task.layout.benchmark_data(unit.benchmark))
        mine = share(problems, unit.shard, self.task.recipe.evaluation.problem_shards)
        directory = self.task.layout.evaluation_parts(unit.version, unit.benchmark, unit.shard)
        parts = Parts(self.task, directory, weights.digest, self.settings)
        positions = range(len(mine))
        missing = {mine[p].id: p for p in positions if p not in (there := parts.sampled(positions))}
        if there:
            log.info("%d of %d problems are sampled already", len(there), len(mine))
        if missing:
            self._sample_missing(weights, parts, [mine[p] for p in missing.values()], missing)
        self._commit_shard(parts, positions)

    def _commit_shard(self, parts: Parts, positions: range) -> None:
        """Merge the parts into the shard.

        Raises:
            DamagedError: a part has been damaged since; it is sampled again by the next attempt.
        """
        unit, found = self.unit, parts.sampled(positions)
        if len(found) < len(positions):
            raise DamagedError("parts of an evaluation are not there any more", where=parts.directory)
        won = self.task.retrying(
            lambda: commit_group(
                self.shard, merged(list(found.values())), weights=parts.weights, settings=parts.settings.now.sampled
            ),
            f"the shard {self.shard}",
        )
        kind = EventKind.SHARD_COMMITTED if won else EventKind.SHARD_DISCARDED
        self.task.events.emit(kind, what="evaluation", version=unit.version, benchmark=unit.benchmark, shard=unit.shard)
        parts.remove()

    def _sample_missing(
        self, weights: Weights, parts: Parts, problems: list[Problem], positions: dict[str, int]
    ) -> None:
        """Sample and commit these problems, with a server and graders of this task."""
        recipe = self.task.recipe
        prompter = Prompter.of(weights.directory, recipe.prompt)
        starts = WholeTraces(
            prompter, self.benchmark.samples, self._settings(prompter), recipe.sampling.max_prompt_tokens
        )
        groups = [starts.group(problem) for problem in problems]
        policy = ProverModel.of(prompter)
        maker = self._prover_maker(policy)
        length = recipe.sampling.max_prompt_tokens + self._mode.longest(prompter, recipe)
        if maker is not None:
            length += maker.longest_question
        prover = recipe.evaluation.prover
        common = prover is not None and prover.shares_seeds
        problems_of = self.benchmark.problems
        with (
            grader_pool(self.task, problems_of) as pool,
            running_server(self.task, weights, length, common_seeds=common) as server,
        ):
            finisher = _PartFinisher(parts, self.unit, positions)
            run_until_told(self.task.shutdown, self._sample(groups, server, pool, policy, maker, finisher))

    @property
    def _mode(self) -> Mode:
        """The way of evaluating."""
        return as_kind(self.benchmark.mode or Direct(), Mode)

    def _prover_maker(self, policy: ProverModel) -> ProverFactory | None:
        wanted = self.task.recipe.evaluation.prover
        return None if wanted is None else ProverFactory.of(wanted, policy, self._plan.run_seed)

    async def _sample(
        self,
        groups: list[PromptedGroup],
        server: Server,
        pool: GraderPool,
        policy: ProverModel,
        maker: ProverFactory | None,
        finisher: _PartFinisher,
    ) -> None:
        async with client_of(self.task, server) as client:
            prover = None if maker is None else maker.session(client)
            concurrency = self.task.recipe.serving.max_concurrent_sequences
            cutter = TraceCutter(policy.tokens, self._plan)
            writer = Writer(client, policy.prompter, cutter, self._settings(policy.prompter))
            tracer = self._mode.sampler(writer)
            session = SamplingSession(client, policy.tokens, pool, self._plan, prover, concurrency, tracer)
            await session.sample(groups, finisher.commit)

    @property
    def _plan(self) -> RolloutPlan:
        """How traces are sampled. All versions get the same seeds, so that they are compared on the same draws."""
        recipe = self.task.recipe
        return RolloutPlan(
            run_seed=derive_seed(recipe.seed, "evaluation", self.unit.benchmark),
            iteration=0,
            group_size=self.benchmark.samples * len(self._mode.stages),
            thought_end=recipe.prompt.thought_end.encode(),
            rule=EpisodeRule(**(recipe.evaluation.episodes or recipe.episodes).model_dump()),
        )

    def _settings(self, prompter: Prompter) -> SamplingSettings:
        how = self.task.recipe.evaluation
        return SamplingSettings(how.max_tokens, how.temperature, how.top_p, stop_token_ids=prompter.stop_token_ids)

    def summarise_if_complete(self) -> None:
        """Write the summary once all problem shards are there.

        Raises:
            DamagedError: this task's own shard turned out damaged; it may be sampled again at once.
        """
        layout, unit = self.task.layout, self.unit
        shards = self.task.recipe.evaluation.problem_shards
        paths = [layout.evaluation_shard(unit.version, unit.benchmark, number) for number in range(shards)]
        read = [self._sampled(path) for path in paths] if all(path.exists() for path in paths) else [None]
        if not self.shard.exists():  # set aside by another task, or by this one
            raise DamagedError("this task's own shard was damaged", where=self.shard)
        if None in read:
            return
        parts = [part for part in read if part is not None]
        every_stage = [rollout for part in parts for rollout in part.rollouts]
        rollouts = [rollout for rollout in every_stage if rollout.counts]
        statements = {p.id: p.problem for p in read_problems(layout.benchmark_data(unit.benchmark))}
        traces = [(statements[r.problem_id], r.text) for r in rollouts]
        summary = summarise_evaluation(
            unit.version,
            unit.benchmark,
            _rewards(rollouts),
            tokens_per_rollout=sum(len(r.token_ids) for r in rollouts) / len(rollouts),
            truncated_share=sum(r.finish_reason is FinishReason.LENGTH for r in rollouts) / len(rollouts),
            answered_share=sum(r.answer is not None for r in rollouts) / len(rollouts),
            quality=trace_quality(self.benchmark.problems, traces),
            regret=self._regret(parts),
            regret_tokens=self.task.recipe.evaluation.regret_tokens,
            stages=stage_rewards(every_stage, self._mode.stages),
            settings=self.settings.now.summarised,
        )
        path = layout.evaluation_summary(unit.version, unit.benchmark)
        self.task.retrying(lambda: summary.write(path), "the summary of an evaluation")
        log.info("version %d on %s: accuracy %.3f", unit.version, unit.benchmark, summary.accuracy)
        if warning := few_answers(summary.answered_share, f"version {unit.version} on {unit.benchmark}"):
            log.warning("%s", warning)

    def _regret(self, parts: list[Sampled]) -> dict[int, dict[str, float]]:
        """Regret by budget and problem; empty where no prefix was valued."""
        traces = valued_traces(parts, self.task.recipe.evaluation.regret_tokens)
        return {
            budget: regret_by_problem(traces, budget) for budget in self.task.recipe.evaluation.regret_budgets if traces
        }

    def _ask_for_again(self, shard: Path) -> None:
        """Make the task run again whose shard of this version and benchmark is damaged."""
        for job in self.task.plan.jobs:
            for index, unit in enumerate(job.evaluations):
                if self.task.layout.evaluation_shard(unit.version, unit.benchmark, unit.shard) == shard:
                    self.task.reopen([(job.name, index)], f"{shard}, which it had sampled, was damaged")


@dataclass(frozen=True)
class _PartFinisher:
    """Commits the problems of a shard as they are graded."""

    parts: Parts
    unit: EvaluationUnit
    positions: dict[str, int]
    """The position of each sampled problem, by its id."""
    started: float = field(default_factory=time.monotonic)

    async def commit(self, group: list[asyncio.Task[GradedTrace]]) -> None:
        traces = await graded_in_order(group)
        sampled = sampled_group(traces, {"generation": time.monotonic() - self.started})
        position = self.positions[traces[0].rollout.problem_id]
        won = await asyncio.to_thread(self.parts.commit, position, sampled)
        kind = EventKind.PART_COMMITTED if won else EventKind.SHARD_DISCARDED
        self.parts.task.events.emit(kind, what="part", position=position, **self.unit.model_dump())


def valued_traces(
    parts: Sequence[Sampled], counted: Literal["sampled", "all"] = "sampled"
) -> dict[str, list[TraceCurve]]:
    """The traces of each problem with the values of all their prefixes; those that were not valued are left out.

    Args:
        parts: the shards of one version and benchmark.
        counted: the tokens of a boundary, see ``evaluation.regret_tokens``.
    """
    values: dict[tuple[str, int], list[float]] = defaultdict(list)
    for value in sorted((v for part in parts for v in part.values), key=lambda v: v.boundary):
        values[value.problem_id, value.sample].append(value.value)
    traces: dict[str, list[TraceCurve]] = defaultdict(list)
    branches = _branches_by_boundary(parts)
    for rollout in (r for part in parts for r in part.rollouts):
        if found := values.get((rollout.problem_id, rollout.sample)):
            tokens = np.array(rollout.boundaries, float) if counted == "sampled" else _to_answer(rollout, branches)
            traces[rollout.problem_id].append(TraceCurve(tokens, np.array(found)))
    return dict(traces)


def _branches_by_boundary(parts: Sequence[Sampled]) -> dict[tuple[str, int, int], list[Branch]]:
    found: dict[tuple[str, int, int], list[Branch]] = defaultdict(list)
    for branch in (b for part in parts for b in part.branches):
        found[branch.problem_id, branch.sample, branch.boundary].append(branch)
    return found


def _to_answer(rollout: Rollout, branches: Mapping[tuple[str, int, int], list[Branch]]) -> NDArray[np.float64]:
    """[k + 1] the tokens of prompt, prefix, the prover's text and the answers."""
    where = [(rollout.problem_id, rollout.sample, j) for j in range(len(rollout.boundaries))]
    drawn = [branches.get(key, []) for key in where]
    asked = [[b.prompt_tokens for b in these] for these in drawn]
    return tokens_to_answer(asked, [[len(b.token_ids) for b in these] for these in drawn])


def stage_rewards(rollouts: Sequence[Rollout], names: Sequence[str]) -> dict[str, float]:
    """Return the mean over problems of the mean reward of each stage, by its name; nothing where there is one stage."""
    if len(names) == 1:
        return {}
    by_stage = {name: _rewards([r for r in rollouts if r.stage == stage]) for stage, name in enumerate(names)}
    return {name: float(np.mean([np.mean(r) for r in rewards.values()])) for name, rewards in by_stage.items()}


def _rewards(rollouts: list[Rollout]) -> dict[str, list[float]]:
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        rewards.setdefault(rollout.problem_id, []).append(rollout.reward)
    return rewards
