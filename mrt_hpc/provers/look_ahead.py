"""The prover whose branches' rewards are corrected by the answers that their likely next tokens would have given."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from mrt_hpc.inference.traces import BoundaryPlan, SampledTrace, Valuation
from mrt_hpc.mrt.values import Estimate, monte_carlo
from mrt_hpc.provers.base import BoxedProver, GradedBoundary, ProverTools
from mrt_hpc.provers.branches import Branches, openness
from mrt_hpc.provers.history import AnswerHistory, Planner
from mrt_hpc.provers.sampled_answers import MonteCarlo

LIKELY_TOKENS = 20
"""The candidates at each token, at most."""
LEAST_PROBABILITY = 0.005
"""Candidates of a smaller probability are not looked at."""


class LookAhead(BoxedProver):
    """As boxed_answer, but at each token of a branch the verifier looks at what the likely next tokens would make of
    the answer, and chance is replaced by their probabilities. It costs no further tokens.

    Source: not in the paper (a control variate along the branch).
    """

    judges_answers_alone: ClassVar[bool] = True
    rewards_each_branch: ClassVar[bool] = True
    type: Literal["look_ahead"] = "look_ahead"
    former_fields: ClassVar[Mapping[str, Any]] = {
        **BoxedProver.former_fields,
        "likely_tokens": LIKELY_TOKENS,
        "least_probability": LEAST_PROBABILITY,
    }
    planner: Literal["uniform", "by_openness"] = "uniform"
    """Whether every boundary gets G branches, or one, and further ones where its answer is still open, G on average."""

    def estimator(self, tools: ProverTools) -> "LookingAhead":
        looking = Branches(tools.fork, tools.closing, LIKELY_TOKENS, LEAST_PROBABILITY)
        planner = None if self.planner == "uniform" else tools.history.planner(self.branches - 1)
        return LookingAhead(looking, self.branches, tools.history, planner)


@dataclass(frozen=True)
class LookingAhead(MonteCarlo):
    """V as the mean of branches' rewards, each corrected by looking ahead."""

    history: AnswerHistory
    planner: Planner | None = None
    """None draws equally many branches everywhere."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """One branch at every boundary, then as many as the planner gives."""
        trust = self.history.trust  # before the first branch: a forecast must not depend on draws
        if self.planner is None:
            return replace(await super().value(trace), trust=trust)
        boundaries, usual = self.branches.fork.boundaries(trace), self.planner.usual
        first = await self.branches.draw(trace, dict.fromkeys(boundaries, range(1)))
        spreads = np.array([openness(branch.looks[0]) for branch in first])
        more = self.planner.counts(spreads, self.branches.fork.uniforms(trace, len(boundaries)), usual)
        numbers = {j: range(1, 1 + int(n)) for j, n in zip(boundaries, more, strict=True)}
        drawn = [*first, *await self.branches.draw(trace, numbers)]
        plans = [BoundaryPlan(j, 1 + len(numbers[j]), 0.0) for j in boundaries]
        in_order = sorted(drawn, key=lambda b: (b.boundary, b.branch))
        return Valuation(plans, in_order, trust=trust)

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """Mean of corrected rewards; with few branches it may lie outside [0, 1]."""
        return monte_carlo([b.reward + b.look_ahead for b in graded.branches])
