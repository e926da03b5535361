"""GRPO: the advantage of the outcome reward, compared within the group of a problem."""

from collections.abc import Hashable, Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

STD_FLOOR = 1e-6
"""Added to a deviation that divides, so that a group of equal rewards gives zero, not a division by zero."""


class Baseline(StrEnum):
    """The quantity with which a reward is compared."""

    GROUP = "group"
    """The mean of the group, the own reward included: the expected gradient is (n - 1) / n of the exact one."""
    LEAVE_ONE_OUT = "leave_one_out"
    """The mean of the others of the group, which does not depend on the own actions."""
    PREFIX = "prefix"
    """The value V_j of the prefix before the episode."""


class Normalise(StrEnum):
    """The quantity that divides advantages."""

    NONE = "none"
    GROUP_STD = "group_std"
    """The deviation of the whole advantages of the problem's group."""
    BATCH_STD = "batch_std"
    """The deviation of the whole advantages of the batch."""
    OUTCOME_GROUP_STD = "outcome_group_std"
    """The deviation of the group's rewards, which divides the outcome's part alone: the form of the authors' code."""


class WithoutOutcome(StrEnum):
    """What is learnt of the traces of a group without a right answer."""

    KEEP = "keep"
    PROGRESS_ONLY = "progress_only"
    """The credit of episodes alone."""
    DROP = "drop"


def outcome_advantages(
    rewards: NDArray[np.float64], groups: Sequence[Hashable], *, baseline: Baseline, divide_by_std: bool = False
) -> NDArray[np.float64]:
    """[B] A_i = r_i less the mean of its group or of the others there, optionally divided by the group's deviation.

    Args:
        rewards: [B] r(x, z) of each rollout.
        groups: [B] the problem of each rollout.
        baseline: GROUP or LEAVE_ONE_OUT; with PREFIX the reward itself, whose baseline differs by token.
        divide_by_std: the population's deviation of the group's rewards.

    Source: Shao et al. (2024); Liu et al. (2025), Dr. GRPO, do not divide; Ahmadian et al. (2024), RLOO, leave one out.
    """
    advantages = np.zeros_like(rewards, dtype=np.float64)
    for members in group_members(groups):
        group = rewards[members]
        advantages[members] = group_advantages(group, baseline)
        if divide_by_std:
            advantages[members] /= group.std() + STD_FLOOR
    return advantages


def group_advantages(rewards: NDArray[np.float64], baseline: Baseline) -> NDArray[np.float64]:
    """[n] the rewards of one group less their baseline.

    Source: as :func:`outcome_advantages`.
    """
    if baseline is Baseline.PREFIX:
        return rewards
    if baseline is Baseline.LEAVE_ONE_OUT:
        return leave_one_out(rewards)
    return rewards - rewards.mean() if np.ptp(rewards) else np.zeros(len(rewards))


def outcome_token_advantages(
    rewards: NDArray[np.float64],
    groups: Sequence[Hashable],
    lengths: Sequence[int],
    *,
    baseline: Baseline = Baseline.LEAVE_ONE_OUT,
    normalise: Normalise = Normalise.NONE,
    dropped: NDArray[np.bool_] | None = None,
) -> list[NDArray[np.float64]]:
    """The advantages of the tokens: B arrays [T_i], each constant over its trace.

    Args:
        lengths: [B] T_i; the others as in :func:`outcome_advantages`.
        normalise: see :func:`normalise_advantages`.
        dropped: [B] the rollouts that are not learnt.

    Source: Shao et al. (2024).
    """
    outcome = outcome_advantages(rewards, groups, baseline=baseline)
    if dropped is not None:
        outcome = np.where(dropped, 0.0, outcome)
    spread = [np.full(length, a) for a, length in zip(outcome, lengths, strict=True)]
    return normalise_advantages(spread, groups, normalise)


def normalise_advantages(
    advantages: Sequence[NDArray[np.float64]], groups: Sequence[Hashable], by: Normalise
) -> list[NDArray[np.float64]]:
    """Divide whole advantages, B arrays [T_i], by one number a group, or one a batch.

    That number is the root of the mean square: the mean over the rollouts of the mean over a rollout's tokens, so that
    a long trace counts as much as a short one. With an outcome alone and the baseline of the group it is the deviation
    of the group's rewards, as in GRPO.

    Source: Shao et al. (2024) for a group; Hu (2025), REINFORCE++, for a batch.
    """
    if by in (Normalise.NONE, Normalise.OUTCOME_GROUP_STD) or not advantages:
        return [*advantages]
    squares = np.array([np.mean(a**2) for a in advantages])
    together = group_members(groups) if by is Normalise.GROUP_STD else [[*range(len(advantages))]]
    scale = np.ones(len(advantages))
    for members in together:
        scale[members] = np.sqrt(squares[members].mean()) + STD_FLOOR
    return [a / s for a, s in zip(advantages, scale, strict=True)]


def failed_groups(right: NDArray[np.bool_], groups: Sequence[Hashable]) -> NDArray[np.bool_]:
    """[B] whether the group of each rollout has no right answer.

    Source: not in the paper.
    """
    failed = np.ones(len(groups), dtype=bool)
    for members in group_members(groups):
        failed[members] = not right[members].any()
    return failed


def leave_one_out(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] A_i = r_i - mean of the others in one group, which does not depend on what i did; a group of one, or of equal
    rewards, gives exactly 0.

    Source: Kool et al. (2019); Ahmadian et al. (2024), who call it RLOO.
    """
    n = len(rewards)
    if n < 2 or not np.ptp(rewards):
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
