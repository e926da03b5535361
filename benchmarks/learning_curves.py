"""The gain of an arm over another during training, in two parts: more learnt in as many updates, and dearer updates.

An arm that asks a prover pays for branches, so that at equal cost it has had fewer updates. **Credit** is the arm less
the other one after as many updates; **cost** is the other one after so many updates less itself after those that the
same budget pays for. Their sum is the difference at equal cost. The budget is the smaller total of the pair, seed by
seed.

Between evaluations a measure is read from a monotone cubic of its log-odds (PCHIP: Fritsch and Carlson 1980), as a
straight line lies below a flattening curve. Intervals are a percentile bootstrap over seeds and problems, which with
five seeds may cover less than it says, and t over the seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.special import expit, logit

from mrt_hpc.analysis.intervals import FloatArray, IntervalEstimate, t_quantile

RESAMPLES = 2000


@dataclass(frozen=True)
class LearningCurve:
    """A measure of one run at its E evaluations."""

    updates_E: FloatArray
    """Weights versions, from 0 on."""
    spent_E: FloatArray
    """The run's cost until then."""
    values_EP: FloatArray
    """A share in [0, 1] of each problem."""

    def updates_for(self, spent_F: FloatArray) -> FloatArray:
        return np.interp(spent_F, self.spent_E, self.updates_E)

    def mean_at(self, updates_F: FloatArray, weights_RP: FloatArray) -> FloatArray:
        """[F, R] the mean over problems after so many updates, for each of R ways to weight the problems. Half a
        problem is taken away from a mean of 0 or 1.
        """
        least = 0.5 / self.values_EP.shape[1]
        means_ER = np.clip(self.values_EP @ weights_RP.T, least, 1 - least)
        return np.asarray(expit(PchipInterpolator(self.updates_E, logit(means_ER))(updates_F)))


@dataclass(frozen=True)
class Contrast:
    """An arm against another one: S pairs of runs, at F shares of the budget of each, for R weightings of problems."""

    reference_SFR: FloatArray
    cost_SFR: FloatArray
    credit_SFR: FloatArray

    @property
    def total_SFR(self) -> FloatArray:
        """The difference at equal cost."""
        return self.cost_SFR + self.credit_SFR


def contrast(
    reference: Sequence[LearningCurve], arm: Sequence[LearningCurve], shares_F: FloatArray, weights_RP: FloatArray
) -> Contrast:
    """Compare an arm with another one at shares of the budget, as 0.5 and 1. Each has one curve a seed, in the same
    order of seeds. ``weights_RP`` weight the problems in a mean; each row adds up to 1.
    """
    pairs = [_parts(*pair, shares_F, weights_RP) for pair in zip(reference, arm, strict=True)]
    return Contrast(*(np.array(part) for part in zip(*pairs, strict=True)))


def _parts(
    reference: LearningCurve, arm: LearningCurve, shares_F: FloatArray, weights_RP: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[F, R] each: the reference at the budget, cost and credit of one pair."""
    spent_F = shares_F * min(reference.spent_E[-1], arm.spent_E[-1])
    paid_F = arm.updates_for(spent_F)
    at_budget = reference.mean_at(reference.updates_for(spent_F), weights_RP)
    at_updates = reference.mean_at(paid_F, weights_RP)
    return at_budget, at_updates - at_budget, arm.mean_at(paid_F, weights_RP) - at_updates


# -- intervals


@dataclass(frozen=True)
class SeededEstimate:
    """A mean over seeds and problems with two 95 % intervals."""

    drawn: IntervalEstimate
    """Over seeds and problems, by the bootstrap."""
    over_seeds: IntervalEstimate
    """Over the means of seeds, by Student's t; not finite for one seed."""


@dataclass(frozen=True)
class Draws:
    """R ways to take S seeds and P problems: first all of them, then draws with replacement."""

    seeds_RS: NDArray[np.int64]
    weights_RP: FloatArray

    @classmethod
    def of(cls, seeds: int, problems: int) -> Self:
        """Problems are drawn once for all seeds."""
        rng = np.random.default_rng(0)
        drawn = rng.integers(seeds, size=(RESAMPLES, seeds))
        counts = rng.multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES)
        return cls(np.vstack([np.arange(seeds), drawn]), np.vstack([np.ones(problems), counts]) / problems)

    def estimate(self, values_SR: FloatArray) -> SeededEstimate:
        means_R = np.take_along_axis(values_SR.T, self.seeds_RS, axis=1).mean(axis=1)
        mean, (low, high) = float(means_R[0]), map(float, np.quantile(means_R[1:], [0.025, 0.975]))
        half = _t_half_width(values_SR[:, 0])
        return SeededEstimate(IntervalEstimate(mean, low, high), IntervalEstimate(mean, mean - half, mean + half))


def _t_half_width(values_S: FloatArray) -> float:
    seeds = len(values_S)
    return t_quantile(seeds - 1) * float(values_S.std(ddof=1)) / seeds**0.5 if seeds > 1 else float("inf")
