"""Means over problems with 95 % intervals that take problems as the independent draws.

A mean over all samples, where problems have different numbers of them, is a ratio of two sums over problems; its
standard error is that of the linearised ratio (Cochran 1977, *Sampling Techniques*, Section 6.4; for a mean it is the
clustered standard error of Miller 2024). Intervals are t intervals with one degree of freedom less than there are
problems.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.analysis.intervals import IntervalEstimate, t_quantile, wilson

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

ROUNDING = 1e-9
"""Deviations below this are rounding errors of equal numbers."""


def mean_share(means: Iterable[float]) -> IntervalEstimate:
    """The mean of numbers in [0, 1], one a problem, with a t interval cut to [0, 1].

    Where all problems agree, their spread says too little, and Wilson's interval is taken.

    Raises:
        ValueError: there is no problem.
    """
    means_P = np.array(list(means))
    spread = float(means_P.std(ddof=1)) if len(means_P) > 1 else 0.0
    if spread < ROUNDING:
        return wilson(float(means_P.sum()), len(means_P))
    half = t_quantile(len(means_P) - 1) * spread / math.sqrt(len(means_P))
    mean = float(means_P.mean())
    return IntervalEstimate(mean, max(0.0, mean - half), min(1.0, mean + half))


def ratio_of_sums(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> IntervalEstimate:
    """The ratio of two sums over problems with its interval; one problem alone shows no interval.

    Args:
        numerators: [P] one of each problem.
        denominators: [P] one of each problem; their sum is positive.

    Raises:
        ValueError: the denominators have no positive sum.
    """
    total, count = float(denominators.sum()), len(denominators)
    if total <= 0:
        raise ValueError("a ratio needs a positive sum below the line")
    ratio = float(numerators.sum()) / total
    if count == 1:
        return IntervalEstimate(ratio, -math.inf, math.inf)
    deviations = numerators - ratio * denominators
    error = math.sqrt(count / (count - 1) * float(deviations @ deviations)) / total
    half = t_quantile(count - 1) * error
    return IntervalEstimate(ratio, ratio - half, ratio + half)


def clustered_mean(samples: Mapping[str, Sequence[float]]) -> IntervalEstimate:
    """The mean of all samples, each in [-1, 1], with an interval that is clustered by problem.

    Where all problems agree, their spread does not show that further ones would, so it is taken as if a problem at 1
    and one at -1 had been seen besides (Bonett and Price 2012).

    Args:
        samples: of each problem, at least one.

    Raises:
        ValueError: there is no sample.
    """
    sums = np.array([sum(mine) for mine in samples.values()], float)
    counts = np.array([len(mine) for mine in samples.values()], float)
    found = ratio_of_sums(sums, counts)
    if found.high - found.low < ROUNDING:
        half = t_quantile(len(counts) - 1) * math.sqrt(2.0 / ((len(counts) + 1) * (len(counts) + 2)))
        found = IntervalEstimate(found.mean, found.mean - half, found.mean + half)
    return IntervalEstimate(found.mean, max(-1.0, found.low), min(1.0, found.high))
