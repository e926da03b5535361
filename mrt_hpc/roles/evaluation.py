"""The evaluation role: it samples and grades one part of one benchmark with one weights version, commits problem by
problem to a results folder, and makes a shard of the problems when all are there. The results folder is one that
evaluations of all runs share, or one inside the run.

The task that finds all shards of a version and benchmark complete writes the summary. The summary follows from the
shards alone, so two tasks that write it write the same.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from mrt_hpc.algorithms.base import WholeTraces
from mrt_hpc.analysis.measures import few_answers, several_graders
from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.errors import UserError, word
from mrt_hpc.inference.client import SamplingSettings
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import RolloutPlan, RolloutSampler, TraceCutter
from mrt_hpc.inference.server_control import Servers
from mrt_hpc.inference.traces import PromptedGroup
from mrt_hpc.modes.base import Direct, Mode
from mrt_hpc.modes.writer import Writer
from mrt_hpc.plan.jobs import EvaluationUnit, Role
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.sections import Benchmark, BenchmarkSampling
from mrt_hpc.roles.evaluation_summary import summary_of
from mrt_hpc.roles.prepare_checks import check_benchmark
from mrt_hpc.roles.sampling.grading import GradedGroup, SamplingSession, graded_in_order, grader_pool
from mrt_hpc.roles.sampling.serving import OwnServers, client_of, room_of
from mrt_hpc.roles.sampling.weights_on_node import publish_again, verified_weights
from mrt_hpc.roles.stored_parts import StoredParts
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.shutdown import run_until_asked_to_leave
from mrt_hpc.run.evaluation_settings import EvaluationSettings, has_samples, passed_over, settings_of
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.groups import Sampled, commit_group, merged, read_group
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.problems import read_problems, share
from mrt_hpc.run.records import Problem
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.weights import Weights, published_digest, published_versions

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
        return self.task.experiment.benchmark(self.unit.benchmark)

    @property
    def shard(self) -> Path:
        """The directory of the samples."""
        return self.task.layout.evaluation_shard(self.unit.version, self.unit.benchmark, self.unit.shard)

    @property
    def settings(self) -> EvaluationSettings:
        """The settings that the samples have to be made with."""
        return settings_of(self.task.layout, self.task.experiment, self.benchmark)

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
        if (published := published_digest(self.task.layout, self.unit.version)) not in (by, None):
            raise DamagedError("other weights than those published sampled it", where=shard, expected=published)
        if about.get("settings") != self.settings.sampled:
            raise DamagedError("settings other than those of the recipe sampled it", where=shard)
        return sampled

    def _await_version(self) -> None:
        """Wait for the weights version where training has fallen behind it, because a checkpoint was damaged.

        Raises:
            UserError: no trainer will publish it.
        """
        version, layout = self.unit.version, self.task.layout
        if not self.task.experiment.trains:
            self._refuse_missing_model()
            return

        def is_there() -> bool:
            published = published_versions(layout)
            if version not in published and max(published, default=0) > version:
                raise UserError(
                    f"weights version {version}, which this task evaluates, is missing, and training has continued "
                    "without it",
                    where=layout.weights_version(version),
                    advice=f"ls {word(layout.set_aside)} shows what was moved away and why; "
                    f"mrt-hpc report {layout.word} writes the report without it",
                )
            return version in published

        trainers = self.task.peers(Role.TRAINER, range(max(0, version - 1), self.task.plan.iterations))
        self.task.wait_for_peers(self.task.peer_wait(f"weights version {version}", trainers), is_there)

    def _refuse_missing_model(self) -> None:
        """Refuse to go on without a model that was set aside: only the first job publishes it again.

        Raises:
            UserError: it is not there.
        """
        version, layout = self.unit.version, self.task.layout
        if version in published_versions(layout):
            return
        publish_again(self.task, f"model {version} is missing")
        name = self.task.experiment.models[version].name
        raise UserError(
            f"model {name}, which this task evaluates, is missing from the run directory",
            where=layout.weights_version(version),
            advice="the same mrt-hpc eval command again, which takes the model over again; "
            f"ls {word(layout.set_aside)} shows what was moved away and why",
        )

    def sample(self) -> None:
        """Sample, grade and commit the problems that the shard lacks, one at a time; then commit the shard."""
        unit = self.unit
        self._await_version()
        with self._servers.loading():
            weights = verified_weights(self.task, unit.version)
            check_benchmark(self.task, unit.benchmark, weights.directory)
            problems = read_problems(self.task.layout.benchmark_data(unit.benchmark))
            mine = share(range(len(problems)), unit.shard, self.task.experiment.evaluation.problem_shards)
            parts = StoredParts.of(self.task, unit, self.benchmark, weights)
            self._fill(weights, parts, {position: problems[position] for position in mine})
        self._commit_shard(weights, parts, mine)

    @cached_property
    def _servers(self) -> OwnServers:
        prover = self.task.experiment.evaluation.prover
        common = prover is not None and prover.shares_seeds
        return OwnServers(self.task, common, dtype=self.task.experiment.evaluation_dtype)

    def _fill(self, weights: Weights, parts: StoredParts, mine: Mapping[int, Problem]) -> None:
        """Sample what lacks, and wait for what other tasks sample."""
        while lacking := parts.lacking(mine):
            with parts.alive():
                claimed = parts.claimed(lacking)
                if claimed:
                    self._sample_missing(weights, parts, mine, claimed)
            if not claimed:
                self._servers.give_up()  # another task may take long
                parts.wait(lacking)

    def _commit_shard(self, weights: Weights, parts: StoredParts, positions: list[int]) -> None:
        """Merge the parts into the shard.

        Raises:
            DamagedError: a part has been damaged since; it is sampled again by the next attempt.
        """
        unit, sampled = self.unit, parts.sampled(positions)
        if len(sampled) < len(positions):
            raise DamagedError("parts of an evaluation are not there any more", where=parts.store.directory)
        won = self.task.retrying(
            lambda: commit_group(
                self.shard,
                merged(list(sampled.values())),
                weights=weights.digest,
                settings=self.settings.sampled,
                grader=parts.grader,
            ),
            f"the shard {self.shard}",
        )
        kind = EventKind.SHARD_COMMITTED if won else EventKind.SHARD_DISCARDED
        self.task.events.emit(kind, version=unit.version, benchmark=unit.benchmark, shard=unit.shard)

    def _sample_missing(
        self, weights: Weights, parts: StoredParts, mine: Mapping[int, Problem], claimed: Mapping[range, list[int]]
    ) -> None:
        """Sample and commit these samples of these problems, with a server and graders of this task.

        Args:
            weights: of the evaluated version.
            parts: where they are committed.
            mine: the problems of the shard, by position.
            claimed: by the numbers of the samples, the positions of the problems that lack them.
        """
        self.task.spend(Use.STARTING)
        prompter = Prompter.of(weights.directory, self.sampling.prompt)
        policy = ProverModel.of(prompter)
        maker = self._prover_maker(policy)
        length = self.sampling.max_prompt_tokens + self._mode.longest(prompter, self.sampling)
        if maker is not None:
            length += maker.longest_question
        with grader_pool(self.task, self.benchmark.problems) as pool, self._servers.running(weights, length) as server:
            self.task.spend(Use.GENERATING)
            for samples, positions in claimed.items():
                starts = WholeTraces(prompter, len(samples), self._settings(prompter), self.sampling.max_prompt_tokens)
                groups = [starts.group(mine[position]) for position in positions]
                places = {mine[position].id: position for position in positions}
                commit = partial(self._commit_part, parts, places, samples, time.monotonic())
                traces = len(samples) * len(self._mode.stages)
                plan = replace(self._plan, group_size=traces, first_sample=samples.start)
                run_until_asked_to_leave(
                    self.task.shutdown, self._sample(groups, server, pool, policy, maker, plan, commit)
                )
            self.task.spend(Use.ENDING)

    @property
    def sampling(self) -> BenchmarkSampling:
        """How the completions of the benchmark are sampled."""
        return self.task.experiment.sampling_of(self.benchmark)

    @property
    def _mode(self) -> Mode:
        """The way of evaluating."""
        return as_kind(self.benchmark.mode or Direct(), Mode)

    def _prover_maker(self, policy: ProverModel) -> ProverFactory | None:
        wanted = self.task.experiment.evaluation.prover
        return None if wanted is None else ProverFactory.of(wanted, policy, self._plan.run_seed)

    async def _sample(
        self,
        groups: list[PromptedGroup],
        server: Servers,
        pool: GraderPool,
        policy: ProverModel,
        maker: ProverFactory | None,
        plan: RolloutPlan,
        commit: Callable[[GradedGroup], Coroutine[None, None, None]],
    ) -> None:
        async with client_of(self.task, server) as client:
            prover = None if maker is None else maker.session(client)
            room = room_of(self.task, server)
            cutter = TraceCutter(policy.tokens, plan)
            writer = Writer(client, policy.prompter, cutter, self._settings(policy.prompter))
            tracer = self._mode.sampler(writer)
            sampler = RolloutSampler(client, policy.tokens, plan, room=room, tracer=tracer)
            await SamplingSession(sampler, pool, prover).sample(groups, commit)

    async def _commit_part(
        self, parts: StoredParts, positions: Mapping[str, int], samples: range, began: float, group: GradedGroup
    ) -> None:
        """Commit the samples of a problem, with their numbers, when they are graded."""
        traces = await graded_in_order(group)
        sampled = merged(traces, {"generation": time.monotonic() - began})
        position = positions[sampled.rollouts[0].problem_id]
        won = await asyncio.to_thread(parts.commit, position, samples, sampled)
        kind = EventKind.PART_COMMITTED if won else EventKind.SHARD_DISCARDED
        cost = sampled.statistics
        tokens = {"rollout_tokens": cost.rollout_tokens, "branch_tokens": cost.branch_tokens}
        self.task.events.emit(kind, position=position, **self.unit.model_dump(), **tokens)

    @property
    def _plan(self) -> RolloutPlan:
        """How traces are sampled. All versions get the same seeds, so that they are compared on the same draws."""
        recipe = self.task.experiment
        return RolloutPlan(
            run_seed=derive_seed(recipe.seed, "evaluation", self.unit.benchmark),
            iteration=0,
            group_size=self.benchmark.samples * len(self._mode.stages),
            thought_end=self.sampling.prompt.thought_end.encode(),
            rule=recipe.evaluation.episodes or recipe.episodes,
        )

    def _settings(self, prompter: Prompter) -> SamplingSettings:
        how = self.sampling
        return SamplingSettings(how.max_tokens, how.temperature, how.top_p, stop_token_ids=prompter.stop_token_ids)

    def summarise_if_complete(self) -> None:
        """Write the summary once all problem shards are there, and remove the samples of which they are made.

        Raises:
            DamagedError: this task's own shard turned out damaged; it may be sampled again at once.
        """
        layout, unit = self.task.layout, self.unit
        shards = self.task.experiment.evaluation.problem_shards
        paths = layout.evaluation_shards(unit.version, unit.benchmark, shards)
        read = [self._sampled(path) for path in paths] if all(path.exists() for path in paths) else [None]
        if not self.shard.exists():  # set aside by another task, or by this one
            raise DamagedError("this task's own shard was damaged", where=self.shard)
        if None in read:
            return
        parts = [part for part in read if part is not None]
        graders = {str(read_manifest(shard).about.get("grader", "")) for shard in paths}
        summary = summary_of(layout, self.task.experiment, self.benchmark, unit.version, parts, graders)
        path = layout.evaluation_summary(unit.version, unit.benchmark)
        self.task.retrying(lambda: summary.write(path), "the summary of an evaluation")
        shutil.rmtree(layout.evaluation_samples(unit.version, unit.benchmark), ignore_errors=True)
        log.info("version %d on %s: accuracy %.3f", unit.version, unit.benchmark, summary.accuracy)
        what = f"version {unit.version} on {unit.benchmark}"
        for warning in filter(None, (several_graders(graders, what), few_answers(summary.answered_share, what))):
            log.warning("%s", warning)

    def _ask_for_again(self, shard: Path) -> None:
        """Make the task run again whose shard of this version and benchmark is damaged."""
        for job in self.task.plan.jobs:
            for index, unit in enumerate(job.evaluations):
                if self.task.layout.evaluation_shard(unit.version, unit.benchmark, unit.shard) == shard:
                    self.task.reopen([(job.name, index)], f"{shard}, which it had sampled, was damaged")
