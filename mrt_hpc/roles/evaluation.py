"""The evaluation role: samples and grades one part of one benchmark with one version, commits each problem to a results
folder (shared by runs, or in the run), and makes a shard when all are there. The task that finds all shards complete
writes the summary.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from mrt_hpc.algorithms.base import WholeTraces
from mrt_hpc.analysis.measures import few_answers, several_graders, several_unjudged
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.inference.client import SamplingSettings
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.sampler import RolloutPlan, RolloutSampler, TraceCutter
from mrt_hpc.inference.traces import PromptedGroup
from mrt_hpc.modes.base import Direct, Mode
from mrt_hpc.modes.writer import Writer
from mrt_hpc.plan.jobs import EvaluationUnit, Role
from mrt_hpc.provers.prover_session import ProverFactory, ProverModel
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.sections import Benchmark
from mrt_hpc.roles.evaluation_summary import summary_of
from mrt_hpc.roles.prepare_checks import check_benchmark
from mrt_hpc.roles.sampling.grading import grader_pool
from mrt_hpc.roles.sampling.sampling_session import Commit, GradedGroup, SamplingSession, gather_in_order
from mrt_hpc.roles.sampling.serving import OwnServers, client_of, room_of
from mrt_hpc.roles.sampling.verified_weights import publish_again, verified_weights
from mrt_hpc.roles.stored_parts import StoredParts
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.shutdown import run_until_asked_to_leave
from mrt_hpc.run.evaluation_settings import EvaluationSettings, has_samples, settings_of, skipped_versions
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.groups import Sampled, commit_group, merge_samples, read_group
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.problems import read_problems, share
from mrt_hpc.run.records import Problem
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.run.weights import Weights, published_digest, published_versions

log = logging.getLogger(__name__)


def run(task: Task) -> None:
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
    task: Task
    unit: EvaluationUnit

    @property
    def benchmark(self) -> Benchmark:
        return self.task.experiment.benchmark(self.unit.benchmark)

    @property
    def shard(self) -> Path:
        return self.task.layout.evaluation_shard(self.unit.version, self.unit.benchmark, self.unit.shard)

    @property
    def settings(self) -> EvaluationSettings:
        return settings_of(self.task.layout, self.task.experiment, self.benchmark)

    def is_passed_over(self) -> bool:
        """Whether the version was removed before its evaluation. Results of other settings stay."""
        return self.unit.version in skipped_versions(self.task.layout) and not has_samples(self.shard, self.settings)

    def is_sampled(self) -> bool:
        """Whether the shard is whole and of these settings; any other is set aside."""
        return self.shard.exists() and self._read_shard(self.shard) is not None

    def _read_shard(self, shard: Path) -> Sampled | None:
        """A shard's content; None for a damaged one or one of other weights or settings, which is set aside."""
        try:
            return self.task.retry(lambda: self._read(shard), f"reading {shard}")
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
        """A damaged checkpoint may have set training back."""
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
                    advice=Advice(
                        "ls {set_aside} shows what was moved away and why; the report without it: mrt-hpc report {run}",
                        set_aside=layout.set_aside,
                        run=layout.root,
                    ),
                )
            return version in published

        trainers = self.task.peers(Role.TRAINER, range(max(0, version - 1), self.task.plan.iterations))
        self.task.wait_for_peers(self.task.peer_wait(f"weights version {version}", trainers), is_there)

    def _refuse_missing_model(self) -> None:
        """Stop without a model that was set aside: only the first job publishes it again."""
        version, layout = self.unit.version, self.task.layout
        if version in published_versions(layout):
            return
        publish_again(self.task, f"model {version} is missing")
        name = self.task.experiment.models[version].name
        raise UserError(
            f"model {name}, which this task evaluates, is missing from the run directory",
            where=layout.weights_version(version),
            advice=Advice(
                "type the same eval command again, which takes the model over again; ls {set_aside} "
                "shows what was moved away and why",
                set_aside=layout.set_aside,
            ),
        )

    def sample(self) -> None:
        unit = self.unit
        self._await_version()
        with self._servers.load_ahead():
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
        while lacking := parts.lacking_positions(mine):
            with parts.alive():
                claimed = parts.claim_lacking(lacking)
                if claimed:
                    self._sample_missing(weights, parts, mine, claimed)
            if not claimed:
                self._servers.give_up()  # another task may take long
                parts.wait(lacking)

    def _commit_shard(self, weights: Weights, parts: StoredParts, positions: list[int]) -> None:
        unit, sampled = self.unit, parts.whole_samples(positions)
        if len(sampled) < len(positions):
            raise DamagedError("parts of an evaluation are not there any more", where=parts.store.directory)
        whole = merge_samples(list(sampled.values()))
        about = {"weights": weights.digest, "settings": self.settings.sampled, "grader": parts.grader}
        won = self.task.retry(lambda: commit_group(self.shard, whole, **about), f"the shard {self.shard}")
        kind = EventKind.SHARD_COMMITTED if won else EventKind.SHARD_DISCARDED
        self.task.events.emit(kind, version=unit.version, benchmark=unit.benchmark, shard=unit.shard)

    def _sample_missing(
        self, weights: Weights, parts: StoredParts, mine: Mapping[int, Problem], claimed: Mapping[range, list[int]]
    ) -> None:
        """Sample and commit with this task's own server and graders; both arguments hold positions in the benchmark."""
        self.task.spend(Use.STARTING)
        recipe, how = self.task.experiment, self.task.experiment.sampling_of(self.benchmark)
        mode = require_kind(self.benchmark.mode or Direct(), Mode)
        prompter = Prompter.of(weights.directory, how.prompt)
        policy, prover = ProverModel.of(prompter), recipe.evaluation.prover
        seed = derive_seed(recipe.seed, "evaluation", self.unit.benchmark)  # the same for all versions
        maker = None if prover is None else ProverFactory.of(prover, policy, seed)
        settings = SamplingSettings(how.max_tokens, how.temperature, how.top_p, stop_token_ids=prompter.stop_token_ids)
        length = how.max_prompt_tokens + mode.longest(prompter, how) + (0 if maker is None else maker.longest_question)

        async def sample(groups: list[PromptedGroup], plan: RolloutPlan, commit: Commit) -> None:
            async with client_of(self.task, server) as client:
                tracer = mode.sampler(Writer(client, prompter, TraceCutter(policy.tokens, plan), settings))
                room = room_of(self.task, server)
                sampler = RolloutSampler(client, policy.tokens, plan, room=room, tracer=tracer)
                session = SamplingSession(sampler, pool, None if maker is None else maker.session(client))
                await session.sample(groups, commit)

        with grader_pool(recipe, self.benchmark.problems) as pool, self._servers.serve(weights, length) as server:
            self.task.spend(Use.GENERATING)
            for samples, positions in claimed.items():
                starts = WholeTraces(prompter, len(samples), settings, how.max_prompt_tokens)
                groups = [starts.group(mine[position]) for position in positions]
                places = {mine[position].id: position for position in positions}
                commit = partial(self._commit_part, parts, places, samples, time.monotonic())
                plan = RolloutPlan(
                    run_seed=seed,
                    iteration=0,
                    group_size=len(samples) * len(mode.stages),
                    first_sample=samples.start,
                    thought_end=how.prompt.thought_end.encode(),
                    rule=recipe.evaluation.episodes or recipe.episodes,
                )
                run_until_asked_to_leave(self.task.shutdown, sample(groups, plan, commit))
            self.task.spend(Use.ENDING)

    async def _commit_part(
        self, parts: StoredParts, positions: Mapping[str, int], samples: range, began: float, group: GradedGroup
    ) -> None:
        traces = await gather_in_order(group)
        sampled = merge_samples(traces, {"generation": time.monotonic() - began})
        position = positions[sampled.rollouts[0].problem_id]
        won = await asyncio.to_thread(parts.commit, position, samples, sampled)
        kind = EventKind.PART_COMMITTED if won else EventKind.SHARD_DISCARDED
        cost = sampled.statistics
        tokens = {"rollout_tokens": cost.rollout_tokens, "branch_tokens": cost.branch_tokens}
        self.task.events.emit(kind, position=position, **self.unit.model_dump(), **tokens)

    def summarise_if_complete(self) -> None:
        """Write the summary once all shards exist, and remove their samples.

        Raises:
            DamagedError: this task's shard was damaged; it may be sampled again at once.
        """
        layout, unit = self.task.layout, self.unit
        shards = self.task.experiment.evaluation.problem_shards
        paths = layout.evaluation_shards(unit.version, unit.benchmark, shards)
        read = [self._read_shard(path) for path in paths] if all(path.exists() for path in paths) else [None]
        if not self.shard.exists():  # set aside by another task, or by this one
            raise DamagedError("this task's own shard was damaged", where=self.shard)
        if None in read:
            return
        parts = [part for part in read if part is not None]
        graders = {str(read_manifest(shard).about.get("grader", "")) for shard in paths}
        summary = summary_of(layout, self.task.experiment, self.benchmark, unit.version, parts, graders)
        path = layout.evaluation_summary(unit.version, unit.benchmark)
        self.task.retry(lambda: summary.write(path), "the summary of an evaluation")
        shutil.rmtree(layout.evaluation_samples(unit.version, unit.benchmark), ignore_errors=True)
        log.info("version %d on %s: accuracy %.3f", unit.version, unit.benchmark, summary.accuracy)
        what = f"version {unit.version} on {unit.benchmark}"
        lost = several_unjudged(summary.unjudged, what, "that counts 0")
        for warning in filter(None, (several_graders(graders, what), few_answers(summary.answered_share, what), lost)):
            log.warning("%s", warning)

    def _ask_for_again(self, shard: Path) -> None:
        for job in self.task.plan.jobs:
            for index, unit in enumerate(job.evaluations):
                if self.task.layout.evaluation_shard(unit.version, unit.benchmark, unit.shard) == shard:
                    self.task.reopen([(job.name, index)], f"{shard}, which it had sampled, was damaged")
