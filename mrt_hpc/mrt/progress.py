"""Progress: what each episode adds to the probability of success (paper, Definition 6.1)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def progress(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[k] V_{j+1} - V_j of each episode, from the [k + 1] values of the boundaries.

    Source: paper, Definition 6.1.
    """
    return np.diff(values)


ROUNDING = 1e-9
"""The largest rounding error of the standard deviation of equal numbers, relative to their size."""


def normalise(progress_by_rollout: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Centre and scale progress, B arrays [k_i], over all episodes of a batch to mean 0 and standard deviation 1. A
    batch without spread gives zeros, as it holds no signal.

    Source: not in the paper.
    """
    everything = np.concatenate(progress_by_rollout) if progress_by_rollout else np.zeros(0)
    if everything.size == 0:
        return [p.copy() for p in progress_by_rollout]
    spread = everything.std()
    if spread <= ROUNDING * np.abs(everything).max():
        return [np.zeros_like(p) for p in progress_by_rollout]
    return [(p - everything.mean()) / spread for p in progress_by_rollout]


def spread_over_tokens(
    episode_values: NDArray[np.float64], boundaries: Sequence[int], tokens: int
) -> NDArray[np.float64]:
    """[T] one number per episode spread over that episode's tokens.

    Args:
        episode_values: [k].
        boundaries: [k + 1] token offsets.
        tokens: T; those after the last boundary (``</think>`` and the answer) get 0.

    Raises:
        ValueError: the lengths do not match.

    Source: paper, Section 6 (progress is the reward of its episode).
    """
    if len(boundaries) != len(episode_values) + 1 or boundaries[-1] > tokens:
        raise ValueError(
            f"{len(episode_values)} episodes and boundaries {list(boundaries)} do not match {tokens} tokens"
        )
    spread = np.zeros(tokens, dtype=np.float64)
    spread[: boundaries[-1]] = np.repeat(episode_values, np.diff(boundaries))
    return spread
