"""The learning rate as a pure function of the step number: nothing to store, nothing to resume."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.recipe.sections.training import Training


def warmup_steps(total_steps: int, training: Training) -> int:
    """Return the number of steps over which the rate rises: ``training.warmup_steps``, or the share of all steps."""
    if training.warmup_steps is not None:
        return training.warmup_steps
    return math.ceil(training.warmup_ratio * total_steps)


def learning_rate(step: int, total_steps: int, training: Training) -> float:
    """Return the learning rate of optimiser step ``step`` (0-based).

    Rises linearly over the first :func:`warmup_steps`, its first value already above 0, then follows
    ``schedule``: the cosine begins at the peak and reaches ``minimum_ratio`` of it one step beyond the last, where it
    stays. With a cosine that falls to 0, a step at its end would leave the weights as they are, and its rollouts
    unused.
    """
    warmup = warmup_steps(total_steps, training)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    if training.schedule == "constant":
        return training.learning_rate
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return training.learning_rate * (training.minimum_ratio + (1.0 - training.minimum_ratio) * share)
