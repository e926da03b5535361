"""MRT-online: on-policy traces, the outcome advantage plus alpha times the progress of each episode (paper, Section 6).

Every token of episode z_j gets A_outcome + alpha (V_{j+1} - V_j); the answer after the thought gets A_outcome only. A
trace whose thought the token limit cut has reward 0 and its last boundary is the cut. :mod:`mrt_hpc.mrt.values`
estimates the values.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.grpo import leave_one_out, outcome_advantages
from mrt_hpc.mrt.progress import normalise, progress, spread_over_tokens


def token_advantages(
    rewards: NDArray[np.float64],
    groups: Sequence[Hashable],
    lengths: Sequence[int],
    boundaries: Sequence[Sequence[int]],
    values: Sequence[NDArray[np.float64]],
    *,
    alpha: float,
    divide_by_std: bool,
    normalise_progress: bool,
) -> list[NDArray[np.float64]]:
    """The advantages of every sampled token of a batch: B arrays [T_i].

    Args:
        rewards: [B] r(x, z) of each rollout.
        groups: [B] the problem of each rollout.
        lengths: [B] T_i.
        boundaries: [B] of token offsets [k + 1] of the episodes.
        values: [B] of arrays [k + 1], V_0 .. V_k.
        alpha: weight of progress against outcome.
        divide_by_std: see :func:`mrt_hpc.mrt.grpo.outcome_advantages`.
        normalise_progress: centre and scale progress over the batch before it is weighted.

    Source: paper, Section 6 (outcome reward and dense bonus).
    """
    outcome = outcome_advantages(rewards, groups, divide_by_std=divide_by_std)
    gains = [progress(v) for v in values]
    if normalise_progress:
        gains = normalise(gains)
    return [
        a + alpha * spread_over_tokens(gain, offsets, length)
        for a, gain, offsets, length in zip(outcome, gains, boundaries, lengths, strict=True)
    ]


def branch_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """[G] the advantages of one boundary's branches, where mu is the policy itself, each against the others.

    The branches were drawn and graded for the prefix's value anyway: learning from them too teaches how to answer at
    any time, which V measures. Branches with equal rewards give no signal.

    Source: not in the paper.
    """
    return leave_one_out(rewards)
