"""A length penalty on the outcome reward, in the form of Arora and Zanette ("Training Language Models to Reason
Efficiently"): right answers alone are penalised, and compared in length with the problem's other right answers.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.grpo import group_members


def penalised_rewards(
    rewards: NDArray[np.float64],
    right: NDArray[np.bool_],
    lengths: NDArray[np.float64],
    groups: Sequence[Hashable],
    *,
    coefficient: float,
) -> NDArray[np.float64]:
    """[B] the outcome rewards less the penalty, in [0, 1].

    A problem with one right answer, or right answers of one length, loses coefficient / 2.

    Args:
        rewards: [B] r(x, z) of each rollout.
        right: [B] whether its answer is right.
        lengths: [B] tokens.
        groups: [B] the problem of each rollout.
        coefficient: in [0, 1); the share of its reward that an endless right answer loses.

    Source: Arora and Zanette (2025); a baseline in the paper's experiments.
    """
    penalised = rewards.astype(np.float64)
    for members in group_members(groups):
        correct = [i for i in members if right[i]]
        if correct:
            penalised[correct] *= 1.0 - coefficient * _sigmoid(_standardise(lengths[correct]))
    return penalised


def overlong_penalties(lengths: NDArray[np.float64], limit: int, buffer: int) -> NDArray[np.float64]:
    """[B] what a trace loses: nothing up to ``buffer`` tokens below the limit, and from there in a straight line up to
    one half at the limit. That is half of what DAPO takes from rewards of -1 and 1.

    Source: Yu et al. (2025), DAPO, soft overlong punishment.
    """
    return np.asarray(0.5 * np.clip((lengths - (limit - buffer)) / buffer, 0.0, 1.0))


def budgeted_rewards(
    rewards: NDArray[np.float64], lengths: NDArray[np.float64], *, budget: int, coefficient: float
) -> NDArray[np.float64]:
    """[B] the outcome rewards times clip(coefficient (budget - |z|) + 1/2, 0, 1).

    Source: Aggarwal and Welleck (2025), L1, its LCPO-Max with delta = 1/2.
    """
    return rewards * np.clip(coefficient * (budget - lengths) + 0.5, 0.0, 1.0)


def _standardise(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = lengths.std()
    return np.zeros(len(lengths)) if spread == 0.0 else (lengths - lengths.mean()) / spread


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-x))
