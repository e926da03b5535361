"""The branch planner decides which boundaries get branches, and how many, for a given average number of branches.

For estimates that are added up, the variance is least where a boundary's branches are proportional to the spread of one
branch there (Neyman). Numbers are rounded at random, so that the average is kept.
"""

import numpy as np
from numpy.typing import NDArray


def expected_branches(
    spreads: NDArray[np.float64], *, budget: float, mean_spread: float, most: float
) -> NDArray[np.float64]:
    """[J] the average number of branches of each boundary of a trace, from 0 to ``most``.

    Args:
        spreads: [J] the standard deviation of one branch at each boundary, or a quantity proportional to it.
        budget: branches of a boundary, on average over all boundaries.
        mean_spread: of ``spreads`` over all boundaries; a boundary above it gets more than the average.

    Source: Neyman (1934); not in the paper.
    """
    if mean_spread <= 0.0:
        return np.zeros_like(spreads)
    return np.minimum(budget * spreads / mean_spread, most)


def draw_counts(expected: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """[J] whole numbers with these expectations, each the integer below or above.

    Args:
        expected: [J]
        uniforms: [J] independent draws from [0, 1).

    Source: not in the paper.
    """
    whole = np.floor(expected)
    return (whole + (uniforms < expected - whole)).astype(np.int64)
