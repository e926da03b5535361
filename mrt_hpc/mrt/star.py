"""STaR: of the traces sampled by the base policy, learn those that are right (Zelikman et al.; paper, Section 6); and
MRT by filtered likelihood, which learns those of them whose episodes make progress.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.progress import progress
from mrt_hpc.mrt.rewards import is_right


def select_correct(rewards: Sequence[float], *, keep: int | None = None) -> list[int]:
    """The ascending indices of the traces of one problem to learn, the first ``keep``; None keeps all.

    Args:
        rewards: [K] of its traces.

    Source: Zelikman et al. (2022); paper, Section 6.
    """
    return [index for index, reward in enumerate(rewards) if is_right(reward)][:keep]


# MRT by filtered likelihood: of the right traces, learn those whose episodes make progress (paper, Section 6).
#
# Per problem the right traces are ranked by their total positive progress; one with an episode below a threshold is
# dropped; and each is cut after the episode at which its value is first highest, since later episodes did not raise the
# value. This module leaves out the ending of a cut trace, which needs a branch of the prover from there.


@dataclass(frozen=True)
class Selected:
    """A trace to learn."""

    index: int
    """Among the problem's traces."""
    boundary: int
    """The end of the learnt episodes; k learns the whole trace, with its own ending."""


def select_progressing(
    rewards: Sequence[float], values: Sequence[NDArray[np.float64]], *, threshold: float
) -> list[Selected]:
    """Which of one problem's traces to learn, and up to which boundary: greatest total positive progress first.

    Args:
        rewards: [K] of its traces.
        values: K arrays [k_i + 1] at their boundaries.
        threshold: a trace with an episode of less progress before the cut is dropped, as is one without any progress
            there.

    Source: paper, Section 6, Figure 6 (left).
    """
    candidates = [Selected(i, first_peak(values[i])) for i in select_correct(rewards)]
    gains = {c: progress(values[c.index][: c.boundary + 1]) for c in candidates}
    sound = [c for c in candidates if positive(gains[c]) > 0 and gains[c].min() >= threshold]
    return sorted(sound, key=lambda c: (-positive(gains[c]), c.index))


def first_peak(values: NDArray[np.float64]) -> int:
    """The boundary at which a trace's value first reaches its maximum.

    Source: paper, Section 6, Figure 6 (left).
    """
    return int(np.argmax(values))


def positive(gains: NDArray[np.float64]) -> float:
    """The total positive progress.

    Source: paper, Section 6.
    """
    return float(gains[gains > 0].sum())
