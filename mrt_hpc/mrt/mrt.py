"""MRT in the paper's offline form: rollouts from a prefix of a stale trace, paid for what they add to it (Section 6).

For each problem one boundary j of a trace of the starting policy is drawn. From c_j the current policy samples: half of
the rollouts go on thinking, the others are forced to stop and answer, which gives V(c_j). Every token sampled after c_j
by a rollout that went on gets one number:

    end of trace:  A_i = (r_i - mean of the group) + alpha (r_i - V(c_j))               the authors' code
    next episode:  A_i = (r_i - mean of the group) + alpha (V_i(c_{j+1}) - V(c_j))      the paper's equation
    termination:   A_i = r_i - V(c_j)                                                   what going on is worth

The group is the half that went on. Given c_j the value V(c_j) is a constant: it changes the variance, and which groups
give a signal, but not the expected gradient. Prefix and forced tokens are context, never trained on. Left out: the
drawing of the prefix's trace, which any algorithm could have sampled, and the clipped objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from mrt_hpc.mrt.grpo import STD_FLOOR, leave_one_out
from mrt_hpc.run.seeds import derive_seed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Bonus(StrEnum):
    """What alpha multiplies."""

    END_OF_TRACE = "end_of_trace"
    """r_i - V(c_j)"""
    NEXT_EPISODE = "next_episode"
    """V_i(c_{j+1}) - V(c_j), the progress of the first new episode"""


class Baseline(StrEnum):
    """What a reward is compared with."""

    GROUP = "group"
    """The mean reward of the rollouts that went on, and the bonus on top."""
    TERMINATION = "termination"
    """V(c_j) alone: what stopping would have brought; there is no bonus and no alpha."""


@dataclass(frozen=True)
class PrefixGroup:
    """The rollouts of one problem from one prefix c_j."""

    continued: NDArray[np.float64]
    """[m] rewards of those that went on thinking."""
    terminated: NDArray[np.float64]
    """[n] rewards of those that were forced to stop."""
    next_values: NDArray[np.float64] | None = None
    """[m] V_i(c_{j+1}), for the bonus of the next episode."""

    @property
    def value(self) -> float:
        """V(c_j), the mean reward of those that stopped."""
        return float(self.terminated.mean())


def draw_boundary(episodes: int, run_seed: int, problem_id: str, iteration: int) -> int:
    """j, from 0 (an empty prefix) to k - 1: uniform, so that a rollout always has an episode to add.

    Args:
        episodes: k of the stale trace.
        run_seed: of the run.
        problem_id: whose trace.
        iteration: a problem that comes again gets another prefix.

    Source: paper, Section 6, Figure 6 (right).
    """
    return derive_seed(run_seed, "boundary", iteration, problem_id) % max(1, episodes)


def continued_advantages(
    group: PrefixGroup, *, alpha: float, bonus: Bonus, baseline: Baseline, divide_by_std: bool
) -> NDArray[np.float64]:
    """[m] one advantage for all tokens that a rollout sampled after c_j.

    Raises:
        ValueError: the bonus of the next episode without its values.

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
    """[n] for the answer tokens of each rollout that was forced to stop: r_i less the mean of the others.

    V(c_j) is that half's own mean, so a rollout is left out of its own baseline. A half of one has nothing to compare
    with, and gives 0.

    Source: the authors' code; left out of its own baseline here.
    """
    return leave_one_out(group.terminated)


def stop_advantages(group: PrefixGroup) -> NDArray[np.float64]:
    """[n] for the closing tag of each rollout that was forced to stop: its reward less what going on brought.

    The gradient of the choice between stopping, of probability p at c_j, and going on is p (Q_stop - Q_on) grad log p.
    The tag was forced, that is sampled with probability one: told so, the trainer's importance weight is p. Those that
    were left alone stop with probability p as well, so this comes out smaller by 1 - p.

    Source: not in the paper.
    """
    return group.terminated - group.continued.mean()
