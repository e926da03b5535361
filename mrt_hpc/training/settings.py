"""What the trainer has to know, as plain data; imports no torch, so that a plan may look at it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mrt_hpc.recipe.schema import Precision


class Schedule(StrEnum):
    """The learning rate after the warm-up."""

    COSINE = "cosine"
    """Half a cosine from the peak to the minimum, which lies one step beyond the last."""
    CONSTANT = "constant"
    """The peak until the end."""


class Objective(StrEnum):
    """What an update maximises."""

    POLICY_GRADIENT = "policy_gradient"
    """Advantage-weighted clipped ratios (grpo, mrt, mrt_online)."""
    LIKELIHOOD = "likelihood"
    """Advantage-weighted log-likelihood of the sampled tokens, no ratio (star, mrt_star, sft_*)."""


@dataclass(frozen=True)
class TrainerSettings:
    """One trainer. The fields up to ``gradient_checkpointing`` are those of the recipe's ``training`` section."""

    total_steps: int
    """Optimiser steps of the whole run: iterations times optimiser steps of an iteration; the schedule's length."""
    temperature: float
    """Sampling temperature: all log-probabilities are of the distribution sampled from."""

    learning_rate: float = 1e-6
    """Peak of the schedule."""
    warmup_ratio: float = 0.1
    """Share of all steps in which the rate rises linearly."""
    schedule: Schedule = Schedule.COSINE
    minimum_ratio: float = 0.0
    """The schedule's last value as a share of the peak."""
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    gradient_clip: float = 1.0
    """Largest global gradient norm; 0 clips nothing."""
    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    importance_cap: float = 2.0
    """Largest weight for the difference between the engine that sampled and the trainer."""
    kl_coefficient: float = 0.0
    """Weight of the KL divergence to the reference model; 0 needs no reference."""
    precision: Precision = Precision.BF16
    zero_stage: int = 2
    """DeepSpeed ZeRO stage, 0 to 3. In ``bf16``, 0 runs as 1: below that DeepSpeed sums gradients in bfloat16."""
    max_tokens_per_micro_batch: int = 16384
    """Most tokens, padding included, in one forward pass of a rank; a longer sequence passes alone."""
    optimizer_steps_per_iteration: int = 1
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""

    objective: Objective = Objective.POLICY_GRADIENT
    seed: int = 0

    def __post_init__(self) -> None:
        """Take the names of choices as well as the choices: a recipe holds names."""
        object.__setattr__(self, "schedule", Schedule(self.schedule))
        object.__setattr__(self, "objective", Objective(self.objective))
        object.__setattr__(self, "precision", Precision(self.precision))


__all__ = ["Objective", "Precision", "Schedule", "TrainerSettings"]
