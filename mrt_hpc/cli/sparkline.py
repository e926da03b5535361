"""A series of numbers as one line of text."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(series: Sequence[float], width: int) -> str:
    """A block for each number, the lowest for the minimum and the highest for the maximum of the series. A series that
    is longer than the width is cut into as many parts, and each block shows the mean of its part.

    Args:
        series: finite numbers.
        width: the most columns.
    """
    means = _means(series, width)
    if not means:
        return ""
    low, high = min(means), max(means)
    if high == low:
        return BLOCKS[len(BLOCKS) // 2] * len(means)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in means)


def _means(series: Sequence[float], width: int) -> list[float]:
    """The means of equal parts of a series, no more than the width."""
    parts = min(len(series), width)
    bounds = [len(series) * part // parts for part in range(parts + 1)] if parts else []
    return [sum(series[a:b]) / (b - a) for a, b in pairwise(bounds)]
