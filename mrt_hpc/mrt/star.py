"""STaR: of the traces sampled by the base policy, learn those that are right (Zelikman et al.; paper, Section 6).

The likelihood objective is part of the trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def select_correct(rewards: Sequence[float], *, keep: int | None = None) -> list[int]:
    """Return the indices of the traces of one problem to learn.

    Args:
        rewards: [K] of its traces.
        keep: the maximum number of traces, the first ones; None keeps all.

    Returns:
        Their indices, ascending.

    Source: Zelikman et al. (2022); paper, Section 6.
    """
    return [index for index, reward in enumerate(rewards) if reward == 1.0][:keep]
