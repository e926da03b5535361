"""Reads the evaluation samples of a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.analysis.samples import ModelSamples, SampleRecord
from mrt_hpc.analysis.trace_curves import BranchTokens, trace_curves
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.evaluation_settings import has_samples, settings_of
from mrt_hpc.run.groups import part_file
from mrt_hpc.run.manifest import verify
from mrt_hpc.run.parquet import LENGTH_OF, read_part
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mrt_hpc.mrt.regret import TraceCurve
    from mrt_hpc.recipe.schema import Benchmark, Recipe
    from mrt_hpc.run.layout import RunLayout


@dataclass(frozen=True)
class _Trace:
    """A rollout without its tokens."""

    problem_id: str
    sample: int
    reward: float
    answer: str | None
    boundaries: list[int]
    tokens: int = field(metadata={LENGTH_OF: "token_ids"})


@dataclass(frozen=True)
class _Value:
    """The value of a prefix."""

    problem_id: str
    sample: int
    boundary: int
    value: float


@dataclass(frozen=True)
class EvaluatedRun:
    """A run directory with its recipe, of which evaluations are read."""

    layout: RunLayout
    recipe: Recipe

    @classmethod
    def open(cls, layout: RunLayout) -> EvaluatedRun:
        """The run in a directory.

        Raises:
            UserError: its recipe cannot be read.
        """
        return cls(layout, read_recipe_lock(layout.recipe_lock))

    @property
    def benchmarks(self) -> list[str]:
        """The names of the benchmarks of the recipe, in its order."""
        return [benchmark.name for benchmark in self.recipe.evaluation.benchmarks]

    def versions(self, benchmark: str) -> list[int]:
        """The weights versions of which all samples on a benchmark are there, in ascending order."""
        found = (self.layout.version_of(path) for path in list_directory(self.layout.root / "evals"))
        return sorted(version for version in found if version is not None and self._is_whole(version, benchmark))

    def _is_whole(self, version: int, benchmark: str) -> bool:
        settings = settings_of(self.layout, self.recipe, self._benchmark(benchmark))
        return all(has_samples(shard, settings) for shard in self._shards(version, benchmark))

    def _benchmark(self, name: str) -> Benchmark:
        return next(b for b in self.recipe.evaluation.benchmarks if b.name == name)

    def _shards(self, version: int, benchmark: str) -> list[Path]:
        shards = range(self.recipe.evaluation.problem_shards)
        return [self.layout.evaluation_shard(version, benchmark, number) for number in shards]

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
        if not self._is_whole(version, benchmark):
            raise UserError(
                f"weights version {version} has no complete evaluation on {benchmark}",
                where=self.layout.evaluation(version, benchmark),
                expected=f"one of the versions {self.versions(benchmark)}",
                advice=f"mrt-hpc status {self.layout.root}",
            )
        shards = self._shards(version, benchmark)
        for shard in shards:
            verify(shard)
        settings = settings_of(self.layout, self.recipe, self._benchmark(benchmark)).now.sampled
        return self._joined(shards, benchmark, name, settings)

    def _joined(self, shards: list[Path], benchmark: str, name: str, settings: str) -> ModelSamples:
        traces = [t for shard in shards for t in read_part(part_file(shard, "rollouts"), _Trace)]
        problems: dict[str, list[SampleRecord]] = defaultdict(list)
        for trace in sorted(traces, key=lambda t: t.sample):
            problems[trace.problem_id].append(SampleRecord(trace.reward, trace.tokens, trace.answer))
        records = {problem: tuple(samples) for problem, samples in problems.items()}
        return ModelSamples(name, benchmark, records, self._curves(shards, traces), settings)

    def _curves(self, shards: list[Path], traces: Iterable[_Trace]) -> dict[str, tuple[TraceCurve, ...]]:
        values = [v for shard in shards for v in read_part(part_file(shard, "values"), _Value)]
        if self.recipe.evaluation.regret_tokens == "sampled":
            return trace_curves(traces, values)
        branches = [b for shard in shards for b in read_part(part_file(shard, "branches"), BranchTokens)]
        return trace_curves(traces, values, branches)
