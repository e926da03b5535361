"""MRT-online: on-policy traces, the outcome advantage plus alpha times the progress of each episode (paper, Section 6).

Every token of episode z_j gets A_outcome + alpha (V_{j+1} - V_j); the answer after the thought gets A_outcome only. A
trace whose thought the token limit cut has reward 0 and its last boundary is the cut; it needs no special case here.
The estimation of the values is in :mod:`mrt_hpc.mrt.values`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.grpo import leave_one_out, outcome_advantages
from mrt_hpc.mrt.progress import normalise, per_token, progress
from mrt_hpc.run.records import Rollout


def token_advantages(
    rollouts: Sequence[Rollout],
    values: Sequence[NDArray[np.float64]],
    *,
    alpha: float,
    divide_by_std: bool,
    normalise_progress: bool,
) -> list[NDArray[np.float64]]:
    """Return the advantages of every sampled token of a batch.

    Args:
        rollouts: [B] the batch.
        values: [B] of arrays [k + 1], V_0 .. V_k of each.
        alpha: weight of progress against outcome.
        divide_by_std: see :func:`mrt_hpc.mrt.grpo.outcome_advantages`.
        normalise_progress: centre and scale progress over the batch before it is weighted.

    Returns:
        B arrays [T_i].

    Source: paper, Section 6 (outcome reward and dense bonus).
    """
    rewards = np.array([r.reward for r in rollouts], dtype=np.float64)
    outcome = outcome_advantages(rewards, [r.problem_id for r in rollouts], divide_by_std=divide_by_std)
    gains = [progress(v) for v in values]
    if normalise_progress:
        gains = normalise(gains)
    return [
        a + alpha * per_token(gain, r.boundaries, r.tokens) for a, gain, r in zip(outcome, gains, rollouts, strict=True)
    ]


def branch_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the advantages of one boundary's branches, where mu is the policy itself, each against the others.

    The branches are answers of the policy to its own prefix, drawn and graded for the prefix's value anyway: learning
    from them too teaches how to answer at any time, which V measures. Branches with equal rewards give no signal.

    Args:
        rewards: [G] of the branches that were sampled at one boundary, independent of each other.

    Returns:
        [G] one advantage per branch, for all of its sampled tokens.

    Source: not in the paper.
    """
    return leave_one_out(rewards)
