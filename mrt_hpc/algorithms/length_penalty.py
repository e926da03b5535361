"""GRPO on an outcome reward that is smaller for long right answers."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from mrt_hpc.algorithms.batch import Batch, Learnt
from mrt_hpc.algorithms.grpo import OutcomeAlgorithm
from mrt_hpc.mrt.length_penalty import budgeted_rewards, penalised_rewards
from mrt_hpc.recipe.base import Tokens, misfit
from mrt_hpc.recipe.schema import Recipe


class LengthPenalty(OutcomeAlgorithm):
    """GRPO on an outcome reward that decreases with the length of a right answer, relative to the problem's other right
    answers. With ``normalise: group_std`` the coefficient cancels in a group whose answers are all right: a small one
    shortens answers as much as a large one.

    Source: paper, Section 7 (the length penalty that MRT is compared with).
    """

    type: Literal["length_penalty"] = "length_penalty"
    coefficient: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The share of its reward that an infinitely long right answer loses; or each token, with budget_tokens."""
    budget_tokens: Tokens | None = None
    """The length at which a right answer earns one half, less beyond. Null compares right answers."""

    def check(self, recipe: Recipe) -> None:
        """Refuse two penalties of length."""
        if recipe.training.overlong == "penalise":
            raise misfit(
                "training.overlong", "keep or mask with algorithm length_penalty, which penalises lengths", "mask"
            )

    def learnt(self, batch: Batch) -> Learnt:
        lengths, coefficient = np.array(batch.lengths, dtype=np.float64), self.coefficient
        if self.budget_tokens is None:
            rewards = penalised_rewards(batch.rewards, batch.right, lengths, batch.problem_ids, coefficient=coefficient)
        else:
            rewards = budgeted_rewards(batch.rewards, lengths, budget=self.budget_tokens, coefficient=coefficient)
        return self.learnt_with(batch, rewards)
