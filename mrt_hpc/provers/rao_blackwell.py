"""Exact probabilities of answers known beforehand, and branches for the rest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from mrt_hpc.inference.traces import BoundaryPlan, SampledTrace, Valuation
from mrt_hpc.mrt.values import Estimate, KnownAnswer, rao_blackwell
from mrt_hpc.provers.base import BoxedProver, GradedBoundary, ProverTools
from mrt_hpc.provers.box_tokens import Writing
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.history import AnswerHistory
from mrt_hpc.provers.scoring import Scorer

KNOWN_ANSWERS = 8
"""The gold answer, and those seen most often in traces and branches of the problem before."""


class RaoBlackwell(BoxedProver):
    """Exact probabilities for answers known beforehand, branches for the rest of the mass only.

    Source: not in the paper (Rao-Blackwell with a control variate).
    """

    judges_answers_alone: ClassVar[bool] = True
    type: Literal["rao_blackwell"] = "rao_blackwell"
    former_fields: ClassVar[Mapping[str, Any]] = {**BoxedProver.former_fields, "known_answers": KNOWN_ANSWERS}

    @property
    def known_answer_limit(self) -> int:
        return KNOWN_ANSWERS

    def estimator(self, tools: ProverTools) -> "RaoBlackwellEstimator":
        branches = Branches(tools.fork, tools.closing)
        return RaoBlackwellEstimator(Scorer(tools.fork), branches, self.branches, tools.history, tools.writings)


@dataclass(frozen=True)
class RaoBlackwellEstimator:
    """V exactly for known answers, by branches for the rest."""

    votes: ClassVar[bool] = False
    scorer: Scorer
    branches: Branches
    count: int
    """G, branches a boundary."""
    history: AnswerHistory
    writings: Callable[[SampledTrace], list[Writing]]
    """Of a problem's known answers."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """Known answers' probabilities first, then branches."""
        boundaries, baseline = self.scorer.fork.boundaries(trace), self.history.baseline
        scored = await self.scorer.score(trace, boundaries, self.writings(trace))
        plans = [BoundaryPlan(j, self.count, baseline) for j in boundaries]
        drawn = await self.branches.draw(trace, {p.boundary: range(p.branches) for p in plans})
        marked = [
            replace(b, known=any(c.holds(b.completion.token_ids) for c in scored.counts[b.boundary])) for b in drawn
        ]
        return replace(scored.valuation, plans=plans, branches=marked)

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """See :func:`mrt_hpc.mrt.values.rao_blackwell`."""
        known = [KnownAnswer(a.probability, a.reward) for a in graded.answers]
        unknown = [None if b.known else b.reward for b in graded.branches]
        return rao_blackwell(known, unknown, graded.plan.baseline)
