"""The numbers of a report's tables: summaries of evaluations, their measures with intervals, gains, means, regret, and
the time of phases.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase, graders_of
from mrt_hpc.mrt.votes import RIGHT, AnswerCounts, majority_at_k

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
    """The summary of one weights version on one benchmark, from the rewards of every problem's samples.

    pass@k and maj@k are given for k = 1, 2, 4 .. up to the fewest samples that a problem has.

    Args:
        version: of the weights.
        benchmark: its name.
        rewards: [P][n] of each problem's samples.
        answers: [P][n] of the same samples, None where one has no answer; without them there is no maj@k.
        stages: the mean reward of each problem, by stage and problem id.
        measured: further fields of ``EvaluationSummary``, which checks them.

    Raises:
        ValueError: there is no problem, a problem without a sample, or no such field.
    """
    estimate = intervals.pass_at_1(list(rewards.values()))
    fewest = min(len(samples) for samples in rewards.values())
    sizes = [1 << exponent for exponent in range(fewest.bit_length())]
    passes = {problem: [_pass_at_k(samples, k) for k in sizes] for problem, samples in rewards.items()}
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
        pass_by_problem={problem: _rounded(row) for problem, row in passes.items()},
        majority_by_problem={p: _majorities(rewards[p], mine, sizes) for p, mine in (answers or {}).items()},
        stages={name: float(np.mean(list(means.values()))) for name, means in by_stage.items()},
        stages_by_problem=_rows(by_stage),
        **measured,
    )


DIGITS = 6
"""The decimals of numbers of single problems, so that files stay small."""
ROUNDED = 10.0**-DIGITS
"""Means of rounded numbers that differ by less than this agree."""


def _pass_at_k(rewards: Sequence[float], k: int) -> float:
    """pass@k of one problem; a sample counts as correct when its reward is 1."""
    return intervals.pass_at_k(len(rewards), sum(reward >= RIGHT for reward in rewards), k)


def _majorities(rewards: Sequence[float], answers: Sequence[str | None], sizes: Sequence[int]) -> tuple[float, ...]:
    """[K] maj@k of one problem."""
    counts = AnswerCounts.of(zip(answers, rewards, strict=True))
    return _rounded([majority_at_k(counts, k) for k in sizes])


def _rows(columns: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    """The numbers of each problem in the order of the stages, from those of each stage; of problems that have all."""
    every = [*columns.values()]
    problems = [problem for problem in next(iter(every), {}) if all(problem in column for column in every)]
    return {problem: _rounded([column[problem] for column in every]) for problem in problems}


def _rounded(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(number, DIGITS) for number in numbers)


# -- the measures of a summary with their intervals


def without_interval(mean: float) -> intervals.IntervalEstimate:
    """A mean of which nothing else is known: its interval is infinite, and tables and figures leave it out."""
    return intervals.IntervalEstimate(mean, -math.inf, math.inf)


def mean_of(*benchmarks: intervals.Means) -> intervals.IntervalEstimate:
    """The mean of a share over the problems of a benchmark, or over several benchmarks, with its interval in [0, 1].

    Args:
        benchmarks: the share of each problem of each benchmark.

    Raises:
        ValueError: there is no problem.
    """
    if len(benchmarks) == 1:
        return intervals.mean_of_shares(benchmarks[0])
    difference = intervals.mean_paired_difference(
        [(dict.fromkeys(by_problem, 0.0), by_problem) for by_problem in benchmarks]
    )
    return replace(difference, low=max(difference.low, 0.0))


def pass_estimates(*benchmarks: EvaluationSummary) -> dict[int, intervals.IntervalEstimate]:
    """pass@k by k: of a benchmark, or the mean over several for every k that all of them have.

    For k = 1 it is the accuracy with its interval, so that the two agree.
    """
    passes = [_by_place(list(e.pass_at_k), e.pass_by_problem) for e in benchmarks]
    estimates = {k: mean_of(*shares) for k, shares in _shared(passes).items()}
    if len(benchmarks) == 1 and 1 in estimates:
        estimates[1] = _agreeing(estimates[1], benchmarks[0])
    return estimates


def majority_estimates(*benchmarks: EvaluationSummary) -> dict[int, intervals.IntervalEstimate]:
    """maj@k by k: of a benchmark, or the mean over several; empty where a summary has none."""
    majorities = [_by_place(list(e.pass_at_k), e.majority_by_problem) for e in benchmarks]
    return {k: mean_of(*shares) for k, shares in _shared(majorities).items()}


def stage_estimates(evaluation: EvaluationSummary) -> dict[str, intervals.IntervalEstimate]:
    """The accuracy of each stage, by its name; that of the last one is the result's."""
    if not evaluation.stages_by_problem:
        return {}
    shares = _by_place(list(evaluation.stages), evaluation.stages_by_problem)
    estimates = {name: mean_of(by_problem) for name, by_problem in shares.items()}
    last = next(reversed(estimates))
    return {**estimates, last: _agreeing(estimates[last], evaluation)}


def accuracy_of(evaluation: EvaluationSummary) -> intervals.IntervalEstimate:
    """pass@1 of a benchmark with its interval."""
    return intervals.IntervalEstimate(evaluation.accuracy, evaluation.low, evaluation.high)


def _agreeing(estimate: intervals.IntervalEstimate, evaluation: EvaluationSummary) -> intervals.IntervalEstimate:
    """pass@1 as the summary has it, where this is the same number: of one sample a problem its interval differs."""
    return accuracy_of(evaluation) if abs(estimate.mean - evaluation.accuracy) < ROUNDED else estimate


def _by_place(names: Sequence[Name], by_problem: Mapping[str, Sequence[float]]) -> dict[Name, intervals.Means]:
    """The numbers of each problem by name, from lists in the order of the names."""
    if not by_problem:
        return {}
    return {name: {problem: row[i] for problem, row in by_problem.items()} for i, name in enumerate(names)}


def _shared(benchmarks: Sequence[Mapping[int, intervals.Means]]) -> dict[int, list[intervals.Means]]:
    """The shares of each benchmark, for every k that all of them have."""
    ks = sorted(set.intersection(*(set(means) for means in benchmarks)))
    return {k: [means[k] for means in benchmarks] for k in ks}


# -- the rows of tables


@dataclass(frozen=True)
class EvaluationRow:
    """One line of the evaluation table."""

    evaluation: EvaluationSummary
    difference: intervals.IntervalEstimate | None
    """Gain over the first evaluated version, paired by problem; None for that version itself, and where the problems
    are not the same or several graders have judged them."""
    baseline: int
    """The version compared with."""


@dataclass(frozen=True)
class MeanRow:
    """The mean over several benchmarks, of one version evaluated on all of them."""

    version: int
    accuracy: intervals.IntervalEstimate
    difference: intervals.IntervalEstimate | None
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
    regret: intervals.IntervalEstimate
    difference: intervals.IntervalEstimate | None
    """As in EvaluationRow; below zero is better."""


Pair = tuple[EvaluationSummary, EvaluationSummary]


def _gain(pairs: Sequence[Pair], budget: int | None = None) -> intervals.IntervalEstimate | None:
    """The mean gain in reward, or with a budget that in regret, from first to second, paired by problem; None where the
    problems are not the same, or several graders have judged a pair.
    """
    means = [(_measured(first, budget), _measured(second, budget)) for first, second in pairs]
    same = all(before and before.keys() == after.keys() for before, after in means)
    return intervals.mean_paired_difference(means) if same and not any(map(judged_by_several, pairs)) else None


def _measured(evaluation: EvaluationSummary, budget: int | None) -> intervals.Means:
    return evaluation.per_problem if budget is None else evaluation.regret[budget]


def judged_by_several(evaluations: Iterable[EvaluationSummary]) -> bool:
    """Whether several graders have judged them, so that a difference might be one of the graders."""
    return len(graders_of(*evaluations)) > 1


def evaluation_rows(evaluations: Sequence[EvaluationSummary]) -> list[EvaluationRow]:
    """All evaluations by benchmark and version, each with its gain over the benchmark's first version."""
    rows = []
    for first, *others in by_benchmark(evaluations).values():
        gains = (_gain([(first, evaluation)]) for evaluation in others)
        rows += [
            EvaluationRow(each, gain, first.version)
            for each, gain in zip((first, *others), (None, *gains), strict=True)
        ]
    return rows


def mean_rows(evaluations: Sequence[EvaluationSummary]) -> list[MeanRow]:
    """The mean over benchmarks of the versions evaluated on all of them; empty for fewer than two benchmarks."""
    groups = list(by_benchmark(evaluations).values())
    if len(groups) < 2:
        return []
    by_version = [{evaluation.version: evaluation for evaluation in group} for group in groups]
    shared = sorted(set.intersection(*(set(versions) for versions in by_version)))
    rows = []
    for version in shared:
        pairs = [(versions[shared[0]], versions[version]) for versions in by_version]
        gain = None if version == shared[0] else _gain(pairs)
        rows.append(MeanRow(version, mean_of(*(this.per_problem for _, this in pairs)), gain))
    return [row for row in rows if row.difference or row.version == shared[0]]


def regret_rows(evaluations: Sequence[EvaluationSummary]) -> list[RegretRow]:
    """Normalised regret by benchmark, budget and version, each with its change from the benchmark's first version."""
    rows = []
    for versions in by_benchmark(evaluations).values():
        for budget in sorted({budget for evaluation in versions for budget in evaluation.regret}):
            valued = [evaluation for evaluation in versions if evaluation.regret.get(budget)]
            for evaluation in valued:
                first, counted = valued[0], evaluation.regret_tokens
                compared = evaluation is not first and counted == first.regret_tokens
                change = _gain([(first, evaluation)], budget) if compared else None
                regret = mean_of(evaluation.regret[budget])
                rows.append(RegretRow(evaluation.benchmark, evaluation.version, budget, counted, regret, change))
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
    """At most ``most`` of the iterations: the first, others at equal steps from it, and the last."""
    if len(iterations) <= most:
        return list(iterations)
    step = math.ceil((len(iterations) - 1) / (most - 1))
    return [*iterations[:-1:step], iterations[-1]]


def by_benchmark(evaluations: Sequence[EvaluationSummary]) -> dict[str, list[EvaluationSummary]]:
    """Evaluations by benchmark in the order given, versions ascending."""
    groups: dict[str, list[EvaluationSummary]] = {}
    for evaluation in evaluations:
        groups.setdefault(evaluation.benchmark, []).append(evaluation)
    return {benchmark: sorted(group, key=lambda evaluation: evaluation.version) for benchmark, group in groups.items()}
