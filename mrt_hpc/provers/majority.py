"""A vote of the branches."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from mrt_hpc.mrt.values import Estimate, Vote, majority
from mrt_hpc.provers.base import GradedBoundary, ProverTools, SamplingProver
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.monte_carlo import MonteCarlo
from mrt_hpc.run.records import Branch


class Majority(SamplingProver):
    """maj@p over the branches: votes are weighted by mean token probability, and ties count one half.

    Source: paper, Section 5 (maj@p at a prefix).
    """

    values_stopping: ClassVar[bool] = False
    type: Literal["majority"] = "majority"

    def estimator(self, tools: ProverTools) -> "MajorityVote":
        """G branches at each boundary, which vote."""
        return MajorityVote(Branches(tools.fork), self.branches)


class MajorityVote(MonteCarlo):
    """V as the outcome of a vote of the branches."""

    votes: ClassVar[bool] = True

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """maj@G, weighted by mean token probability; answers that say the same vote together."""
        return majority([_vote(branch, graded.same) for branch in graded.branches])


def _vote(branch: Branch, same: Mapping[str, str]) -> Vote:
    answer = None if branch.answer is None else same.get(branch.answer, branch.answer)
    return Vote(answer, branch.reward, float(np.exp(branch.logprobs).mean()))
