"""Progress: what each episode adds to the probability of success (paper, Definition 6.1), and the credits that an
episode's tokens may get for it. The page of the method says of what each is the gradient.

Each stands on the tokens of :func:`mrt_hpc.mrt.episodes.credit_bounds`.
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Credit(StrEnum):
    """The quantity that alpha multiplies, of each episode."""

    EPISODE = "episode"
    TO_GO = "to_go"
    AREA = "area"
    CONSTANT = "constant"
    PERMUTED = "permuted"


def progress(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[k] V_{j+1} - V_j of each episode, from the [k + 1] values of the boundaries.

    Source: paper, Definition 6.1.
    """
    return np.diff(values)


def progress_to_go(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[k] V_k - V_j, the progress from the beginning of each episode to the end of the thought.

    Source: not in the paper; the gradient of the sum of its Definition 6.1.
    """
    return values[-1] - values[:-1]


def area_to_go(values: NDArray[np.float64], boundaries: Sequence[int], budget: int) -> NDArray[np.float64]:
    """[k] the area between V and the level V_j, from the beginning of each episode to the budget, over the budget.

    The area is that of trapezoids between the boundaries, with V interpolated at the budget, and its last value held
    where the thought ends earlier. An episode that begins at or after the budget gets 0.

    Args:
        values: [k + 1].
        boundaries: [k + 1] token offsets.
        budget: C, in tokens.

    Source: paper, Section 4 (regret); the gradient of 1 less the regret of :mod:`mrt_hpc.mrt.regret`.
    """
    offsets = np.array([*boundaries, max(budget, boundaries[-1])], dtype=np.float64)
    held = np.append(values, values[-1])
    inside = np.minimum(offsets, budget)
    height = np.interp(inside, offsets, held)
    areas = np.diff(inside) * (height[1:] + height[:-1]) / 2
    to_go = np.cumsum(areas[::-1])[::-1][: len(values) - 1]
    return (to_go - values[:-1] * (budget - inside[: len(values) - 1])) / budget


def permute(episodes: Sequence[NDArray[np.float64]], seed: int) -> list[NDArray[np.float64]]:
    """The same numbers, B arrays [k_i], in another order over all episodes of the batch: a placebo for a credit.

    Source: not in the paper.
    """
    if not episodes:
        return []
    shuffled = np.random.default_rng(seed).permutation(np.concatenate(episodes))
    return np.split(shuffled, np.cumsum([len(e) for e in episodes])[:-1])


def spread_over_tokens(episode_values: NDArray[np.float64], bounds: Sequence[int], tokens: int) -> NDArray[np.float64]:
    """[T] one number per episode spread over the tokens that it credits.

    Args:
        episode_values: [k].
        bounds: [k + 1] token offsets of :func:`mrt_hpc.mrt.episodes.credit_bounds`.
        tokens: T; those after the last bound (the answer) get 0.

    Raises:
        ValueError: the lengths do not match.

    Source: paper, Section 6 (progress is the reward of its episode).
    """
    if len(bounds) != len(episode_values) + 1 or bounds[-1] > tokens:
        raise ValueError(f"{len(episode_values)} episodes and bounds {list(bounds)} do not match {tokens} tokens")
    spread = np.zeros(tokens, dtype=np.float64)
    spread[bounds[0] : bounds[-1]] = np.repeat(episode_values, np.diff(bounds))
    return spread
