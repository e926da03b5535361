"""V as a mean over sampled branches, and the provers that take it: a forced answer, a boxed one, a continuation."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from mrt_hpc.inference.traces import BoundaryPlan, SampledTrace, Valuation
from mrt_hpc.mrt.values import Estimate, monte_carlo
from mrt_hpc.provers.base import BoxedProver, GradedBoundary, ProverTools, SamplingProver
from mrt_hpc.provers.branches import Branches
from mrt_hpc.recipe.base import Count


@dataclass(frozen=True)
class MonteCarlo:
    """V as the mean reward of G branches."""

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
    """mu stops the thought with a short text and samples an answer; V is the mean reward of the branches.

    Source: paper, Section 5 and 6 (the prover mu).
    """

    answers_freely: ClassVar[bool] = True
    rewards_each_branch: ClassVar[bool] = True
    type: Literal["forced_answer"] = "forced_answer"

    def estimator(self, tools: ProverTools) -> MonteCarlo:
        """G branches at each boundary."""
        return MonteCarlo(Branches(tools.fork), self.branches)


class BoxedAnswer(BoxedProver):
    r"""Like forced_answer, but the answer begins inside ``\boxed{`` and ends where the box closes: branches of a few
    tokens.
    """

    rewards_each_branch: ClassVar[bool] = True
    type: Literal["boxed_answer"] = "boxed_answer"

    def estimator(self, tools: ProverTools) -> MonteCarlo:
        """G branches at each boundary, each to the end of its box."""
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
        """G rollouts from each boundary."""
        return MonteCarlo(Branches(tools.fork), self.branches)
