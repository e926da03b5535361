"""What one model wrote for the problems of one benchmark, as the analyses read it: rewards, lengths, answers, and the
values of the prefixes with the answers that were forced there. Where the samples are stored is the matter of the
constructors alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.outcomes import read_outcomes
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mrt_hpc.run.layout import RunLayout
    from mrt_hpc.run.outcomes import Outcomes, RolloutOutcome

EvaluatedProblems = dict[str, "tuple[EvaluatedTrace, ...]"]
"""The traces of each problem, by its id."""


@dataclass(frozen=True)
class ForcedAnswer:
    """One answer that the prover gave at a boundary: a branch."""

    answer: str | None
    """None where no answer was found."""
    reward: float
    tokens: int
    """The number of sampled tokens."""
    asked: int
    """The number of tokens before them: prompt, prefix and the prover's text."""


@dataclass(frozen=True)
class EvaluatedBoundary:
    """The end of an episode of an evaluated trace; the first boundary is the start of the trace."""

    tokens: int
    """The sampled tokens before it."""
    value: float | None
    """V_j; None where the prover was not asked."""
    forced: tuple[ForcedAnswer, ...]
    """[G] the answers that were forced there."""


@dataclass(frozen=True)
class EvaluatedTrace:
    """One complete sample of an evaluation."""

    reward: float
    answer: str | None
    tokens: int
    """The number of sampled tokens, those of the final answer included."""
    boundaries: tuple[EvaluatedBoundary, ...]
    """[k + 1] of k episodes."""

    @property
    def is_valued(self) -> bool:
        """Whether all boundaries have a value."""
        return all(boundary.value is not None for boundary in self.boundaries)


@dataclass(frozen=True)
class ModelSamples:
    """All samples of one model on one benchmark."""

    name: str
    """The model's name in tables and figures."""
    source: str
    """The model as it was typed, for the commands that an error advises."""
    benchmark: str
    problems: EvaluatedProblems

    @property
    def accuracy(self) -> dict[str, float]:
        """pass@1 of each problem: the mean reward of its traces."""
        return {problem: _mean(trace.reward for trace in traces) for problem, traces in self.problems.items()}

    @property
    def mean_tokens(self) -> float:
        """The mean over problems of the mean length of their traces."""
        return _mean(_mean(trace.tokens for trace in traces) for traces in self.problems.values())

    @property
    def longest(self) -> int:
        """The tokens of the longest trace."""
        return max(trace.tokens for traces in self.problems.values() for trace in traces)

    @property
    def fewest(self) -> int:
        """The least number of traces that a problem has."""
        return min(map(len, self.problems.values()))

    @property
    def is_valued(self) -> bool:
        """Whether the prefixes of all traces have values."""
        return all(trace.is_valued for traces in self.problems.values() for trace in traces)

    def require_values(self) -> None:
        """Refuse samples whose prefixes have no values.

        Raises:
            UserError: there are such samples.
        """
        if not self.is_valued:
            raise UserError(
                f"{self.name}: the prefixes of these samples were not valued",
                where=self.source,
                expected=f"an evaluation on {self.benchmark} that names a prover",
                advice=f"mrt-hpc eval {self.source} --suite SUITE, with a suite that names a prover",
            )


def _mean(numbers: Iterable[float]) -> float:
    listed = list(numbers)
    return sum(listed) / len(listed)


# -- from the records of an evaluation


def evaluated_problems(parts: Iterable[Outcomes]) -> EvaluatedProblems:
    """The traces of each problem, in the order of their numbers, from the records of an evaluation."""
    found: dict[str, dict[int, EvaluatedTrace]] = defaultdict(dict)
    for part in parts:
        boundaries = _BoundaryRecords.of(part)
        for rollout in part.rollouts:
            found[rollout.problem_id][rollout.sample] = boundaries.trace(rollout)
    return {problem: tuple(traces[sample] for sample in sorted(traces)) for problem, traces in found.items()}


@dataclass(frozen=True)
class _BoundaryRecords:
    """Values and forced answers by problem, sample and boundary."""

    values: Mapping[tuple[str, int, int], float]
    forced: Mapping[tuple[str, int, int], list[ForcedAnswer]]

    @classmethod
    def of(cls, part: Outcomes) -> _BoundaryRecords:
        """The records of one shard; all records of a trace are in the same shard."""
        forced: dict[tuple[str, int, int], list[ForcedAnswer]] = defaultdict(list)
        for branch in sorted(part.branches, key=lambda b: b.branch):
            where = branch.problem_id, branch.sample, branch.boundary
            forced[where].append(ForcedAnswer(branch.answer, branch.reward, branch.tokens, branch.prompt_tokens))
        values = {(value.problem_id, value.sample, value.boundary): value.value for value in part.values}
        return cls(values, forced)

    def trace(self, rollout: RolloutOutcome) -> EvaluatedTrace:
        """One trace with its boundaries."""
        boundaries = [
            self._boundary((rollout.problem_id, rollout.sample, number), tokens)
            for number, tokens in enumerate(rollout.boundaries)
        ]
        return EvaluatedTrace(rollout.reward, rollout.answer, rollout.tokens, tuple(boundaries))

    def _boundary(self, where: tuple[str, int, int], tokens: int) -> EvaluatedBoundary:
        return EvaluatedBoundary(tokens, self.values.get(where), tuple(self.forced.get(where, ())))


# -- from a run directory


def samples_of_run(
    layout: RunLayout, name: str, source: str, benchmark: str | None = None, version: int | None = None
) -> ModelSamples:
    """Read the samples of one weights version of a run on one benchmark.

    Args:
        layout: the run directory.
        name: the model's name in tables and figures.
        source: the run as it was typed.
        benchmark: None takes the only one of the run.
        version: None takes the last one that was evaluated on the benchmark.

    Raises:
        DamagedError: a shard is not what was written.
        UserError: the run has no such samples, or not those of all problems.
    """
    chosen = _benchmark(layout, source, benchmark)
    found = evaluated_versions(layout, chosen)
    if not found or version not in (None, *found):
        raise UserError(
            f"no samples on {chosen} of {'any weights version' if version is None else f'weights version {version}'}",
            where=layout.root,
            expected=f"one of the versions {', '.join(map(str, found))}" if found else None,
            advice=f"mrt-hpc eval {source} --suite SUITE, with a suite that has the benchmark {chosen}",
        )
    last = found[-1] if version is None else version
    parts = (read_outcomes(shard) for shard in list_directory(layout.evaluation(last, chosen), "shard-*"))
    samples = ModelSamples(f"{name} v{last}", source, chosen, evaluated_problems(parts))
    _require_all_problems(layout, samples)
    return samples


def evaluated_versions(layout: RunLayout, benchmark: str) -> list[int]:
    """The weights versions of a run that have samples on a benchmark, ascending."""
    versions = map(layout.version_of, list_directory(layout.root / "evals", "v*"))
    return sorted(v for v in versions if v is not None and list_directory(layout.evaluation(v, benchmark), "shard-*"))


def _benchmark(layout: RunLayout, source: str, wanted: str | None) -> str:
    """The benchmark of this name, or the only one of the run.

    Raises:
        UserError: there is none of this name, or more than one to choose from.
    """
    names = [path.stem for path in list_directory(layout.root / "data" / "benchmarks", "*.jsonl")]
    if wanted in names:
        return wanted
    if wanted is None and len(names) == 1:
        return names[0]
    raise UserError(
        "the run has no such benchmark" if wanted else "the run has not exactly one benchmark: name one",
        value=wanted,
        where=layout.root,
        expected=f"one of {', '.join(names)}" if names else None,
        advice="--benchmark NAME" if names else f"mrt-hpc eval {source} --suite SUITE",
    )


def _require_all_problems(layout: RunLayout, samples: ModelSamples) -> None:
    """Refuse an evaluation that is not finished.

    Raises:
        UserError: problems of the benchmark have no samples.
    """
    wanted = {problem.id for problem in read_problems(layout.benchmark_data(samples.benchmark))}
    if missing := wanted.difference(samples.problems):
        raise UserError(
            f"{samples.name}: {len(missing)} of {len(wanted)} problems of {samples.benchmark} have no samples yet",
            where=layout.root,
            advice=f"mrt-hpc eval {samples.source} --suite SUITE, or wait until the evaluation has ended",
        )
