"""GRPO: the outcome reward alone, compared within the group of a problem."""

from typing import Literal

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Batch, Learnt, rollout_sequences
from mrt_hpc.mrt.grpo import outcome_token_advantages


class Grpo(RolloutAlgorithm):
    """Outcome reward only, compared within the group of a problem.

    Source: Shao et al. (2024).
    """

    type: Literal["grpo"] = "grpo"
    divide_by_std: bool = True
    """Whether to divide by the group's standard deviation; false is Dr. GRPO's form."""

    def learnt(self, batch: Batch) -> Learnt:
        advantages = outcome_token_advantages(
            batch.rewards, batch.problem_ids, batch.lengths, divide_by_std=self.divide_by_std
        )
        return Learnt(rollout_sequences(batch, advantages))
