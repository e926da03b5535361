"""Accuracies with their uncertainty, and what a comparison of them can show.

Problems are the independent draws, not samples: the n samples of one problem share its difficulty, so every interval
here varies over problems (Miller 2024, *Adding Error Bars to Evals*, clustered standard errors). Intervals are 95 %.

- **Shares** (pass@1, pass@k, maj@k, regret: a number in [0, 1] of each problem) have Wilson's score interval with an
  effective number of problems, see ``share_interval``. A t interval misses the truth on one side where most problems
  are easy or most are hard: with 30 problems that resemble MATH500 it covered regret in 91 % of the trials.
- **Tokens** have a t interval of their mean's logarithm.
- **Differences** have t intervals over the paired differences of the problems. Where only one problem in ten gains
  anything, they cover less than they say with 30 problems (86 to 94 %).
- **Ratios of sums** over problems, such as means over all traces where problems have different numbers of them, have
  t intervals of the linearised ratio (Cochran 1977, *Sampling Techniques*, Section 6.4). With 30 very hard problems
  they cover 88 to 91 %.

``tests/benchmarks/bench_coverage.py`` measures all of this; its table lies in ``tests/benchmarks/results/coverage``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from mrt_hpc.errors import UserError

FloatArray = NDArray[np.float64]


CONFIDENCE = 0.95
Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


@dataclass(frozen=True)
class IntervalEstimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval leaves zero out: a difference that is more than chance would give."""
        return self.low > 0 or self.high < 0


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the unbiased chance that one of k samples is right, from n of which c are right.

    Raises:
        ValueError: k exceeds n, or the counts are impossible.
    """
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} cannot be estimated from {correct} correct of {samples} samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def pass_at_1(rewards: Sequence[Sequence[float]]) -> IntervalEstimate:
    """pass@1 of P problems with its interval: the mean over problems of the mean reward of their samples.

    With several samples a problem, ``share_interval`` of the P means. With one sample each, or where all means agree
    (all right, all wrong), their spread says nothing or too little, and Wilson's interval is taken.

    Args:
        rewards: [P][n] the rewards of each problem's samples, each in [0, 1].

    Raises:
        ValueError: there is no problem, or a problem without a sample.
    """
    if not rewards or not all(len(samples) for samples in rewards):
        raise ValueError("pass@1 needs at least one problem, and a sample for each")
    means_P = np.array([np.mean(samples) for samples in rewards])
    if all(len(samples) == 1 for samples in rewards):
        return wilson(float(means_P.sum()), len(means_P))
    return share_interval(means_P)


PSEUDO_PROBLEMS = 2
"""Problems with the variance of a single 0/1 draw that are added to those seen."""
LEAST_EFFECTIVE = 0.5
"""The smallest effective number of problems, as a share of those seen."""
ROUNDING = 1e-9
"""Numbers that differ by less than this are equal but for rounding."""


def share_interval(values_P: FloatArray) -> IntervalEstimate:
    """The mean of a share in [0, 1] over P problems, with Wilson's score interval of an effective number of problems.

    The effective number is the P_e of which 0/1 values with the same mean would have a mean as uncertain as this one
    (Korn and Graubard 1998; Franco et al. 2019). The interval thus leans towards the middle as Wilson's does. Few
    problems may by chance show too little spread, hence two more of the spread of 0/1 values are added to it. No values
    in [0, 1] vary more than 0/1 values do, so that P_e is far below P only because of the two added ones, where the
    mean is nearly 0 or 1; it is not taken smaller than P / 2. Where all values agree, their spread says nothing, and
    P_e is P.

    Args:
        values_P: [P] the share of each problem, for instance its mean reward or its maj@k.

    Raises:
        ValueError: there is no problem.
    """
    if not len(values_P):
        raise ValueError("an interval over problems needs at least one problem")
    mean, count = float(values_P.mean()), len(values_P)
    if np.ptp(values_P) < ROUNDING:
        return wilson(mean * count, count)
    centre = (mean * count + Z * Z / 2) / (count + Z * Z)  # Wilson's
    added = PSEUDO_PROBLEMS * centre * (1 - centre)
    variance = ((count - 1) * float(values_P.var(ddof=1)) + added) / (count - 1 + PSEUDO_PROBLEMS)
    effective = max(LEAST_EFFECTIVE * count, mean * (1 - mean) * count / variance)
    return wilson(mean * effective, effective)


def mean_of_shares(by_problem: Mapping[str, float]) -> IntervalEstimate:
    """The mean of a share with its interval; see ``share_interval``.

    Args:
        by_problem: the share of each problem.

    Raises:
        ValueError: there is no problem.
    """
    return share_interval(np.array(list(by_problem.values())))


def mean_interval(values_P: FloatArray) -> IntervalEstimate:
    """The mean of a positive measure, such as tokens, over P problems, with a t interval of its logarithm.

    A few problems have much longer traces than most, and the logarithm gives the interval the longer upper arm that
    this asks for.

    Args:
        values_P: [P] positive.

    Raises:
        ValueError: there are fewer than two problems, or their mean is not positive.
    """
    mean = float(values_P.mean()) if len(values_P) > 1 else 0.0
    if mean <= 0:
        raise ValueError("the interval of a positive mean needs two problems at least, and a mean above 0")
    relative = float(values_P.std(ddof=1)) / math.sqrt(len(values_P)) / mean
    factor = math.exp(t_quantile(len(values_P) - 1) * relative)
    return IntervalEstimate(mean, mean / factor, mean * factor)


def wilson(correct: float, total: float) -> IntervalEstimate:
    """Wilson's score interval of a proportion; never of width zero, and never outside [0, 1].

    Args:
        correct: of the draws; not necessarily a whole number.
        total: the draws, or the effective number of draws.

    Raises:
        ValueError: there is no draw.
    """
    if total <= 0:
        raise ValueError("a proportion of nothing has no interval")
    share, square = correct / total, Z * Z
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = Z / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return IntervalEstimate(share, max(0.0, centre - half), min(1.0, centre + half))


def t_quantile(degrees: float) -> float:
    """The two-sided 95 % quantile of Student's t.

    Args:
        degrees: of freedom; fractions, as Welch's formula gives them, are fine.
    """
    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))


Means = Mapping[str, float]
"""Mean reward by problem id."""


def paired_difference(before: Means, after: Means) -> IntervalEstimate:
    """The mean gain from ``before`` to ``after`` over the same P problems, with a t interval over the P gains.

    Pairing by problem takes the difficulty of the problems out of the difference: its interval is narrower than two
    separate ones suggest.

    Args:
        before: of the earlier weights version; each in [0, 1].
        after: of the later one.

    Raises:
        UserError: the problems are not the same, or there are none.
    """
    return mean_paired_difference([(before, after)])


def mean_paired_difference(benchmarks: Sequence[tuple[Means, Means]]) -> IntervalEstimate:
    """The mean over benchmarks of their paired gains, with Welch's t interval; problems vary within each benchmark.

    Where a benchmark has a single problem, its variance is unknown, and the interval is all that is possible, -1 to 1.

    Raises:
        UserError: the problems of a benchmark are not the same on both sides, or there are none.
    """
    return mean_gain(benchmarks).interval


@dataclass(frozen=True)
class MeanGain:
    """A mean of paired gains of shares, and how uncertain it is."""

    mean: float
    error: float
    """Its standard error; infinite where a single problem shows nothing of others."""
    degrees: float
    """The degrees of freedom."""

    @property
    def interval(self) -> IntervalEstimate:
        """The t interval, cut to what is possible."""
        half = t_quantile(self.degrees) * self.error if math.isfinite(self.error) else math.inf
        return IntervalEstimate(self.mean, max(-1.0, self.mean - half), min(1.0, self.mean + half))

    @property
    def p_value(self) -> float:
        """The p-value of the two-sided t test that there is no gain."""
        return float(2 * stdtr(self.degrees, -abs(self.mean) / self.error)) if math.isfinite(self.error) else 1.0


def mean_gain(benchmarks: Sequence[tuple[Means, Means]]) -> MeanGain:
    """The mean over benchmarks of their paired gains; see ``mean_paired_difference``.

    Raises:
        UserError: the problems of a benchmark are not the same on both sides, or there are none.
    """
    return _mean_gain([_gains(before, after) for before, after in benchmarks])


def _mean_gain(gains: Sequence[FloatArray]) -> MeanGain:
    """The mean over benchmarks of the gains of their problems."""
    mean = float(np.mean([gains_P.mean() for gains_P in gains]))
    if any(len(gains_P) == 1 for gains_P in gains):
        return MeanGain(mean, math.inf, 1.0)
    squares = np.array([_squared_error(gains_P) for gains_P in gains]) / len(gains) ** 2
    degrees = np.array([len(gains_P) - 1 for gains_P in gains])
    return MeanGain(mean, math.sqrt(squares.sum()), float(squares.sum() ** 2 / (squares**2 / degrees).sum()))


def _squared_error(gains_P: FloatArray) -> float:
    """The squared standard error of the mean of P gains.

    Gains that all agree do not show that further ones would, so their spread is taken as if a whole win and a whole
    loss had been seen besides (Bonett and Price 2012).
    """
    if np.ptp(gains_P) < ROUNDING:
        gains_P = np.append(gains_P, [1.0, -1.0])
    return float(gains_P.var(ddof=1)) / len(gains_P)


def _gains(before: Means, after: Means) -> FloatArray:
    """[P] gain of each problem."""
    if not before or before.keys() != after.keys():
        raise UserError(
            "a paired difference needs the same problems on both sides",
            value=sorted(before.keys() ^ after.keys())[:5],
            advice="evaluate both weights versions on the same benchmark file",
        )
    return np.array([after[problem] - before[problem] for problem in before])


def ratio_interval(numerators_P: FloatArray, denominators_P: FloatArray) -> IntervalEstimate:
    """The ratio of two sums over P problems, with a t interval of the linearised ratio; a single problem shows none.

    Args:
        numerators_P: [P] one of each problem.
        denominators_P: [P] one of each problem; their sum is positive.

    Raises:
        ValueError: the denominators have no positive sum.
    """
    terms_P = _linearised(numerators_P, denominators_P)
    mean, count = float(terms_P.mean()), len(terms_P)
    if count == 1:
        return IntervalEstimate(mean, -math.inf, math.inf)
    half = t_quantile(count - 1) * float(terms_P.std(ddof=1)) / math.sqrt(count)
    return IntervalEstimate(mean, mean - half, mean + half)


def _linearised(numerators_P: FloatArray, denominators_P: FloatArray) -> FloatArray:
    """[P] numbers whose mean is the ratio of two sums, and varies as the ratio does.

    Raises:
        ValueError: the denominators have no positive sum.
    """
    total = float(denominators_P.sum())
    if total <= 0:
        raise ValueError("a ratio needs a positive sum below the line")
    ratio = float(numerators_P.sum()) / total
    return ratio + (numerators_P - ratio * denominators_P) * (len(denominators_P) / total)


def clustered_mean(samples: Sequence[Sequence[float]]) -> IntervalEstimate:
    """The mean of all samples of P problems, each in [-1, 1], with an interval that is clustered by problem.

    Samples that all agree have the interval that gains have which all agree.

    Args:
        samples: [P][n] those of each problem, at least one.

    Raises:
        ValueError: there is no sample.
    """
    sums_P, counts_P = (np.array([of(mine) for mine in samples], float) for of in (sum, len))
    return _mean_gain([_linearised(sums_P, counts_P)]).interval


# -- power: the smallest difference that a comparison can show, and the problems or samples that a given one needs
#
# A difference counts as shown when it is found in 80 % of repeated experiments by a two-sided test at 5 %, that is when
# it is t(0.975) + t(0.8) standard errors large. Of m comparisons that are corrected together, each is tested at 5 % / m
# (Bonferroni's level: Holm's correction asks for no more).


POWER = 0.8
SIGNIFICANCE = 1 - CONFIDENCE


def errors_to_show(degrees: float, together: int = 1) -> float:
    """The number of standard errors that a difference has to have.

    Args:
        degrees: of freedom of the standard error.
        together: m, the number of comparisons that are corrected together.
    """
    return float(stdtrit(degrees, 1 - SIGNIFICANCE / together / 2) + stdtrit(degrees, POWER))


def detectable(error: float, degrees: float, together: int = 1) -> float:
    """The smallest difference that a comparison can show.

    Args:
        error: the standard error of the difference.
        degrees: of freedom.
        together: m, see ``errors_to_show``.
    """
    return errors_to_show(degrees, together) * error


def problems_needed(variance: float, difference: float, together: int = 1) -> int:
    """The smallest number of problems that can show a difference.

    Args:
        variance: of the gain of one problem, its samples included.
        difference: to be shown, positive.
        together: m, see ``errors_to_show``.
    """
    least = variance * (errors_to_show(math.inf, together) / difference) ** 2  # with t it takes a few more
    problems = max(2, math.ceil(least))
    while detectable(math.sqrt(variance / problems), problems - 1, together) > difference:
        problems += 1
    return problems


@dataclass(frozen=True)
class Spread:
    """The variance of paired gains in two parts."""

    between: float
    """The variance of the true gains of the problems."""
    within: float
    """The variance of the gain of one problem from one sample on each side; divided by n with n samples."""


def spread_of(before: Mapping[str, FloatArray], after: Mapping[str, FloatArray]) -> Spread | None:
    """The parts of the variance of the gains of P problems; None where a problem has a single sample, and where no
    sample differs from another: then nothing is known of the variance.

    Where both sides have the same number of samples, these are taken in pairs, since both may have been sampled with
    the same random numbers.

    Args:
        before: the terms of each problem, whose mean is its value.
        after: of the same problems, of which there are at least two.
    """
    pairs = [(before[problem], after[problem]) for problem in before]
    if any(min(len(a), len(b)) < 2 for a, b in pairs):
        return None
    noise = np.array([_noise(a, b) for a, b in pairs])  # [P, 2]
    gains_P = np.array([b.mean() - a.mean() for a, b in pairs])
    within, of_means = noise.mean(axis=0)
    if within == 0 and np.ptp(gains_P) == 0:
        return None
    return Spread(max(0.0, float(gains_P.var(ddof=1) - of_means)), float(within))


def _noise(before: FloatArray, after: FloatArray) -> tuple[float, float]:
    """The variance of the gain of one problem from one sample on each side, and from all its samples."""
    if len(before) == len(after):
        single = float((after - before).var(ddof=1))
        return single, single / len(before)
    variances = float(before.var(ddof=1)), float(after.var(ddof=1))
    return sum(variances), variances[0] / len(before) + variances[1] / len(after)


def samples_needed(spread: Spread, problems: int, difference: float, together: int = 1) -> int | None:
    """The smallest number of samples a problem that can show a difference; None where no number can.

    Args:
        spread: of the gains.
        problems: how many there are, at least two.
        difference: to be shown, positive.
        together: m, see ``errors_to_show``.
    """
    room = problems * (difference / errors_to_show(problems - 1, together)) ** 2 - spread.between
    return max(1, math.ceil(spread.within / room)) if room > 0 else None


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, corrected so that 5 % is the chance of any false finding (Holm 1979).

    The smallest is multiplied by their number m, the next by m - 1 and so on; none is smaller than one before it.
    """
    corrected = [0.0] * len(p_values)
    least = 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected
