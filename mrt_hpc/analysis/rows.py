"""The numbers of a report's tables: summaries, measures with intervals, gains, means, regret, time of phases."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase, graders_of
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.mrt.votes import AnswerCounts, majority_at_k

Name = TypeVar("Name", int, str)


# -- the summary of one weights version on one benchmark, from the rewards of its samples


def summarise_evaluation(
    version: int,
    benchmark: str,
    rewards: Mapping[str, Sequence[float]],
    *,
    answers: Mapping[str, Sequence[str | None]] | None = None,
    stages: Mapping[str, Mapping[str, float]] | None = None,
    **measured: Any,
) -> EvaluationSummary:
    """The summary of one weights version on one benchmark; pass@k and maj@k for k = 1, 2, 4 .. the fewest samples of a
    problem.

    Args:
        rewards: [P][n] of each problem's samples.
        answers: [P][n] of the same samples, None for none; without them there is no maj@k.
        stages: the mean reward by stage and problem id.
        measured: further fields of ``EvaluationSummary``.
    """
    estimate = intervals.pass_at_1(list(rewards.values()))
    fewest = min(len(samples) for samples in rewards.values())
    sizes = [1 << exponent for exponent in range(fewest.bit_length())]
    right = {problem: sum(map(is_right, samples)) for problem, samples in rewards.items()}
    passes = {p: [intervals.pass_at_k(len(mine), right[p], k) for k in sizes] for p, mine in rewards.items()}
    votes = {p: AnswerCounts.of(zip(mine, rewards[p], strict=True)) for p, mine in (answers or {}).items()}
    by_stage = stages or {}
    return EvaluationSummary(
        version=version,
        benchmark=benchmark,
        problems=len(rewards),
        samples=fewest,
        accuracy=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        per_problem={problem: float(np.mean(samples)) for problem, samples in rewards.items()},
        pass_at_k={k: float(np.mean([row[i] for row in passes.values()])) for i, k in enumerate(sizes)},
        pass_by_problem={problem: _round_all(row) for problem, row in passes.items()},
        majority_by_problem={p: _round_all([majority_at_k(mine, k) for k in sizes]) for p, mine in votes.items()},
        stages={name: float(np.mean(list(means.values()))) for name, means in by_stage.items()},
        stages_by_problem=_rows(by_stage),
        **measured,
    )


DIGITS = 6
"""Decimals of numbers of single problems, so that files stay small."""
ROUNDED = 10.0**-DIGITS
"""Means of rounded numbers that differ by less agree."""


def _rows(columns: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    every = [*columns.values()]
    problems = [problem for problem in next(iter(every), {}) if all(problem in column for column in every)]
    return {problem: _round_all([column[problem] for column in every]) for problem in problems}


def _round_all(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(number, DIGITS) for number in numbers)


# -- the measures of a summary with their intervals


def bare_mean(mean: float) -> intervals.IntervalEstimate:
    """A mean with an infinite interval, which tables and figures leave out."""
    return intervals.IntervalEstimate(mean, -math.inf, math.inf)


def mean_of(*benchmarks: intervals.Means) -> intervals.IntervalEstimate:
    if len(benchmarks) == 1:
        return intervals.mean_of_shares(benchmarks[0])
    gain = intervals.mean_gain([(dict.fromkeys(by_problem, 0.0), by_problem) for by_problem in benchmarks]).interval
    return replace(gain, low=max(gain.low, 0.0))


def pass_estimates(*benchmarks: EvaluationSummary) -> dict[int, intervals.IntervalEstimate]:
    """The mean over benchmarks for every k that all have. For k = 1 it is the accuracy with its interval."""
    estimates = _common_estimates([_means_by_name(e.pass_at_k, e.pass_by_problem) for e in benchmarks])
    if len(benchmarks) == 1 and 1 in estimates:
        estimates[1] = _prefer_summary(estimates[1], benchmarks[0])
    return estimates


def majority_estimates(*benchmarks: EvaluationSummary) -> dict[int, intervals.IntervalEstimate]:
    """The mean over benchmarks; empty where a summary has none."""
    return _common_estimates([_means_by_name(e.pass_at_k, e.majority_by_problem) for e in benchmarks])


def _common_estimates(benchmarks: Sequence[Mapping[int, intervals.Means]]) -> dict[int, intervals.IntervalEstimate]:
    """The mean for every k that all benchmarks have."""
    ks = sorted(set.intersection(*(set(means) for means in benchmarks)))
    return {k: mean_of(*(means[k] for means in benchmarks)) for k in ks}


def stage_estimates(evaluation: EvaluationSummary) -> dict[str, intervals.IntervalEstimate]:
    """The last stage's estimate is the result's."""
    if not evaluation.stages_by_problem:
        return {}
    shares = _means_by_name(evaluation.stages, evaluation.stages_by_problem)
    estimates = {name: mean_of(by_problem) for name, by_problem in shares.items()}
    last = next(reversed(estimates))
    return {**estimates, last: _prefer_summary(estimates[last], evaluation)}


def accuracy_of(evaluation: EvaluationSummary) -> intervals.IntervalEstimate:
    return intervals.IntervalEstimate(evaluation.accuracy, evaluation.low, evaluation.high)


def _prefer_summary(estimate: intervals.IntervalEstimate, evaluation: EvaluationSummary) -> intervals.IntervalEstimate:
    """pass@1 as the summary has it, where that is the same number: of one sample a problem its interval differs."""
    return accuracy_of(evaluation) if abs(estimate.mean - evaluation.accuracy) < ROUNDED else estimate


def _means_by_name(names: Iterable[Name], by_problem: Mapping[str, Sequence[float]]) -> dict[Name, intervals.Means]:
    if not by_problem:
        return {}
    return {name: {problem: row[i] for problem, row in by_problem.items()} for i, name in enumerate(names)}


# -- the rows of tables


@dataclass(frozen=True)
class VersionRow:
    """A measure of one weights version on one benchmark, or its mean over several, beside the first version."""

    evaluations: tuple[EvaluationSummary, ...]
    """One a benchmark."""
    estimate: intervals.IntervalEstimate
    difference: intervals.IntervalEstimate | None
    """Gain over the first version, paired by problem; None for that version itself, and where problems, tokens that
    count or graders differ.
    """
    baseline: int
    """The first version."""
    budget: int | None = None
    """The tokens of regret."""

    @property
    def evaluation(self) -> EvaluationSummary:
        return self.evaluations[0]

    @property
    def version(self) -> int:
        return self.evaluation.version


Pair = tuple[EvaluationSummary, EvaluationSummary]


def _gain(pairs: Sequence[Pair], budget: int | None = None) -> intervals.IntervalEstimate | None:
    """The paired gain in reward, or in regret at a budget; None where problems differ, or several graders have judged a
    pair.
    """
    means = [(_measured_means(first, budget), _measured_means(second, budget)) for first, second in pairs]
    same = all(before and before.keys() == after.keys() for before, after in means)
    return intervals.mean_gain(means).interval if same and not any(map(have_several_graders, pairs)) else None


def _measured_means(evaluation: EvaluationSummary, budget: int | None) -> intervals.Means:
    return evaluation.per_problem if budget is None else evaluation.regret[budget]


def have_several_graders(evaluations: Iterable[EvaluationSummary]) -> bool:
    """Whether a difference might be one of the graders."""
    return len(graders_of(*evaluations)) > 1


def evaluation_rows(evaluations: Sequence[EvaluationSummary]) -> list[VersionRow]:
    """Each row has its gain over the benchmark's first version."""
    return [row for versions in group_by_benchmark(evaluations).values() for row in _version_rows(versions)]


def regret_rows(evaluations: Sequence[EvaluationSummary]) -> list[VersionRow]:
    """Each row has its change from the benchmark's first version; below zero is better."""
    return [
        row
        for versions in group_by_benchmark(evaluations).values()
        for budget in sorted({budget for evaluation in versions for budget in evaluation.regret})
        for row in _version_rows([evaluation for evaluation in versions if evaluation.regret.get(budget)], budget)
    ]


def _version_rows(versions: Sequence[EvaluationSummary], budget: int | None = None) -> Iterator[VersionRow]:
    """Of the accuracy, or of the regret at a budget."""
    for each in versions:
        first = versions[0]
        compared = each is not first and (budget is None or each.regret_tokens == first.regret_tokens)
        change = _gain([(first, each)], budget) if compared else None
        estimate = accuracy_of(each) if budget is None else mean_of(each.regret[budget])
        yield VersionRow((each,), estimate, change, first.version, budget)


def mean_rows(evaluations: Sequence[EvaluationSummary]) -> list[VersionRow]:
    """Rows of the versions evaluated on all benchmarks; empty for fewer than two benchmarks."""
    groups = list(group_by_benchmark(evaluations).values())
    if len(groups) < 2:
        return []
    by_version = [{evaluation.version: evaluation for evaluation in group} for group in groups]
    shared = sorted(set.intersection(*(set(versions) for versions in by_version)))
    rows = []
    for version in shared:
        pairs = [(versions[shared[0]], versions[version]) for versions in by_version]
        gain = None if version == shared[0] else _gain(pairs)
        these = tuple(this for _, this in pairs)
        if gain or version == shared[0]:
            rows.append(VersionRow(these, mean_of(*(this.per_problem for this in these)), gain, shared[0]))
    return rows


def outcomes(rows: Sequence[VersionRow]) -> list[VersionRow]:
    """The last comparable version of each benchmark."""
    return list({row.evaluation.benchmark: row for row in rows if row.difference is not None}.values())


def phase_totals(iterations: Sequence[IterationMetrics]) -> list[tuple[Phase, float, float]]:
    """(phase, seconds, share of all phases) of the phases that took time, in the order of work."""
    totals = [(phase, sum(metrics.seconds.get(phase, 0.0) for metrics in iterations)) for phase in Phase]
    whole = sum(seconds for _, seconds in totals)
    return [(phase, seconds, seconds / whole) for phase, seconds in totals if seconds > 0]


def sample(iterations: Sequence[IterationMetrics], most: int) -> list[IterationMetrics]:
    """At most ``most`` of the iterations: the first, others at equal steps, and the last."""
    if len(iterations) <= most:
        return list(iterations)
    step = math.ceil((len(iterations) - 1) / (most - 1))
    return [*iterations[:-1:step], iterations[-1]]


def group_by_benchmark(evaluations: Sequence[EvaluationSummary]) -> dict[str, list[EvaluationSummary]]:
    groups: dict[str, list[EvaluationSummary]] = {}
    for evaluation in evaluations:
        groups.setdefault(evaluation.benchmark, []).append(evaluation)
    return {benchmark: sorted(group, key=lambda evaluation: evaluation.version) for benchmark, group in groups.items()}
