"""GRPO: the outcome reward alone, compared within the group of a problem."""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.algorithms.base import RolloutAlgorithm
from mrt_hpc.algorithms.batch import Batch, Learnt, rollout_sequences
from mrt_hpc.mrt.grpo import Baseline, Normalise, failed_groups, outcome_token_advantages
from mrt_hpc.recipe.base import FormerValues


class OutcomeAlgorithm(RolloutAlgorithm):
    """One advantage for all tokens of a rollout, from one reward of each rollout."""

    former_values: ClassVar[FormerValues] = {
        "divide_by_std": {True: {"baseline": "group", "normalise": "group_std"}, False: {"baseline": "group"}}
    }

    baseline: Literal["group", "leave_one_out"] = "leave_one_out"
    """The quantity with which a reward is compared: the mean of the group with the own reward in it (GRPO), or the mean
    of the others (RLOO).
    """
    normalise: Literal["none", "group_std", "batch_std"] = "none"
    """The deviation that divides the advantages: none (Dr. GRPO), that of the group (GRPO), or that of the batch."""
    without_outcome: Literal["keep", "drop"] = "keep"
    """Whether a group without a right answer is learnt, where a penalty makes its rewards differ (keep), or not."""

    def learnt_with(self, batch: Batch, rewards: NDArray[np.float64]) -> Learnt:
        """The sequences of a batch with these rewards, [B]."""
        failed = failed_groups(batch.right, batch.problem_ids)
        advantages = outcome_token_advantages(
            rewards,
            batch.problem_ids,
            batch.lengths,
            baseline=Baseline(self.baseline),
            normalise=Normalise(self.normalise),
            dropped=failed if self.without_outcome == "drop" else None,
        )
        return Learnt(rollout_sequences(batch, advantages))


class Grpo(OutcomeAlgorithm):
    """Outcome reward only, compared within the group of a problem.

    Source: Shao et al. (2024).
    """

    compares_rewards_alone: ClassVar[bool] = True
    type: Literal["grpo"] = "grpo"

    def learnt(self, batch: Batch) -> Learnt:
        return self.learnt_with(batch, batch.rewards)
