"""The learning rate as a pure function of the step number: nothing to store, nothing to resume."""

from __future__ import annotations

import math

from mrt_hpc.training.settings import Schedule


def learning_rate(
    step: int, total_steps: int, peak: float, warmup_ratio: float, schedule: Schedule, minimum_ratio: float = 0.0
) -> float:
    """The rate of optimiser step ``step`` (0-based).

    Rises linearly over the first ``warmup_ratio`` of the steps, its first value already above 0, then follows
    ``schedule`` down to ``minimum_ratio * peak`` one step beyond the last: each step has a rate above 0 and teaches
    something. From there on it stays.
    """
    warmup_steps = math.ceil(warmup_ratio * total_steps)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule is Schedule.CONSTANT:
        return peak
    decay_steps = max(1, total_steps - warmup_steps)
    progress = min(1.0, (step - warmup_steps) / decay_steps)
    return peak * (minimum_ratio + (1.0 - minimum_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress)))
