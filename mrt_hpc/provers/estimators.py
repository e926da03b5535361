"""Asking the prover mu about the boundaries of a trace: branches, and exact probabilities of known answers.

Each prover says what it asks of the server (``value``), and how the graded answers make an estimate of V (``estimate``,
by the pure functions of :mod:`mrt_hpc.mrt.values`). The branches of one trace may share their random numbers: a branch
then has the same seed at every boundary, so that the noise of neighbouring values is alike and cancels in their
difference, while each value by itself stays unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mrt_hpc.inference.traces import BoundaryPlan, Valuation
from mrt_hpc.mrt.values import (
    Estimate,
    KnownAnswer,
    Vote,
    likelihood,
    majority,
    monte_carlo,
    rao_blackwell,
)
from mrt_hpc.provers.branches import openness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mrt_hpc.inference.traces import SampledTrace
    from mrt_hpc.provers.box_tokens import Writing
    from mrt_hpc.provers.branches import Branches
    from mrt_hpc.provers.history import Experience, Planner
    from mrt_hpc.provers.scoring import Scorer
    from mrt_hpc.run.records import AnswerProbability, Branch


@dataclass(frozen=True)
class Looked:
    """What was asked at one boundary, graded."""

    plan: BoundaryPlan
    branches: Sequence[Branch]
    answers: Sequence[AnswerProbability]
    same: Mapping[str, str] = field(default_factory=dict)
    """For a vote: another answer that says the same as an answer, and stands for it."""


class Prover(Protocol):
    """One way of valuing prefixes."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """Ask about the boundaries of a trace.

        Raises:
            UserError: the server refused a request, or stayed unreachable.
        """

    def estimate(self, looked: Looked) -> Estimate:
        """V of one boundary."""


@dataclass(frozen=True)
class MonteCarlo:
    """V as the mean reward of G branches: ``forced_answer``, ``boxed_answer`` and ``continuation``."""

    branches: Branches
    count: int
    """G"""

    async def value(self, trace: SampledTrace) -> Valuation:
        """G branches at every boundary, in one request."""
        boundaries = self.branches.fork.boundaries(trace)
        drawn = await self.branches.draw(trace, dict.fromkeys(boundaries, range(self.count)))
        return Valuation([BoundaryPlan(j, self.count, 0.0) for j in boundaries], drawn)

    def estimate(self, looked: Looked) -> Estimate:
        """The mean reward."""
        return monte_carlo([b.reward for b in looked.branches])


@dataclass(frozen=True)
class LookingAhead(MonteCarlo):
    """V as the mean of branches' rewards, each corrected by what looking ahead at its tokens tells."""

    experience: Experience
    planner: Planner | None = None
    """None draws as many branches at every boundary."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """One branch at every boundary, then as many more as the planner gives each."""
        trust = self.experience.trust  # as it is before the first branch: a forecast must not know what was drawn
        if self.planner is None:
            return replace(await super().value(trace), trust=trust)
        boundaries, usual = self.branches.fork.boundaries(trace), self.planner.usual
        first = await self.branches.draw(trace, dict.fromkeys(boundaries, range(1)))
        spreads = np.array([openness(branch.looks[0]) for branch in first])
        more = self.planner.counts(spreads, self.branches.fork.uniforms(trace, len(boundaries)), usual)
        numbers = {j: range(1, 1 + int(n)) for j, n in zip(boundaries, more, strict=True)}
        drawn = [*first, *await self.branches.draw(trace, numbers)]
        plans = [BoundaryPlan(j, 1 + len(numbers[j]), 0.0) for j in boundaries]
        return Valuation(plans, sorted(drawn, key=lambda b: (b.boundary, b.branch)), trust=trust)

    def estimate(self, looked: Looked) -> Estimate:
        """The mean of the corrected rewards; a value of a few branches may lie outside [0, 1]."""
        return monte_carlo([b.reward + b.look_ahead for b in looked.branches])


@dataclass(frozen=True)
class MajorityVote(MonteCarlo):
    """V as the outcome of a vote of the branches."""

    def estimate(self, looked: Looked) -> Estimate:
        """maj@G, weighted by mean token probability; answers that say the same vote together."""
        return majority([self._vote(branch, looked.same) for branch in looked.branches])

    @staticmethod
    def _vote(branch: Branch, same: Mapping[str, str]) -> Vote:
        answer = None if branch.answer is None else same.get(branch.answer, branch.answer)
        return Vote(answer, branch.reward, float(np.exp(branch.logprobs).mean()))


@dataclass(frozen=True)
class GoldLikelihood:
    """V as the probability of the gold answer, in whatever tokens it is written and its box is closed."""

    scorer: Scorer
    writings: Callable[[SampledTrace], list[Writing]]

    async def value(self, trace: SampledTrace) -> Valuation:
        """No branches."""
        boundaries = self.scorer.fork.boundaries(trace)
        scored = await self.scorer.score(trace, boundaries, self.writings(trace)[:1])
        return replace(scored.valuation, plans=[BoundaryPlan(j, 0, 0.0) for j in boundaries])

    def estimate(self, looked: Looked) -> Estimate:
        """Its probability, where the grader finds it right, as it judges every answer."""
        return likelihood(KnownAnswer(a.probability, a.reward) for a in looked.answers)


@dataclass(frozen=True)
class RaoBlackwell:
    """V exactly for known answers, by branches for the rest."""

    scorer: Scorer
    branches: Branches
    count: int
    """G, branches a boundary."""
    experience: Experience
    writings: Callable[[SampledTrace], list[Writing]]
    """Of the answers known for a trace's problem."""

    async def value(self, trace: SampledTrace) -> Valuation:
        """First the probabilities of what is known, then the branches."""
        boundaries, baseline = self.scorer.fork.boundaries(trace), self.experience.baseline
        scored = await self.scorer.score(trace, boundaries, self.writings(trace))
        plans = [BoundaryPlan(j, self.count, baseline) for j in boundaries]
        drawn = await self.branches.draw(trace, {p.boundary: range(p.branches) for p in plans})
        marked = [replace(b, known=any(c.holds(b.token_ids) for c in scored.counts[b.boundary])) for b in drawn]
        return replace(scored.valuation, plans=plans, branches=marked)

    def estimate(self, looked: Looked) -> Estimate:
        """See :func:`mrt_hpc.mrt.values.rao_blackwell`."""
        known = [KnownAnswer(a.probability, a.reward) for a in looked.answers]
        unknown = [None if b.known else b.reward for b in looked.branches]
        return rao_blackwell(known, unknown, looked.plan.baseline)
