"""The rows of a report's tables: evaluations with their gains, means, regret, and the time of phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.analysis.estimates import mean_of
from mrt_hpc.analysis.intervals import IntervalEstimate, mean_paired_difference, paired_difference
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class EvaluationRow:
    """One line of the evaluation table."""

    evaluation: EvaluationSummary
    difference: IntervalEstimate | None
    """Gain over the first evaluated version, paired by problem; None for that version itself, and where the problems
    are not the same."""
    baseline: int
    """The version compared with."""


@dataclass(frozen=True)
class MeanRow:
    """The mean over several benchmarks, of one version evaluated on all of them."""

    version: int
    accuracy: IntervalEstimate
    difference: IntervalEstimate | None
    """As in EvaluationRow."""


@dataclass(frozen=True)
class RegretRow:
    """One line of the table of regret."""

    benchmark: str
    version: int
    budget: int
    """Tokens."""
    counted: str
    """Which tokens count."""
    regret: IntervalEstimate
    difference: IntervalEstimate | None
    """As in EvaluationRow; below zero is better."""


def evaluation_rows(evaluations: Sequence[EvaluationSummary]) -> list[EvaluationRow]:
    """All evaluations by benchmark and version, each with its gain over the benchmark's first version."""
    rows = []
    for versions in by_benchmark(evaluations).values():
        first = versions[0]
        for evaluation in versions:
            same_problems = evaluation.per_problem.keys() == first.per_problem.keys() and len(first.per_problem) > 0
            compared = evaluation is not first and same_problems
            gain = paired_difference(first.per_problem, evaluation.per_problem) if compared else None
            rows.append(EvaluationRow(evaluation, gain, first.version))
    return rows


def mean_rows(evaluations: Sequence[EvaluationSummary]) -> list[MeanRow]:
    """The mean over benchmarks of the versions evaluated on all of them; empty for fewer than two benchmarks."""
    groups = list(by_benchmark(evaluations).values())
    if len(groups) < 2:
        return []
    by_version = [{one.version: one for one in group} for group in groups]
    shared = sorted(set.intersection(*(set(versions) for versions in by_version)))
    rows = []
    for version in shared:
        firsts = [versions[shared[0]] for versions in by_version]
        these = [versions[version] for versions in by_version]
        pairs = [(first.per_problem, this.per_problem) for first, this in zip(firsts, these, strict=True)]
        compared = version != shared[0] and all(before and before.keys() == after.keys() for before, after in pairs)
        gain = mean_paired_difference(pairs) if compared else None
        rows.append(MeanRow(version, mean_of(*(one.per_problem for one in these)), gain))
    return [row for row in rows if row.difference or row.version == shared[0]]


def regret_rows(evaluations: Sequence[EvaluationSummary]) -> list[RegretRow]:
    """Normalised regret by benchmark, budget and version, each with its change from the benchmark's first version."""
    rows = []
    for versions in by_benchmark(evaluations).values():
        for budget in sorted({budget for evaluation in versions for budget in evaluation.regret}):
            valued = [evaluation for evaluation in versions if evaluation.regret.get(budget)]
            for evaluation in valued:
                first, this = valued[0].regret[budget], evaluation.regret[budget]
                alike = this.keys() == first.keys() and evaluation.regret_tokens == valued[0].regret_tokens
                compared = evaluation is not valued[0] and alike
                change = paired_difference(first, this) if compared else None
                counted = evaluation.regret_tokens
                rows.append(RegretRow(evaluation.benchmark, evaluation.version, budget, counted, mean_of(this), change))
    return rows


def outcomes(rows: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """The last comparable version of each benchmark."""
    return list({row.evaluation.benchmark: row for row in rows if row.difference is not None}.values())


def phase_totals(iterations: Sequence[IterationMetrics]) -> list[tuple[Phase, float, float]]:
    """(phase, seconds, share of all phases) of the phases that took time, in the order of work."""
    totals = [(phase, sum(metrics.seconds.get(phase, 0.0) for metrics in iterations)) for phase in Phase]
    whole = sum(seconds for _, seconds in totals)
    return [(phase, seconds, seconds / whole) for phase, seconds in totals if seconds > 0]


def sample(iterations: Sequence[IterationMetrics], most: int) -> list[IterationMetrics]:
    """At most ``most`` of the iterations, the first and the last among them, evenly spaced."""
    if len(iterations) <= most:
        return list(iterations)
    return [iterations[round(i)] for i in np.linspace(0, len(iterations) - 1, most)]


def by_benchmark(evaluations: Sequence[EvaluationSummary]) -> dict[str, list[EvaluationSummary]]:
    """Evaluations by benchmark in the order given, versions ascending."""
    groups: dict[str, list[EvaluationSummary]] = {}
    for evaluation in evaluations:
        groups.setdefault(evaluation.benchmark, []).append(evaluation)
    return {benchmark: sorted(group, key=lambda one: one.version) for benchmark, group in groups.items()}
