"""MRT from stale traces: rollouts from a prefix of a stale trace, rewarded for what they add to it (paper, Section 6).

For each problem one boundary j of a trace of the starting policy is drawn. From c_j the current policy samples: half of
the rollouts continue to think, the others are forced to stop and answer, which gives V(c_j). Every token sampled after
c_j by a rollout that continued gets one number:

    end of trace:  A_i = (r_i - mean of the group) + alpha (r_i - V(c_j))               the authors' code
    next episode:  A_i = (r_i - mean of the group) + alpha (V_i(c_{j+1}) - V(c_j))      the paper's equation
    termination:   A_i = r_i - V(c_j)                                                   the value of continuing

The group is the half that continued. Given c_j the value V(c_j) is a constant: it changes the variance, and which
groups give a signal, but not the expected gradient. Prefix and forced tokens are context, never trained on. This
module leaves out the clipped objective and the choice of the stale trace, which any algorithm may have sampled.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.grpo import STD_FLOOR, leave_one_out
from mrt_hpc.run.seeds import derive_seed


class Bonus(StrEnum):
    """The quantity that alpha multiplies."""

    END_OF_TRACE = "end_of_trace"
    """The bonus r_i - V(c_j)."""
    NEXT_EPISODE = "next_episode"
    """The bonus V_i(c_{j+1}) - V(c_j), the progress of the first new episode."""


class Baseline(StrEnum):
    """The quantity with which a reward is compared."""

    GROUP = "group"
    """The mean reward of the rollouts that continued; the bonus is added."""
    TERMINATION = "termination"
    """V(c_j) alone, the value of stopping; there is no bonus and no alpha."""


@dataclass(frozen=True)
class PrefixGroup:
    """The rollouts of one problem from one prefix c_j."""

    continued: NDArray[np.float64]
    """[m] the rewards of the rollouts that continued thinking."""
    terminated: NDArray[np.float64]
    """[n] the rewards of the rollouts that were forced to stop."""
    next_values: NDArray[np.float64] | None = None
    """[m] V_i(c_{j+1}), for the bonus of the next episode."""

    @property
    def value(self) -> float:
        """V(c_j), the mean reward of the rollouts that stopped."""
        return float(self.terminated.mean())


def draw_boundary(episodes: int, run_seed: int, problem_id: str, iteration: int) -> int:
    """Draw j uniformly from 0 (an empty prefix) to k - 1, so that a rollout always has an episode to add.

    Args:
        episodes: k of the stale trace.
        run_seed: of the run.
        problem_id: the problem of the trace.
        iteration: a problem that is drawn again gets another prefix.

    Source: paper, Section 6, Figure 6 (right).
    """
    return derive_seed(run_seed, "boundary", iteration, problem_id) % max(1, episodes)


def continued_advantages(
    group: PrefixGroup, *, alpha: float, bonus: Bonus, baseline: Baseline, divide_by_std: bool
) -> NDArray[np.float64]:
    """Return [m] one advantage for all tokens that a rollout sampled after c_j.

    Raises:
        ValueError: the bonus is that of the next episode, and its values are missing.

    Source: paper, Section 6; the authors' code for the bonus at the end of the trace.
    """
    rewards = group.continued
    if baseline is Baseline.TERMINATION:
        return rewards - group.value
    outcome = rewards - rewards.mean()
    if divide_by_std:
        outcome = outcome / (rewards.std() + STD_FLOOR)
    return outcome + alpha * (_reached(group, bonus) - group.value)


def _reached(group: PrefixGroup, bonus: Bonus) -> NDArray[np.float64]:
    if bonus is Bonus.END_OF_TRACE:
        return group.continued
    if group.next_values is None or group.next_values.shape != group.continued.shape:
        raise ValueError("bonus next_episode needs a value at the end of the first new episode of every rollout")
    return group.next_values


def answer_advantages(group: PrefixGroup) -> NDArray[np.float64]:
    """Return [n] the advantages of the answers of the rollouts forced to stop: r_i less the mean of the others.

    V(c_j) is the mean of that half, so a rollout is left out of its own baseline. A half of one rollout gives 0, as it
    has no other to compare with.

    Source: the authors' code; left out of its own baseline here.
    """
    return leave_one_out(group.terminated)


def stop_advantages(group: PrefixGroup) -> NDArray[np.float64]:
    """Return [n] the advantages of each forced rollout's closing tag: its reward less the mean of those that continued.

    The gradient of the choice between stopping, of probability p at c_j, and continuing is p (Q_stop - Q_on) grad log
    p. The tag was forced, that is, sampled with probability one; with this behaviour probability the trainer's
    importance weight is p. The rollouts that were not forced also stop with probability p, so this estimate is smaller
    by the factor 1 - p.

    Source: not in the paper.
    """
    return group.terminated - group.continued.mean()
