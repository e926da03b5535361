"""Rewards in [0, 1]: which of them is a right answer's, and several of them as one."""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.grpo import STD_FLOOR, group_members

RIGHT = 1.0


def is_right(reward: float, parts: Sequence[float] = ()) -> bool:
    """Whether an answer is right for pass@k, votes, gates and selected traces: its reward is 1. Of several rewards,
    where they are known one by one, the first decides, which found the answer.

    Source: not in the paper, whose rewards are 0 or 1.
    """
    return (parts[0] if parts else reward) >= RIGHT


def weighted_sum(parts: Sequence[float], weights: Sequence[float]) -> float:
    """In [0, 1], and exactly 1 where all parts are.

    Source: not in the paper.
    """
    whole = np.asarray(weights, dtype=np.float64)
    return float(min(1.0, np.dot(whole, parts) / np.dot(whole, np.ones(len(whole)))))


def normalised_rewards(
    parts: NDArray[np.float64], weights: Sequence[float], groups: Sequence[Hashable]
) -> NDArray[np.float64]:
    """[B] the weighted sum of the parts, each less its group's mean and divided by its group's deviation; 0 of a part
    that is equal in its group.

    Args:
        parts: [B, K].
        weights: [K].
        groups: [B] the problem of each rollout.

    Source: Liu et al. (2026), GDPO.
    """
    combined = np.zeros(len(parts))
    for members in group_members(groups):
        mine = parts[members]
        differs = (mine != mine[0]).any(axis=0)
        scaled = (mine - mine.mean(axis=0)) / (mine.std(axis=0) + STD_FLOOR)
        combined[members] = np.where(differs, scaled, 0.0) @ np.asarray(weights, dtype=np.float64)
    return combined
