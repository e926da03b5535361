"""GRPO: the advantage of the outcome reward, compared within the group of a problem."""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

STD_FLOOR = 1e-6
"""Added to a group's standard deviation, so that a group of equal rewards gives zero, not a division by zero."""


def outcome_advantages(
    rewards: NDArray[np.float64], groups: Sequence[Hashable], *, divide_by_std: bool
) -> NDArray[np.float64]:
    """[B] A_i = r_i - mean of its group, optionally divided by the group's standard deviation.

    Args:
        rewards: [B] r(x, z) of each rollout.
        groups: [B] the problem of each rollout.
        divide_by_std: False is Dr. GRPO's form, which does not favour problems with little spread.

    Source: Shao et al. (2024); Liu et al. (2025) for Dr. GRPO.
    """
    advantages = np.zeros_like(rewards, dtype=np.float64)
    for members in group_members(groups):
        group = rewards[members]
        advantages[members] = group - group.mean()
        if divide_by_std:
            advantages[members] /= group.std() + STD_FLOOR
    return advantages


def outcome_token_advantages(
    rewards: NDArray[np.float64], groups: Sequence[Hashable], lengths: Sequence[int], *, divide_by_std: bool
) -> list[NDArray[np.float64]]:
    """The advantages of the tokens: B arrays [T_i], each constant over its trace.

    Args:
        lengths: [B] T_i; the others as in :func:`outcome_advantages`.

    Source: Shao et al. (2024).
    """
    outcome = outcome_advantages(rewards, groups, divide_by_std=divide_by_std)
    return [np.full(length, a) for a, length in zip(outcome, lengths, strict=True)]


def leave_one_out(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] A_i = r_i - mean of the others in one group, which does not depend on what i did; a group of one gives 0.

    Source: Kool et al. (2019); Ahmadian et al. (2024), who call it RLOO.
    """
    n = len(rewards)
    if n < 2:
        return np.zeros(n)
    return rewards - (rewards.sum() - rewards) / (n - 1)


def group_members(groups: Sequence[Hashable]) -> list[list[int]]:
    """The indices of each group, groups in order of first appearance.

    Source: Shao et al. (2024), who compare within groups.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return list(members.values())
