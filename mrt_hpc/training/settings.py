"""What the trainer has to know, as plain data; imports no torch, so that a plan may look at it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Training


class Objective(StrEnum):
    """What an update maximises."""

    POLICY_GRADIENT = "policy_gradient"
    """Advantage-weighted clipped ratios (grpo, mrt, mrt_online)."""
    LIKELIHOOD = "likelihood"
    """Advantage-weighted log-likelihood of the sampled tokens, no ratio (star, mrt_star, sft_*)."""


@dataclass(frozen=True)
class TrainerSettings:
    """One trainer: the recipe's own section, and what the run adds to it."""

    training: Training
    """The recipe's ``training`` section: the one place where these fields and their defaults are defined."""
    total_steps: int
    """Optimiser steps of the whole run: iterations times optimiser steps of an iteration; the schedule's length."""
    temperature: float
    """Sampling temperature: all log-probabilities are of the distribution sampled from."""
    objective: Objective = Objective.POLICY_GRADIENT
    seed: int = 0
