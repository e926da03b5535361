"""What a comparison can show: the smallest difference, and the problems or samples that a given one needs.

A difference counts as shown when it is found in 80 % of repeated experiments by a two-sided test at 5 %, that is when
it is t(0.975) + t(0.8) standard errors large. Of m comparisons that are corrected together, each is tested at 5 % / m
(Bonferroni's level: Holm's correction asks for no more).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

from mrt_hpc.analysis.intervals import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

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
    """Of the true gains of the problems."""
    within: float
    """Of the gain of one problem from one sample on each side; divided by n with n samples."""


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
