"""Accuracy when only some tokens are allowed, and the tokens that an accuracy needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.regret import TraceCurve


def reward_within(
    allowed: NDArray[np.float64], tokens: int, reward: float, curve: TraceCurve | None
) -> NDArray[np.float64]:
    """Return the expected reward of one trace when it is stopped after a number of tokens.

    A trace that has ended by then has its reward. Before that, an answer is forced: its expected reward is the value of
    the prefix, interpolated between the boundaries and held after the last one. Before the first boundary, which is
    behind the earlier rounds where there are several, and without values a trace that has not ended counts as wrong.

    Args:
        allowed: [C] the numbers of tokens.
        tokens: the length of the whole trace.
        reward: of its own answer.
        curve: its values; None where its prefixes were not valued.

    Returns:
        [C] in [0, 1].

    Source: paper, Section 5 (token efficiency).
    """
    stopped = np.zeros_like(allowed) if curve is None else np.interp(allowed, curve.tokens, curve.values, left=0.0)
    return np.where(allowed >= tokens, reward, stopped)


def first_reached(allowed: NDArray[np.float64], accuracy: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Return the tokens at which each curve first reaches a level, by linear interpolation between its points.

    Args:
        allowed: [C] tokens, ascending.
        accuracy: [N, C] one curve a row.
        level: the accuracy asked for.

    Returns:
        [N] tokens; infinity for a curve that stays below the level.

    Source: paper, Section 5 (tokens to a given accuracy).
    """
    reached = accuracy >= level
    after = reached.argmax(axis=1)
    before = np.maximum(after - 1, 0)
    rows = np.arange(len(accuracy))
    low, high = accuracy[rows, before], accuracy[rows, after]
    rise = np.where(high > low, high - low, 1.0)
    share = np.where(after > 0, (level - low) / rise, 0.0)
    tokens = allowed[before] + share * (allowed[after] - allowed[before])
    return np.where(reached.any(axis=1), tokens, np.inf)
