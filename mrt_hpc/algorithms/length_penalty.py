"""GRPO on an outcome reward that is smaller for long right answers."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Batch, Learnt, rollout_sequences
from mrt_hpc.mrt.grpo import outcome_token_advantages
from mrt_hpc.mrt.length_penalty import penalised_rewards


class LengthPenalty(RolloutAlgorithm):
    """GRPO on an outcome reward that decreases with the length of a right answer, relative to the problem's other right
    answers.

    Source: paper, Section 7 (the length penalty that MRT is compared with).
    """

    type: Literal["length_penalty"] = "length_penalty"
    coefficient: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The share of its reward that an infinitely long right answer loses."""
    divide_by_std: bool = False
    """Whether to divide by the group's standard deviation. In a group whose answers are all right the coefficient then
    cancels: a small one shortens answers as much as a large one.
    """

    def learnt(self, batch: Batch) -> Learnt:
        rewards = penalised_rewards(
            batch.rewards, np.array(batch.lengths, dtype=np.float64), batch.problem_ids, coefficient=self.coefficient
        )
        advantages = outcome_token_advantages(
            rewards, batch.problem_ids, batch.lengths, divide_by_std=self.divide_by_std
        )
        return Learnt(rollout_sequences(batch, advantages))
