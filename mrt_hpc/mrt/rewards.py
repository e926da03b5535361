"""Rewards in [0, 1]: which of them is a right answer's, and several of them as one.

Several rewards r_1 .. r_K with weights w_1 .. w_K that sum to 1 are compared within a group in one of two ways:

    sum, then normalise    A_i = R_i - baseline,  R_i = sum_k w_k r_ik                  what a record's reward holds
    normalise, then sum    A_i = sum_k w_k (r_ik - mean_k) / std_k                      GDPO

In the first a reward that varies little in a group adds little to its advantages; in the second each adds its weight.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.grpo import STD_FLOOR, group_members

RIGHT = 1.0


def is_right(reward: float) -> bool:
    """Whether an answer counts as right where only right and wrong are told apart (pass@k, votes, selected traces): its
    reward is 1. A text with several rewards is right where all of them are 1.

    Source: not in the paper, whose rewards are 0 or 1.
    """
    return reward >= RIGHT


def weighted_sum(parts: Sequence[float], weights: Sequence[float]) -> float:
    """R, in [0, 1] and exactly 1 where all parts are.

    Source: not in the paper.
    """
    whole = np.asarray(weights, dtype=np.float64)
    return float(min(1.0, np.dot(whole, parts) / np.dot(whole, np.ones(len(whole)))))


def normalised_rewards(
    parts: NDArray[np.float64], weights: Sequence[float], groups: Sequence[Hashable]
) -> NDArray[np.float64]:
    """[B] the weighted sum of the parts, each less its group's mean and divided by its group's deviation. A part that
    is equal in its group adds 0.

    Args:
        parts: [B, K] the rewards of each rollout.
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
