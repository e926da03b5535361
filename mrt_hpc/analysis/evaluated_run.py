"""A directory with evaluations: a run, or an evaluation on its own. Both have weights versions, benchmarks and shards
of samples; weights version *i* of an evaluation on its own is model *i* of its recipe.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from mrt_hpc.analysis.model_samples import ModelSamples, evaluated_problems
from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.find import expanded
from mrt_hpc.recipe.kinds import ModeSettings
from mrt_hpc.recipe.lock import look_at_lock, read_lock
from mrt_hpc.recipe.schema import EvaluatedModel, Experiment
from mrt_hpc.run.evaluation_settings import (
    EvaluationSettings,
    fingerprint_of,
    has_samples,
    settings_of,
    versions_evaluated,
)
from mrt_hpc.run.groups import read_outcomes
from mrt_hpc.run.layout import RunLayout, existing_run
from mrt_hpc.run.manifest import read_manifest


@dataclass(frozen=True)
class EvaluatedRun:
    """A run, or an evaluation on its own, of which samples are read."""

    layout: RunLayout
    recipe: Experiment
    typed: str
    """Its path as a word of a command."""

    @classmethod
    def looked_at(cls, typed: str) -> EvaluatedRun:
        """The run, or the evaluation on its own, in a directory, of which nothing is imported.

        Raises:
            UserError: the directory is neither, or its recipe cannot be read.
        """
        layout = existing_run(expanded(typed))
        return cls(layout, look_at_lock(layout.recipe_lock), word(expanded(typed)))

    @classmethod
    def open(cls, typed: str, *, trust: bool = False) -> EvaluatedRun:
        """The run, or the evaluation on its own, in a directory. Its code is imported only where a benchmark is sampled
        in a way of the user's own: its class knows what the samples mean.

        Args:
            typed: the directory, as the user typed it.
            trust: whether code is imported also where another user can change it.

        Raises:
            UserError: the directory is neither, or its recipe cannot be read.
        """
        run = cls.looked_at(typed)
        if all(isinstance(b.mode, ModeSettings | None) for b in run.recipe.evaluation.benchmarks):
            return run
        return replace(run, recipe=read_lock(run.layout.recipe_lock, trust=trust))

    @property
    def models(self) -> tuple[EvaluatedModel, ...]:
        """The models of an evaluation on its own; none for a run."""
        return self.recipe.models

    @property
    def model_names(self) -> list[str]:
        """What the user calls each of ``models``: its name, with its number where two have the same name."""
        names = [model.name for model in self.models]
        return [name if names.count(name) == 1 else f"{name}#{number}" for number, name in enumerate(names)]

    @property
    def benchmarks(self) -> list[str]:
        """The names of the benchmarks of the recipe, in its order."""
        return [benchmark.name for benchmark in self.recipe.evaluation.benchmarks]

    # -- the names of weights versions

    def short_name(self, version: int) -> str:
        """What tables call a weights version, as ``grpo@20``; or the name of a model."""
        return self.model_names[version] if self.models else f"{self.layout.root.name}@{version}"

    def long_name(self, version: int) -> str:
        """A weights version, or a model, as the user can type it."""
        return f"{self.typed}@{self.model_names[version] if self.models else version}"

    def evaluable(self, version: int) -> str:
        """A weights version, or a model, as ``mrt-hpc eval`` takes it."""
        if not self.models:
            return f"{self.typed}@{version}"
        model = self.models[version]
        return shlex.quote(model.path if model.run is None else f"{model.run}@{model.version}")

    # -- samples

    def versions(self, benchmark: str) -> list[int]:
        """The weights versions of which all samples on a benchmark are there, in ascending order."""
        settings = self._settings(benchmark)
        return [v for v in versions_evaluated(self.layout) if self._is_whole(v, benchmark, settings)]

    def samples(self, version: int, benchmark: str, name: str) -> ModelSamples:
        """The samples of one weights version on one benchmark.

        Args:
            version: one of ``versions``.
            benchmark: one of ``benchmarks``.
            name: what tables call the model.

        Raises:
            DamagedError: a shard is not what was written.
            UserError: the evaluation is not there, or not complete.
        """
        settings, mode = self._settings(benchmark), self.recipe.benchmark(benchmark).mode
        if not self._is_whole(version, benchmark, settings):
            raise self._incomplete(version, benchmark)
        parts = (read_outcomes(shard) for shard in self._shards(version, benchmark))
        return ModelSamples(
            name=name,
            source=self.evaluable(version),
            benchmark=benchmark,
            problems=evaluated_problems(parts, adds_stages=mode is not None and mode.adds_stages),
            settings=self._compared(version, benchmark),
            counted=self.recipe.evaluation.regret_tokens,
            budgets=self._budgets(benchmark),
        )

    def _compared(self, version: int, benchmark: str) -> dict[str, str]:
        """What decides samples and verdicts."""
        graders = {str(read_manifest(shard).about.get("grader", "")) for shard in self._shards(version, benchmark)}
        compared = fingerprint_of(self.layout, self.recipe, self.recipe.benchmark(benchmark), "").compared
        return {**compared, "grader": " ".join(sorted(graders))}

    def _budgets(self, name: str) -> tuple[int, ...]:
        """The tokens that the boundaries of the traces stand for, where the way of evaluating says so."""
        benchmark = self.recipe.benchmark(name)
        base = self.recipe.sampling_of(benchmark).max_tokens
        return () if benchmark.mode is None else benchmark.mode.boundary_budgets(base)

    def _settings(self, benchmark: str) -> EvaluationSettings:
        return settings_of(self.layout, self.recipe, self.recipe.benchmark(benchmark))

    def _is_whole(self, version: int, benchmark: str, settings: EvaluationSettings) -> bool:
        return all(has_samples(shard, settings) for shard in self._shards(version, benchmark))

    def _shards(self, version: int, benchmark: str) -> list[Path]:
        return self.layout.evaluation_shards(version, benchmark, self.recipe.evaluation.problem_shards)

    def _incomplete(self, version: int, benchmark: str) -> UserError:
        whole = ", ".join(map(self.long_name, self.versions(benchmark)))
        return UserError(
            f"{self.short_name(version)} has no complete evaluation on {benchmark}",
            where=self.layout.evaluation(version, benchmark),
            expected=f"one of {whole}" if whole else None,
            advice=f"mrt-hpc status {self.typed}, and if this says that nothing is left to do, "
            f"mrt-hpc eval {self.evaluable(version)} --suite SUITE",
        )
