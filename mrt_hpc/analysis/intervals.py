"""Accuracies with their uncertainty, and what a comparison of them can show.

The n samples of a problem share its difficulty, so every 95 % interval varies over problems (Miller 2024, *Adding Error
Bars to Evals*, clustered standard errors).

- **Shares** (pass@1, pass@k, maj@k, regret): Wilson's score interval with an effective number of problems.
- **Tokens**: a t interval of their mean's logarithm.
- **Differences**: t over the paired differences of problems; of arms of several training seeds, see ``crossed_gain``.
- **Ratios of sums** over problems: t of the linearised ratio (Cochran 1977, *Sampling Techniques*, Section 6.4).
"""

import math
from collections.abc import Callable, Mapping, Sequence
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
    mean: float
    low: float
    high: float

    @property
    def cells(self) -> tuple[float, float, float]:
        return self.mean, self.low, self.high

    def text(self, written: Callable[[float], str]) -> str:
        """A text such as ``28.1 % (20.4 % to 37.3 %)``, or without an interval."""
        mean, low, high = map(written, self.cells)
        return f"{mean} ({low} to {high})" if math.isfinite(self.low) else mean

    def decimals(self, form: str = ".3f") -> str:
        """A text such as ``0.412 (0.350 to 0.470)``."""
        text = self.text(f"{{:{form}}}".format)
        return text if math.isfinite(self.low) else f"{text} (no interval)"

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the unbiased chance that one of k samples is right, from n of which c are right."""
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} cannot be estimated from {correct} correct of {samples} samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def pass_at_1(rewards: Sequence[Sequence[float]]) -> IntervalEstimate:
    """The mean over P problems of the mean reward of their samples, with its interval. ``rewards`` are [P][n] in [0,
    1].

    With several samples a problem it is the ``share_interval`` of the P means. With one each, or where all means agree,
    their spread says too little, and it is Wilson's interval.
    """
    if not rewards or not all(len(samples) for samples in rewards):
        raise ValueError("pass@1 needs at least one problem, and a sample for each")
    means_P = np.array([np.mean(samples) for samples in rewards])
    if all(len(samples) == 1 for samples in rewards):
        return wilson(float(means_P.sum()), len(means_P))
    return share_interval(means_P)


PSEUDO_PROBLEMS = 2
"""Problems with the variance of one 0/1 draw, added to those seen."""
LEAST_EFFECTIVE = 0.5
"""As a share of the problems seen."""
ROUNDING = 1e-9
"""Numbers that differ by less are equal but for rounding."""


def share_interval(values_P: FloatArray) -> IntervalEstimate:
    """The mean of a share in [0, 1] over P problems, with Wilson's score interval of an effective number of problems.

    This is the P_e of which 0/1 values with the same mean would have a mean as uncertain (Korn and Graubard 1998;
    Franco et al. 2019). Few problems may by chance show too little spread, hence two more with that of 0/1 values are
    added. P_e is at least P / 2, and P where all values agree.
    """
    if not len(values_P):
        raise ValueError("an interval over problems needs at least one problem")
    mean, count = float(values_P.mean()), len(values_P)
    if np.ptp(values_P) < ROUNDING:
        return wilson(mean * count, count)
    effective = mean * (1 - mean) * count / _variance_of_shares(values_P)
    return wilson(mean * effective, effective)


def _variance_of_shares(values_P: FloatArray) -> float:
    mean, count = float(values_P.mean()), len(values_P)
    centre = (mean * count + Z * Z / 2) / (count + Z * Z)  # Wilson's
    added = PSEUDO_PROBLEMS * centre * (1 - centre)
    variance = ((count - 1) * float(values_P.var(ddof=1)) + added) / (count - 1 + PSEUDO_PROBLEMS)
    return min(variance, mean * (1 - mean) / LEAST_EFFECTIVE)


def mean_of_shares(by_problem: Mapping[str, float]) -> IntervalEstimate:
    return share_interval(np.array(list(by_problem.values())))


def mean_interval(values_P: FloatArray) -> IntervalEstimate:
    """The mean of a positive measure, such as tokens, over P problems, at least two. A t interval of the logarithm has
    the longer upper arm that a few very long traces ask for.
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
        correct: not necessarily whole.
        total: the draws, or their effective number.
        quantile: standard errors of half an interval; larger where the error is estimated from few values.
    """
    if total <= 0:
        raise ValueError("a proportion of nothing has no interval")
    share, square = correct / total, quantile**2
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = quantile / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return IntervalEstimate(share, max(0.0, centre - half), min(1.0, centre + half))


def t_quantile(degrees: float) -> float:
    """The two-sided 95 % quantile of Student's t; degrees of freedom may be fractions."""
    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def two_sided_p(deviates: float, degrees: float) -> float:
    return float(2 * stdtr(degrees, -deviates))


Means = Mapping[str, float]
"""Mean reward by problem id."""


def paired_difference(before: Means, after: Means) -> IntervalEstimate:
    """The mean gain from ``before`` to ``after`` over the same P problems, with a t interval over the P gains. Pairing
    takes the problems' difficulty out, so the interval is narrower than two separate ones suggest.
    """
    return mean_gain([(before, after)]).interval


@dataclass(frozen=True)
class VariancePart:
    """One independent part of a squared standard error."""

    size: float
    """Infinite where nothing is known of it."""
    degrees: float
    arms: int = 1
    """The arms with these seeds; each has as many runs."""


@dataclass(frozen=True)
class MeanGain:
    mean: float
    problems: tuple[VariancePart, ...]
    """From the choice of problems: one part a benchmark."""
    seeds: tuple[VariancePart, ...] = ()
    """From the choice of training seeds: one part for each arm of several runs, or for both together."""

    @property
    def error(self) -> float:
        """The standard error; infinite where a single problem shows nothing of others."""
        return math.sqrt(sum(part.size for part in (*self.problems, *self.seeds)))

    @property
    def degrees(self) -> float:
        """The degrees of freedom by Welch and Satterthwaite."""
        if not math.isfinite(self.error):
            return 1.0
        return self.error**4 / sum(part.size**2 / part.degrees for part in (*self.problems, *self.seeds))

    @property
    def cells(self) -> tuple[float, float, float, float]:
        return (*self.interval.cells, self.p_value)

    @property
    def interval(self) -> IntervalEstimate:
        """The t interval, cut to the possible range."""
        half = t_quantile(self.degrees) * self.error if math.isfinite(self.error) else math.inf
        return IntervalEstimate(self.mean, max(-1.0, self.mean - half), min(1.0, self.mean + half))

    @property
    def p_value(self) -> float:
        """The p-value of the two-sided t test that there is no gain."""
        return two_sided_p(abs(self.mean) / self.error, self.degrees) if math.isfinite(self.error) else 1.0


def mean_gain(benchmarks: Sequence[tuple[Means, Means]]) -> MeanGain:
    """The mean over benchmarks of their paired gains. Of a single problem the variance is unknown, and the interval is
    the possible range, -1 to 1.
    """
    return crossed_gain([_rows(before, after) for before, after in benchmarks])


def crossed_gain(benchmarks: Sequence[tuple[FloatArray, FloatArray]], *, paired: bool = False) -> MeanGain:
    """The mean over benchmarks of the gain of one arm over another. S runs of an arm, each with its own training seed,
    answer the same P problems. For arms a of S_a runs, the squared error of the gain is

        sum over a of max(B_a, E_a / P) / S_a  +  max(0, G - sum over a of E_a / S_a) / P

    ``docs/evaluation.md`` defines the terms and the degrees of freedom (Hillis 2014).

    Args:
        benchmarks: the values of both arms, [S, P] each: one row a run, in the same order on all benchmarks.
        paired: whether the runs of a row share what a seed decides. Seeds are then crossed with arms, and the gains of
            the rows are treated as one arm of S runs.
    """
    if paired:
        benchmarks = [(np.zeros((1, after.shape[1])), after - before) for before, after in benchmarks]
    gains = [after.mean(axis=0) - before.mean(axis=0) for before, after in benchmarks]
    count = len(benchmarks)
    problems = [_problem_part(gains_P, pair) for gains_P, pair in zip(gains, benchmarks, strict=True)]
    return MeanGain(
        float(np.mean([gains_P.mean() for gains_P in gains])),
        tuple(VariancePart(part.size / count**2, part.degrees) for part in problems),
        _seed_parts([[pair[arm] for pair in benchmarks] for arm in (0, 1)]),
    )


def crossed_share(values_SP: FloatArray) -> IntervalEstimate:
    """The mean of a share in [0, 1] over S runs (two at least) of a seed each and P problems: Wilson's interval of the
    effective number of draws, with Student's quantile. Problems vary as in ``share_interval``, seeds as in
    ``crossed_gain``.
    """
    runs, problems = values_SP.shape
    mean = float(values_SP.mean())
    if np.ptp(values_SP) < ROUNDING:
        return wilson(mean * problems, problems)
    if problems == 1:
        return IntervalEstimate(mean, 0.0, 1.0)
    means_P = values_SP.mean(axis=0)
    variance = _variance_of_shares(means_P) if np.ptp(means_P) > ROUNDING else mean * (1 - mean)
    of_problems = max(0.0, variance - _interaction(values_SP) / runs) / problems
    gain = MeanGain(mean, (VariancePart(of_problems, problems - 1),), _seed_parts([[values_SP]]))
    effective = mean * (1 - mean) / gain.error**2
    return wilson(mean * effective, effective, t_quantile(gain.degrees))


def _problem_part(gains_P: FloatArray, arms: tuple[FloatArray, FloatArray]) -> VariancePart:
    count = len(gains_P)
    if count == 1:
        return VariancePart(math.inf, 1.0)
    of_seeds = sum(_interaction(values_SP) / len(values_SP) for values_SP in arms if len(values_SP) > 1)
    return VariancePart(max(0.0, _squared_error(gains_P) - of_seeds / count), count - 1)


def _seed_parts(arms: Sequence[Sequence[FloatArray]]) -> tuple[VariancePart, ...]:
    """The parts of arms with several runs; ``arms`` are [S, P] for each benchmark. Where all seeds were equal, the
    variance of means would be its floor.
    """
    found = []
    for arm in (arm for arm in arms if len(arm[0]) > 1):
        means_S = np.mean([values_SP.mean(axis=1) for values_SP in arm], axis=0)
        variance = float(means_S.var(ddof=1))  # B of crossed_gain
        floor = sum(_interaction(values_SP) / values_SP.shape[1] for values_SP in arm) / len(arm) ** 2  # E / P
        found.append((len(arm[0]), variance, floor))
    if len({runs for runs, _, _ in found}) < len(found):
        runs, variance, floor = found[0][0], sum(v for _, v, _ in found), sum(f for *_, f in found)
        return (VariancePart(max(variance, floor) / runs, len(found) * (runs - 1), len(found)),)
    return tuple(VariancePart(max(variance, floor) / runs, runs - 1) for runs, variance, floor in found)


def _interaction(values_SP: FloatArray) -> float:
    """E of ``crossed_gain``."""
    runs, problems = values_SP.shape
    if problems == 1:
        return 0.0
    left_SP = values_SP - values_SP.mean(axis=1, keepdims=True) - values_SP.mean(axis=0) + values_SP.mean()
    return float((left_SP**2).sum() / ((runs - 1) * (problems - 1)))


def _squared_error(gains_P: FloatArray) -> float:
    """The squared standard error of the mean of P gains. Gains that all agree do not show that further ones would: a
    whole win and a whole loss are added (Bonett and Price 2012).
    """
    if np.ptp(gains_P) < ROUNDING:
        gains_P = np.append(gains_P, [1.0, -1.0])
    return float(gains_P.var(ddof=1)) / len(gains_P)


def _rows(before: Means, after: Means) -> tuple[FloatArray, FloatArray]:
    """[1, P] each, in one order of problems."""
    if not before or before.keys() != after.keys():
        raise UserError(
            "a paired difference needs the same problems on both sides",
            value=sorted(before.keys() ^ after.keys())[:5],
            advice="evaluate both weights versions on the same benchmark file",
        )
    return np.array([list(before.values())]), np.array([[after[problem] for problem in before]])


def ratio_interval(numerators_P: FloatArray, denominators_P: FloatArray) -> IntervalEstimate:
    """The ratio of two sums over P problems, with a t interval of the linearised ratio, none for a single problem. The
    denominators have a positive sum.
    """
    terms_P = _linearise(numerators_P, denominators_P)
    mean, count = float(terms_P.mean()), len(terms_P)
    if count == 1:
        return IntervalEstimate(mean, -math.inf, math.inf)
    half = t_quantile(count - 1) * float(terms_P.std(ddof=1)) / math.sqrt(count)
    return IntervalEstimate(mean, mean - half, mean + half)


def _linearise(numerators_P: FloatArray, denominators_P: FloatArray) -> FloatArray:
    """[P] numbers whose mean is the ratio of two sums, and varies as the ratio does."""
    total = float(denominators_P.sum())
    if total <= 0:
        raise ValueError("a ratio needs a positive sum below the line")
    ratio = float(numerators_P.sum()) / total
    return ratio + (numerators_P - ratio * denominators_P) * (len(denominators_P) / total)


def clustered_mean(samples: Sequence[Sequence[float]]) -> IntervalEstimate:
    """The mean of all samples of P problems, each in [-1, 1], with an interval clustered by problem."""
    sums_P, counts_P = (np.array([of(mine) for mine in samples], float) for of in (sum, len))
    terms_P = _linearise(sums_P, counts_P)
    return crossed_gain([(np.zeros((1, len(terms_P))), terms_P[None])]).interval


# -- power: the smallest difference that a comparison can show, and the problems or samples that a given one needs
#
# A difference counts as shown when it is found in 80 % of repeated experiments by a two-sided test at 5 %, that is when
# it is t(0.975) + t(0.8) standard errors large. Of m comparisons that are corrected together, each is tested at 5 % / m
# (Bonferroni's level: Holm's correction asks for no more).


POWER = 0.8
SIGNIFICANCE = 1 - CONFIDENCE


def errors_to_show(degrees: float, together: int = 1) -> float:
    """Standard errors that a difference must have, corrected for m comparisons ``together``."""
    return float(stdtrit(degrees, 1 - SIGNIFICANCE / together / 2) + stdtrit(degrees, POWER))


def detectable(error: float, degrees: float, together: int = 1) -> float:
    return errors_to_show(degrees, together) * error


def problems_needed(variance: float, difference: float, together: int = 1) -> int:
    """The fewest problems that can show a positive difference. ``variance`` is that of one problem's gain, its samples
    included.
    """
    least = variance * (errors_to_show(math.inf, together) / difference) ** 2  # with t it takes a few more
    problems = max(2, math.ceil(least))
    while detectable(math.sqrt(variance / problems), problems - 1, together) > difference:
        problems += 1
    return problems


MOST_SEEDS = 1000


def seeds_needed(gain: MeanGain, difference: float, together: int = 1) -> int | None:
    """The fewest seeds in each of two arms that can show a positive difference with the same problems; None above
    ``MOST_SEEDS``, or where no number can.
    """
    for seeds in range(2, MOST_SEEDS + 1):
        parts = tuple(
            VariancePart(part.size * (part.degrees / part.arms + 1) / seeds, part.arms * (seeds - 1), part.arms)
            for part in gain.seeds
        )  # an arm of S runs has S - 1 degrees of freedom
        of_so_many = MeanGain(gain.mean, gain.problems, parts)
        if detectable(of_so_many.error, of_so_many.degrees, together) <= difference:
            return seeds
    return None


@dataclass(frozen=True)
class Spread:
    between: float
    """Of the true gains of the problems."""
    within: float
    """Of the gain of one problem from one sample on each side; divided by n with n samples."""


def spread_of(before: Mapping[str, FloatArray], after: Mapping[str, FloatArray]) -> Spread | None:
    """The parts of the variance of the gains of P problems, at least two; None where a problem has a single sample, or
    no sample differs from another. Both sides hold the terms of each problem, whose mean is its value. Equal numbers of
    samples are taken in pairs, since both sides may share their random numbers.
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
    """The variance of one problem's gain, from one sample on each side and from all its samples."""
    if len(before) == len(after):
        single = float((after - before).var(ddof=1))
        return single, single / len(before)
    variances = float(before.var(ddof=1)), float(after.var(ddof=1))
    return sum(variances), variances[0] / len(before) + variances[1] / len(after)


def samples_needed(spread: Spread, problems: int, difference: float, together: int = 1) -> int | None:
    """The fewest samples a problem that can show a positive difference; None where no number can."""
    room = problems * (difference / errors_to_show(problems - 1, together)) ** 2 - spread.between
    return max(1, math.ceil(spread.within / room)) if room > 0 else None


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several comparisons, corrected so that 5 % is the chance of any false finding (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(order), 0, -1) * np.array(p_values)[order]))
    return [float(p) for p in corrected]
