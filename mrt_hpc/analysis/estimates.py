"""The measures of an evaluation's summary with their intervals, as the report and the page show them.

A summary that an older version of the package wrote has no numbers of single problems for pass@k, maj@k and stages.
Its means are given with an interval of infinite width, which tables and figures leave out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from mrt_hpc.analysis.evaluation_summary import ROUNDED
from mrt_hpc.analysis.intervals import IntervalEstimate, mean_of_shares, mean_paired_difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeVar

    from mrt_hpc.analysis.intervals import Means
    from mrt_hpc.analysis.measures import EvaluationSummary

    Name = TypeVar("Name", int, str)


def without_interval(mean: float) -> IntervalEstimate:
    """A mean of which nothing else is known."""
    return IntervalEstimate(mean, -math.inf, math.inf)


def mean_of(*benchmarks: Means) -> IntervalEstimate:
    """The mean of a share over the problems of a benchmark, or over several benchmarks, with its interval in [0, 1].

    Args:
        benchmarks: the share of each problem of each benchmark.

    Raises:
        ValueError: there is no problem.
    """
    if len(benchmarks) == 1:
        return mean_of_shares(benchmarks[0])
    found = mean_paired_difference([(dict.fromkeys(one, 0.0), one) for one in benchmarks])
    return replace(found, low=max(found.low, 0.0))


def passes(one: EvaluationSummary) -> dict[int, Means]:
    """pass@k of each problem, by k; empty for an older summary."""
    return _by_place(list(one.pass_at_k), one.pass_by_problem)


def majorities(one: EvaluationSummary) -> dict[int, Means]:
    """maj@k of each problem, by k; empty for an older summary."""
    return _by_place(list(one.pass_at_k), one.majority_by_problem)


def pass_estimates(*benchmarks: EvaluationSummary) -> dict[int, IntervalEstimate]:
    """pass@k by k: of a benchmark, or the mean over several for every k that all of them have.

    For k = 1 it is the accuracy with its interval, so that the two agree.
    """
    if len(benchmarks) == 1 and not benchmarks[0].pass_by_problem:
        return {k: without_interval(mean) for k, mean in benchmarks[0].pass_at_k.items()}
    found = {k: mean_of(*shares) for k, shares in _shared([passes(one) for one in benchmarks]).items()}
    if len(benchmarks) == 1 and 1 in found:
        found[1] = _agreeing(found[1], benchmarks[0])
    return found


def majority_estimates(*benchmarks: EvaluationSummary) -> dict[int, IntervalEstimate]:
    """maj@k by k: of a benchmark, or the mean over several; empty where a summary has none."""
    return {k: mean_of(*shares) for k, shares in _shared([majorities(one) for one in benchmarks]).items()}


def stage_estimates(one: EvaluationSummary) -> dict[str, IntervalEstimate]:
    """The accuracy of each stage, by its name; that of the last one is the result's."""
    if not one.stages_by_problem:
        return {name: without_interval(mean) for name, mean in one.stages.items()}
    shares = _by_place(list(one.stages), one.stages_by_problem)
    found = {name: mean_of(by_problem) for name, by_problem in shares.items()}
    last = next(reversed(found))
    return {**found, last: _agreeing(found[last], one)}


def accuracy_of(one: EvaluationSummary) -> IntervalEstimate:
    """pass@1 of a benchmark with its interval."""
    return IntervalEstimate(one.accuracy, one.low, one.high)


def _agreeing(found: IntervalEstimate, one: EvaluationSummary) -> IntervalEstimate:
    """pass@1 as the summary has it, where this is the same number: of one sample a problem its interval differs."""
    return accuracy_of(one) if abs(found.mean - one.accuracy) < ROUNDED else found


def _by_place(names: Sequence[Name], by_problem: Mapping[str, Sequence[float]]) -> dict[Name, Means]:
    """The numbers of each problem by name, from lists in the order of the names."""
    if not by_problem:
        return {}
    return {name: {problem: row[i] for problem, row in by_problem.items()} for i, name in enumerate(names)}


def _shared(benchmarks: Sequence[Mapping[int, Means]]) -> dict[int, list[Means]]:
    """The shares of each benchmark, for every k that all of them have."""
    ks = sorted(set.intersection(*(set(found) for found in benchmarks)))
    return {k: [found[k] for found in benchmarks] for k in ks}
