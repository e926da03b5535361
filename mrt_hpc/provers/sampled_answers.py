"""V as a mean over branches, with its provers (a forced answer, a boxed one, a continuation), and V as a vote of
branches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mrt_hpc.inference.traces import BoundaryPlan, SampledTrace, Valuation
from mrt_hpc.mrt.values import Estimate, Vote, majority, monte_carlo
from mrt_hpc.provers.base import BoxedProver, GradedBoundary, ProverTools, SamplingProver
from mrt_hpc.provers.branches import Branches
from mrt_hpc.recipe.base import Count
from mrt_hpc.run.records import Branch


@dataclass(frozen=True)
class MonteCarlo:
    votes: ClassVar[bool] = False
    branches: Branches
    count: int
    """G"""

    async def value(self, trace: SampledTrace) -> Valuation:
        """G branches at every boundary, in one request."""
        boundaries = self.branches.fork.boundaries(trace)
        drawn = await self.branches.draw(trace, dict.fromkeys(boundaries, range(self.count)))
        return Valuation([BoundaryPlan(j, self.count, 0.0) for j in boundaries], drawn)

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """The mean reward."""
        return monte_carlo([b.reward for b in graded.branches])


class ForcedAnswer(SamplingProver):
    """mu stops the thought with a short text and samples an answer; V is the mean reward of the branches. Where the
    text opens a box, a branch ends when that closes.

    Source: paper, Section 5 and 6 (the prover mu).
    """

    answers_freely: ClassVar[bool] = True
    rewards_each_branch: ClassVar[bool] = True
    type: Literal["forced_answer"] = "forced_answer"

    def estimator(self, tools: ProverTools) -> MonteCarlo:
        return MonteCarlo(Branches(tools.fork, tools.closing if self.opens_box else None), self.branches)


class BoxedAnswer(BoxedProver):
    r"""Like forced_answer, but the answer begins inside ``\boxed{`` and ends where the box closes: branches of a few
    tokens.
    """

    rewards_each_branch: ClassVar[bool] = True
    type: Literal["boxed_answer"] = "boxed_answer"

    def estimator(self, tools: ProverTools) -> MonteCarlo:
        return MonteCarlo(Branches(tools.fork, tools.closing), self.branches)


class Continuation(SamplingProver):
    """No forced text: mu continues freely from the prefix. The backtracking data need this value of a step.

    Source: paper, Appendix (backtracking).
    """

    thinks_on: ClassVar[bool] = True
    values_stopping: ClassVar[bool] = False
    type: Literal["continuation"] = "continuation"
    forced_text: Literal[""] = ""
    branches: Count = 20
    """G, the number of rollouts from each boundary."""

    def estimator(self, tools: ProverTools) -> MonteCarlo:
        return MonteCarlo(Branches(tools.fork), self.branches)


class Majority(SamplingProver):
    """maj@p over the branches: votes are weighted by mean token probability, and ties count one half.

    Source: paper, Section 5 (maj@p at a prefix).
    """

    judges_answers_alone: ClassVar[bool] = True
    values_stopping: ClassVar[bool] = False
    type: Literal["majority"] = "majority"

    def estimator(self, tools: ProverTools) -> "MajorityVote":
        return MajorityVote(Branches(tools.fork), self.branches)


class MajorityVote(MonteCarlo):
    votes: ClassVar[bool] = True

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """maj@G, weighted by mean token probability; equivalent answers vote together."""
        return majority([_vote(branch, graded.same) for branch in graded.branches])


def _vote(branch: Branch, same: Mapping[str, str]) -> Vote:
    answer = None if branch.answer is None else same.get(branch.answer, branch.answer)
    return Vote(answer, branch.reward, float(np.exp(branch.logprobs).mean()))
