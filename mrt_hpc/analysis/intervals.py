"""Accuracies with their uncertainty, and what a comparison of them can show.

Problems are the independent draws, not samples: the n samples of one problem share its difficulty, so every interval
here varies over problems (Miller 2024, *Adding Error Bars to Evals*, clustered standard errors). Intervals are 95 %.

- **Shares** (pass@1, pass@k, maj@k, regret: a number in [0, 1] of each problem) have Wilson's score interval with an
  effective number of problems, see ``share_interval``. A t interval misses the truth on one side where most problems
  are easy or most are hard: with 30 problems that resemble MATH500 it covered regret in 91 % of the trials.
- **Tokens** have a t interval of their mean's logarithm.
- **Differences** have t intervals over the paired differences of the problems. Where only one problem in ten gains
  anything, they cover less than they say with 30 problems (86 to 94 %).
- **Differences of arms**, each of several training seeds, have t intervals over seeds and problems, see
  ``crossed_gain``. ``tests/benchmarks/bench_seeds.py`` measures them.
- **Ratios of sums** over problems, such as means over all traces where problems have different numbers of them, have
  t intervals of the linearised ratio (Cochran 1977, *Sampling Techniques*, Section 6.4). With 30 very hard problems
  they cover 88 to 91 %.

``tests/benchmarks/bench_coverage.py`` measures all of this; its table lies in ``tests/benchmarks/results/coverage``.
"""

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


def wilson(correct: float, total: float, quantile: float = Z) -> IntervalEstimate:
    """Wilson's score interval of a proportion; never of width zero, and never outside [0, 1].

    Args:
        correct: of the draws; not necessarily a whole number.
        total: the draws, or the effective number of draws.
        quantile: the standard errors of half a 95 % interval; more than the normal law's where the error is estimated
            from few values.

    Raises:
        ValueError: there is no draw.
    """
    if total <= 0:
        raise ValueError("a proportion of nothing has no interval")
    share, square = correct / total, quantile**2
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = quantile / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return IntervalEstimate(share, max(0.0, centre - half), min(1.0, centre + half))


def t_quantile(degrees: float) -> float:
    """The two-sided 95 % quantile of Student's t.

    Args:
        degrees: of freedom; fractions, as Welch's formula gives them, are fine.
    """
    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def two_sided_p(deviates: float, degrees: float) -> float:
    """The two-sided p-value of so many standard errors, by Student's t."""
    return float(2 * stdtr(degrees, -deviates))


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
class VariancePart:
    """One independent part of a squared standard error."""

    size: float
    """Its estimate; infinite where nothing is known of it."""
    degrees: float
    """The degrees of freedom of the estimate."""


@dataclass(frozen=True)
class MeanGain:
    """A mean of paired gains of shares, and how uncertain it is."""

    mean: float
    problems: tuple[VariancePart, ...]
    """What the choice of problems adds to the squared error: one part a benchmark."""
    seeds: tuple[VariancePart, ...] = ()
    """What the choice of training seeds adds to it: one part for each arm of several runs."""

    @property
    def error(self) -> float:
        """The standard error; infinite where a single problem shows nothing of others."""
        return math.sqrt(sum(part.size for part in (*self.problems, *self.seeds)))

    @property
    def degrees(self) -> float:
        """The degrees of freedom of the error (Welch and Satterthwaite)."""
        if not math.isfinite(self.error):
            return 1.0
        return self.error**4 / sum(part.size**2 / part.degrees for part in (*self.problems, *self.seeds))

    @property
    def interval(self) -> IntervalEstimate:
        """The t interval, cut to what is possible."""
        half = t_quantile(self.degrees) * self.error if math.isfinite(self.error) else math.inf
        return IntervalEstimate(self.mean, max(-1.0, self.mean - half), min(1.0, self.mean + half))

    @property
    def p_value(self) -> float:
        """The p-value of the two-sided t test that there is no gain."""
        return two_sided_p(abs(self.mean) / self.error, self.degrees) if math.isfinite(self.error) else 1.0


def mean_gain(benchmarks: Sequence[tuple[Means, Means]]) -> MeanGain:
    """The mean over benchmarks of their paired gains; see ``mean_paired_difference``.

    Raises:
        UserError: the problems of a benchmark are not the same on both sides, or there are none.
    """
    return crossed_gain([_rows(before, after) for before, after in benchmarks])


def crossed_gain(benchmarks: Sequence[tuple[FloatArray, FloatArray]]) -> MeanGain:
    """The mean over benchmarks of the gain of one arm over another, where S runs of an arm, each with a training seed
    of its own, answer the same P problems as all other runs: problems are crossed with seeds, and seeds are nested in
    arms.

    The value of a run and a problem is taken as the sum of five parts: one of the arm, and random ones of the problem,
    the problem and the arm, the seed, and the seed and the problem (the noise of samples included). For arms a of S_a
    runs, the squared error of the gain is

        sum over a of B_a / S_a  +  max(0, G - sum over a of E_a / S_a) / P

    with B_a the variance of the means of an arm's runs, G the variance of the gains of the problems (of means over an
    arm's runs), and E_a the mean square of what is left of an arm's values when the means of its runs and of its
    problems are taken off. B_a and G both hold the part of seed and problem, hence E_a is taken off once. This is the
    split-plot layout of readers and cases, with seeds for readers (Hillis 2014, *A marginal-mean ANOVA approach for
    analyzing multireader multicase radiological imaging data*). Degrees of freedom are Satterthwaite's, of the parts
    as they stand here. An arm of one run shows no variance between seeds and has no such part: with one run in each arm
    the interval is that of paired gains, and says nothing of other seeds.

    Args:
        benchmarks: for each, the values of both arms, [S, P] each: one row a run, in the same order on all benchmarks.
    """
    gains = [after.mean(axis=0) - before.mean(axis=0) for before, after in benchmarks]
    count = len(benchmarks)
    problems = [_problem_part(gains_P, pair) for gains_P, pair in zip(gains, benchmarks, strict=True)]
    of_arms = [_seed_part([pair[arm] for pair in benchmarks]) for arm in (0, 1)]
    return MeanGain(
        float(np.mean([gains_P.mean() for gains_P in gains])),
        tuple(VariancePart(part.size / count**2, part.degrees) for part in problems),
        tuple(part for part in of_arms if part is not None),
    )


def crossed_share(values_SP: FloatArray) -> IntervalEstimate:
    """The mean of a share in [0, 1] over S runs with a seed each and P problems, with Wilson's interval of the
    effective number of draws that are as uncertain (see ``share_interval``) and Student's quantile.

    Args:
        values_SP: [S, P] one row a run, of which there are two at least.
    """
    problems = values_SP.shape[1]
    gain = crossed_gain([(np.zeros((1, problems)), values_SP)])
    if np.ptp(values_SP) < ROUNDING:
        return wilson(gain.mean * problems, problems)
    if not math.isfinite(gain.error):
        return IntervalEstimate(gain.mean, 0.0, 1.0)
    effective = gain.mean * (1 - gain.mean) / gain.error**2
    return wilson(gain.mean * effective, effective, t_quantile(gain.degrees))


def _problem_part(gains_P: FloatArray, arms: tuple[FloatArray, FloatArray]) -> VariancePart:
    """What the choice of problems adds to the squared error of one benchmark's gain."""
    count = len(gains_P)
    if count == 1:
        return VariancePart(math.inf, 1.0)
    of_seeds = sum(_interaction(values_SP) / len(values_SP) for values_SP in arms if len(values_SP) > 1)
    return VariancePart(max(0.0, _squared_error(gains_P) - of_seeds / count), count - 1)


def _seed_part(benchmarks: Sequence[FloatArray]) -> VariancePart | None:
    """What the choice of an arm's seeds adds to the squared error; None for a single run.

    Means of runs that all agree do not show that those of further seeds would: what the problems alone make them
    differ is taken in place of their variance.

    Args:
        benchmarks: [S, P] for each.
    """
    runs = len(benchmarks[0])
    if runs == 1:
        return None
    means_S = np.mean([values_SP.mean(axis=1) for values_SP in benchmarks], axis=0)
    variance = float(means_S.var(ddof=1))
    if np.ptp(means_S) < ROUNDING:
        variance = sum(_interaction(v) / v.shape[1] for v in benchmarks) / len(benchmarks) ** 2
    return VariancePart(variance / runs, runs - 1)


def _interaction(values_SP: FloatArray) -> float:
    """The mean square of what is left of values when the means of rows and of columns are taken off."""
    runs, problems = values_SP.shape
    if problems == 1:
        return 0.0
    left_SP = values_SP - values_SP.mean(axis=1, keepdims=True) - values_SP.mean(axis=0) + values_SP.mean()
    return float((left_SP**2).sum() / ((runs - 1) * (problems - 1)))


def _squared_error(gains_P: FloatArray) -> float:
    """The squared standard error of the mean of P gains.

    Gains that all agree do not show that further ones would, so their spread is taken as if a whole win and a whole
    loss had been seen besides (Bonett and Price 2012).
    """
    if np.ptp(gains_P) < ROUNDING:
        gains_P = np.append(gains_P, [1.0, -1.0])
    return float(gains_P.var(ddof=1)) / len(gains_P)


def _rows(before: Means, after: Means) -> tuple[FloatArray, FloatArray]:
    """[1, P] the means of both sides, in the same order of problems."""
    if not before or before.keys() != after.keys():
        raise UserError(
            "a paired difference needs the same problems on both sides",
            value=sorted(before.keys() ^ after.keys())[:5],
            advice="evaluate both weights versions on the same benchmark file",
        )
    return np.array([list(before.values())]), np.array([[after[problem] for problem in before]])


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
    terms_P = _linearised(sums_P, counts_P)
    return crossed_gain([(np.zeros((1, len(terms_P))), terms_P[None])]).interval


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


MOST_SEEDS = 1000
"""More seeds than this are not looked for."""


def seeds_needed(gain: MeanGain, difference: float, together: int = 1) -> int | None:
    """The smallest number of seeds in each of two arms that can show a difference, with the same problems; None where
    more than ``MOST_SEEDS`` are needed, or no number can.

    Args:
        gain: of two arms, each of several runs.
        difference: to be shown, positive.
        together: m, see ``errors_to_show``.
    """
    for seeds in range(2, MOST_SEEDS + 1):
        parts = tuple(
            VariancePart(part.size * (part.degrees + 1) / seeds, seeds - 1) for part in gain.seeds
        )  # an arm of S runs has S - 1 degrees of freedom
        of_so_many = MeanGain(gain.mean, gain.problems, parts)
        if detectable(of_so_many.error, of_so_many.degrees, together) <= difference:
            return seeds
    return None


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
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(order), 0, -1) * np.array(p_values)[order]))
    return [float(p) for p in corrected]
