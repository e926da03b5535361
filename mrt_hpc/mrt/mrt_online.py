"""MRT-online: on-policy traces, the outcome advantage plus alpha times the credit of each episode (paper, Section 6).

Every token that episode z_j credits, the choice that ends it included, gets A_outcome + alpha * credit_j; the answer
after the thought gets A_outcome only. With the authors' credit, the progress V_{j+1} - V_j, that is the paper's update.
A trace whose thought the token limit cut has reward 0 and its last boundary is the cut.

A baseline, and the extent of a credit, depend on the prefix alone and never on the action that is credited.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.grpo import (
    Baseline,
    Normalise,
    WithoutOutcome,
    leave_one_out,
    normalise_advantages,
    outcome_advantages,
)
from mrt_hpc.mrt.progress import Credit, area_to_go, permute, progress, progress_to_go, spread_over_tokens


def token_advantages(
    rewards: NDArray[np.float64],
    groups: Sequence[Hashable],
    lengths: Sequence[int],
    credit_bounds: Sequence[Sequence[int]],
    values: Sequence[NDArray[np.float64]],
    dense: Sequence[NDArray[np.float64]],
    *,
    alpha: float,
    baseline: Baseline = Baseline.LEAVE_ONE_OUT,
    normalise: Normalise = Normalise.NONE,
    failed: NDArray[np.bool_] | None = None,
    without_outcome: WithoutOutcome = WithoutOutcome.KEEP,
) -> list[NDArray[np.float64]]:
    """The advantages of every sampled token of a batch: B arrays [T_i].

    Args:
        rewards: [B] r(x, z) of each rollout.
        groups: [B] the problem of each rollout.
        lengths: [B] T_i.
        credit_bounds: [B] of token offsets [k + 1], see :func:`mrt_hpc.mrt.episodes.credit_bounds`.
        values: [B] of arrays [k + 1], V_0 .. V_k; read for the baseline of the prefix alone.
        dense: [B] of arrays [T_i], the credit of each token, see :func:`token_credits`.
        alpha: weight of the credit against the outcome, in units of the reward. With OUTCOME_GROUP_STD the outcome
            alone is divided, so alpha weighs as much as alpha times the group's deviation does elsewhere.
        failed: [B] see :func:`mrt_hpc.mrt.grpo.failed_groups`.

    Source: paper, Section 6 (outcome reward and dense bonus); Kazemnejad et al. (2024), VinePPO, for the baseline of
    the prefix.
    """
    divide = normalise is Normalise.OUTCOME_GROUP_STD
    outcome = outcome_advantages(rewards, groups, baseline=baseline, divide_by_std=divide)
    advantages = [a + alpha * credit for a, credit in zip(outcome, dense, strict=True)]
    if baseline is Baseline.PREFIX:
        levels = [prefix_values(*trace) for trace in zip(values, credit_bounds, lengths, strict=True)]
        advantages = [a - level for a, level in zip(advantages, levels, strict=True)]
    if failed is not None and without_outcome is not WithoutOutcome.KEEP:
        left = alpha if without_outcome is WithoutOutcome.PROGRESS_ONLY else 0.0
        advantages = [left * c if out else a for a, c, out in zip(advantages, dense, failed, strict=True)]
    return normalise_advantages(advantages, groups, normalise)


def token_credits(
    credit: Credit,
    lengths: Sequence[int],
    boundaries: Sequence[Sequence[int]],
    credit_bounds: Sequence[Sequence[int]],
    values: Sequence[NDArray[np.float64]],
    *,
    budget: int = 0,
    seed: int = 0,
) -> list[NDArray[np.float64]]:
    """What alpha multiplies, of every token: B arrays [T_i].

    Args:
        credit: which one, see :mod:`mrt_hpc.mrt.progress`.
        boundaries: [B] of token offsets [k + 1] of the episodes; the others as in :func:`token_advantages`.
        budget: C in tokens, for the area.
        seed: of the permutation.

    Source: paper, Section 6, for the progress of an episode.
    """
    if credit is Credit.CONSTANT:  # an empty thought, which has no episode, can end too
        return [spread_over_tokens(np.ones(1), [0, b[-1]], n) for b, n in zip(credit_bounds, lengths, strict=True)]
    if credit is Credit.TO_GO:
        episodes = [progress_to_go(v) for v in values]
    elif credit is Credit.AREA:
        episodes = [area_to_go(v, offsets, budget) for v, offsets in zip(values, boundaries, strict=True)]
    else:
        episodes = [progress(v) for v in values]
    if credit is Credit.PERMUTED:
        episodes = permute(episodes, seed)
    return [spread_over_tokens(*trace) for trace in zip(episodes, credit_bounds, lengths, strict=True)]


def prefix_values(values: NDArray[np.float64], bounds: Sequence[int], tokens: int) -> NDArray[np.float64]:
    """[T] the value of the prefix before the episode that credits a token; V_k for the answer.

    Source: Kazemnejad et al. (2024), VinePPO.
    """
    return spread_over_tokens(values, [0, *bounds[1:], tokens], tokens)


def branch_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """[G] the advantages of one boundary's branches, where mu is the policy itself, each against the others.

    The branches were drawn and graded for the prefix's value anyway: learning from them too teaches how to answer at
    any time, which V measures. Branches with equal rewards give no signal.

    Source: not in the paper.
    """
    return leave_one_out(rewards)
