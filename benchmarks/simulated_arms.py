"""Simulated comparisons of two recipes with a known truth: training seeds, problems and samples are drawn.

The log-odds that a sample is right are the problem's, with a gain of the second recipe that differs by problem, an
effect of the seed, and one of the seed on the problem; all effects are normal. The truth is the mean over all problems
of a population and over all seeds, by Gauss and Hermite's quadrature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import expit, logit
from simulated import SIZE, Coverage, FloatArray, Mixture

from mrt_hpc.analysis.intervals import IntervalEstimate, crossed_gain, crossed_share

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(41)


@dataclass(frozen=True)
class Recipes:
    mixture: Mixture
    seed_spread: float  # the standard deviation of the effect of a seed on all problems, log-odds
    interaction: float  # that of the effect of a seed on one problem
    samples: int = 4
    gain: float = 0.2  # the mean gain of the second recipe, log-odds
    gain_spread: float = 0.8  # its standard deviation over problems

    @cached_property
    def odds(self) -> tuple[FloatArray, FloatArray]:
        """The log-odds of all problems under both recipes, of a seed without an effect."""
        first = logit(self.mixture.chances(np.random.default_rng(1)).clip(1e-4, 1 - 1e-4))
        return first, first + np.random.default_rng(2).normal(self.gain, self.gain_spread, SIZE)

    @cached_property
    def truth(self) -> float:
        return self._mean(self.odds[1]) - self._mean(self.odds[0])

    def _mean(self, odds: FloatArray) -> float:
        spread = float(np.hypot(self.seed_spread, self.interaction))
        return float((expit(odds[:, None] + spread * NODES) @ WEIGHTS).mean() / WEIGHTS.sum())

    def drawn(self, rng: np.random.Generator, seeds: tuple[int, int], problems: int) -> tuple[FloatArray, FloatArray]:
        """[S, P] the accuracies of so many seeds of each recipe on so many problems."""
        chosen = rng.integers(SIZE, size=problems)
        before, after = (self._answered(rng, odds[chosen], count) for odds, count in zip(self.odds, seeds, strict=True))
        return before, after

    def _answered(self, rng: np.random.Generator, odds_P: FloatArray, seeds: int) -> FloatArray:
        of_seeds = rng.normal(0, self.seed_spread, (seeds, 1)) + rng.normal(0, self.interaction, (seeds, len(odds_P)))
        return np.asarray(rng.binomial(self.samples, expit(odds_P + of_seeds)) / self.samples)

    def covered(self, trials: int, seeds: tuple[int, int], problems: int, seed: int = 0) -> Coverage:
        rng = np.random.default_rng([seed, *seeds, problems])
        found = [crossed_gain([self.drawn(rng, seeds, problems)]).interval for _ in range(trials)]
        return covering(found, self.truth)

    def first_covered(self, trials: int, seeds: int, problems: int, seed: int = 0) -> Coverage:
        """How often the interval of the first recipe's accuracy holds the truth."""
        rng, odds = np.random.default_rng([seed, seeds, problems]), self.odds[0]
        drawn = (self._answered(rng, odds[rng.integers(SIZE, size=problems)], seeds) for _ in range(trials))
        return covering([crossed_share(values_SP) for values_SP in drawn], self._mean(odds))

    def called_different(self, trials: int, seeds: tuple[int, int], problems: int, seed: int = 0) -> float:
        """The share of the comparisons of the first recipe with itself that call it different."""
        same = Recipes(self.mixture, self.seed_spread, self.interaction, self.samples, gain=0.0, gain_spread=0.0)
        return 1.0 - same.covered(trials, seeds, problems, seed).share


def covering(found: Sequence[IntervalEstimate], truth: float) -> Coverage:
    low, high = np.array([[interval.low, interval.high] for interval in found]).T
    return Coverage(float((truth < low).mean()), float((truth > high).mean()), float((high - low).mean()))
