"""The settings of the trainer, as plain data; imports no torch, so that planning code can import it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.recipe.sections.training import Training


class Objective(StrEnum):
    """The quantity that an update maximises."""

    POLICY_GRADIENT = "policy_gradient"
    """Advantage-weighted clipped ratios (grpo, mrt, mrt_online)."""
    LIKELIHOOD = "likelihood"
    """Advantage-weighted log-likelihood of the sampled tokens, no ratio (star, mrt_star, sft_*)."""


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of one trainer: the recipe's section, and the values that the run adds to it."""

    training: Training
    """The recipe's ``training`` section, the only place where these fields and their defaults are defined."""
    total_steps: int
    """The optimiser steps of the whole run, iterations times steps per iteration; this is the length of the schedule.
    """
    temperature: float
    """The sampling temperature; all log-probabilities are of the distribution that was sampled from."""
    objective: Objective = Objective.POLICY_GRADIENT
    seed: int = 0
    longest: int | None = None
    """The number of tokens of the longest sequence that is trained; None for the longest that the model holds."""
