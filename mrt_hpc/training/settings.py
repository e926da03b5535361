"""Plain data for the trainer. Imports no torch, so that planning code and algorithms can import it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.sections import Training


class Objective(StrEnum):
    """The quantity that an update maximises."""

    POLICY_GRADIENT = "policy_gradient"
    """Advantage-weighted clipped ratios (grpo, mrt, mrt_online)."""
    LIKELIHOOD = "likelihood"
    """Advantage-weighted log-likelihood of the sampled tokens, no ratio (star, mrt_star, sft_*)."""


@dataclass(frozen=True)
class TrainerSettings:
    """The recipe's section, and the run's own values."""

    training: Training
    total_steps: int
    """The length of the schedule: iterations times steps per iteration."""
    temperature: float
    """The temperature of sampling; all log-probabilities are of that distribution."""
    objective: Objective = Objective.POLICY_GRADIENT
    seed: int = 0
    longest: int | None = None
    """The longest trained sequence, in tokens; None for the longest that the model holds."""
    longest_trace: int = 1
    """``sampling.max_tokens``, by which ``aggregation: constant`` divides whatever a length curriculum allows."""


# The learning rate as a pure function of the step number: nothing to store, nothing to resume.


def warmup_steps(total_steps: int, training: Training) -> int:
    """``training.warmup_steps``, or the share of all steps."""
    if training.warmup_steps is not None:
        return training.warmup_steps
    return math.ceil(training.warmup_ratio * total_steps)


def learning_rate(step: int, total_steps: int, training: Training) -> float:
    """The learning rate of optimiser step ``step`` (0-based).

    Rises linearly over the first :func:`warmup_steps`, its first value already above 0, then follows ``schedule``. The
    cosine begins at the peak and reaches 0 one step beyond the last: a last step with rate 0 would change nothing.
    """
    warmup = warmup_steps(total_steps, training)
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    if training.schedule == "constant":
        return training.learning_rate
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return training.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))


class NotFiniteError(UserError):
    """A number that would be learnt is NaN or infinite."""


@dataclass(frozen=True)
class TrainingSequence:
    """One sampled continuation (T tokens) of a context, with the algorithm's advantages and mask."""

    prompt_ids: Sequence[int]
    """The context: prompt, prefix and forced tokens; at least one token."""
    token_ids: Sequence[int]
    """[T] the sampled tokens."""
    advantages: np.ndarray
    """[T] float32."""
    behaviour_logprobs: np.ndarray
    """[T] float32, at sampling, temperature applied; unused by the likelihood objective."""
    mask: np.ndarray
    """[T] bool, whether each token is trained on."""
    group: str = ""
    """Sequences of one group are never divided among the optimiser steps of an iteration."""

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        shapes = {"advantages": self.advantages, "behaviour_logprobs": self.behaviour_logprobs, "mask": self.mask}
        for name, array in shapes.items():
            if array.shape != (count,):
                raise UserError(f"{name} must have one entry per token", value=array.shape, expected=f"({count},)")
        if not len(self.prompt_ids):
            raise UserError("a training sequence needs a prompt of at least one token")
        for name in ("advantages", "behaviour_logprobs"):
            trained = shapes[name][self.mask]
            if not np.isfinite(trained).all():
                bad = float(trained[~np.isfinite(trained)][0])
                raise NotFiniteError(f"{name} of trained tokens must be finite", value=bad, where=f"group {self.group}")

    @property
    def trained_tokens(self) -> int:
        return int(np.count_nonzero(self.mask))

    @property
    def has_signal(self) -> bool:
        """Whether any trained token has an advantage other than 0; else the gradient is exactly zero."""
        return bool(np.any(self.advantages[self.mask] != 0))

    @cached_property
    def width(self) -> int:
        """Positions to compute: every token but the last, whose successor is not needed."""
        return len(self.prompt_ids) + len(self.token_ids) - 1
