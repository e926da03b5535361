"""MRT from stale traces: rollouts from a prefix of a stale trace, rewarded for what they add to it (paper, Section 6).

From a prefix c_j half of the rollouts continue, the others are forced to stop and answer, which gives V(c_j). The group
is the half that continued. Prefix and forced tokens are never trained on. The page of the method has the formulas.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.grpo import STD_FLOOR, Baseline, Normalise, group_advantages, leave_one_out, normalise_advantages


class Bonus(StrEnum):
    """The quantity that alpha multiplies."""

    END_OF_TRACE = "end_of_trace"
    """r_i - V(c_j)."""
    NEXT_EPISODE = "next_episode"
    """V_i(c_{j+1}) - V(c_j), the progress of the first new episode."""


@dataclass(frozen=True)
class PrefixGroup:
    """The rollouts of one problem from one prefix c_j."""

    continued: NDArray[np.float64]
    """[m] rewards of the rollouts that continued thinking."""
    terminated: NDArray[np.float64]
    """[n] rewards of the rollouts that were forced to stop."""
    next_values: NDArray[np.float64] | None = None
    """[m] V_i(c_{j+1}), for the bonus of the next episode."""

    @property
    def value(self) -> float:
        """V(c_j), the mean reward of the rollouts that stopped."""
        return float(self.terminated.mean())


def boundary_before_loss(values: NDArray[np.float64]) -> int | None:
    """The boundary, from 0 to k - 1, before the first episode that loses value; None without one.

    Args:
        values: [k + 1] V(c_0) .. V(c_k).

    Source: not in the paper; Section 6 draws a boundary uniformly.
    """
    losses = np.flatnonzero(np.diff(values) < 0)
    return int(losses[0]) if losses.size else None


def continued_advantages(
    group: PrefixGroup, *, alpha: float, bonus: Bonus, baseline: Baseline, normalise: Normalise
) -> NDArray[np.float64]:
    """[m] one advantage for all tokens that a rollout sampled after c_j.

    Args:
        baseline: with PREFIX V(c_j) alone, the value of stopping, without bonus and alpha.
        normalise: GROUP_STD divides the whole advantages, OUTCOME_GROUP_STD the part without the bonus.

    Raises:
        ValueError: the bonus is that of the next episode, and its values are missing.

    Source: paper, Section 6; the authors' code for the bonus at the end of the trace.
    """
    rewards = group.continued
    if baseline is Baseline.PREFIX:
        return rewards - group.value
    outcome = group_advantages(rewards, baseline)
    if normalise is Normalise.OUTCOME_GROUP_STD:
        outcome = outcome / (rewards.std() + STD_FLOOR)
    whole = outcome + alpha * (_reached_values(group, bonus) - group.value)
    return np.array(normalise_advantages(list(whole), [0] * len(whole), normalise))


def _reached_values(group: PrefixGroup, bonus: Bonus) -> NDArray[np.float64]:
    if bonus is Bonus.END_OF_TRACE:
        return group.continued
    if group.next_values is None or group.next_values.shape != group.continued.shape:
        raise ValueError("bonus next_episode needs a value at the end of the first new episode of every rollout")
    return group.next_values


def answer_advantages(group: PrefixGroup) -> NDArray[np.float64]:
    """[n] the advantages of the answers of the rollouts forced to stop: r_i less the mean of the others.

    V(c_j) is the mean of that half, so a rollout is left out of its own baseline. A half of one rollout gives 0.

    Source: the authors' code; left out of its own baseline here.
    """
    return leave_one_out(group.terminated)


def stop_advantages(group: PrefixGroup) -> NDArray[np.float64]:
    """[n] the advantages of each forced rollout's closing tag: its reward less the mean of those that continued.

    The gradient of the choice between stopping, of probability p at c_j, and continuing is p (Q_stop - Q_on) grad log
    p. The tag was forced, that is, sampled with probability one; the trainer's importance weight is then p. The other
    rollouts also stop with probability p, so this estimate is smaller by the factor 1 - p.

    Source: not in the paper.
    """
    return group.terminated - group.continued.mean()
