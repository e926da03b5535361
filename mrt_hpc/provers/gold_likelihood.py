r"""The probability of the gold answer after the forced ``\boxed{``: alone, without sampling, or with the confidence of
branches in their own answers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from mrt_hpc.inference.traces import BoundaryPlan, SampledTrace, Valuation
from mrt_hpc.mrt.values import Estimate, KnownAnswer, confident_likelihood, likelihood
from mrt_hpc.provers.base import BoxedProver, GradedBoundary, OpensBox, ProverTools
from mrt_hpc.provers.box_tokens import Writing
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.rao_blackwell import RaoBlackwellEstimator
from mrt_hpc.provers.scoring import Scorer
from mrt_hpc.recipe.base import Tokens


class GoldLikelihood(OpensBox):
    r"""No sampling: the probability of the gold answer's tokens after the forced ``\boxed{``. Of several gold
    answers it is the sum, as a box holds one text.

    Source: not in the paper.
    """

    judges_answers_alone: ClassVar[bool] = True
    samples_answers: ClassVar[bool] = False
    type: Literal["gold_likelihood"] = "gold_likelihood"
    max_tokens: Tokens = 64
    """The maximum number of tokens of the gold answer; the value of prefixes counts as 0 where it is longer. Of several
    gold answers, those that are longer add nothing.
    """

    def estimator(self, tools: ProverTools) -> "GoldLikelihoodScore":
        return GoldLikelihoodScore(Scorer(tools.fork), tools.writings)


@dataclass(frozen=True)
class GoldLikelihoodScore:
    """V as the gold answer's probability, over all its tokenisations and closings."""

    votes: ClassVar[bool] = False
    scorer: Scorer
    writings: Callable[[SampledTrace], list[Writing]]

    async def value(self, trace: SampledTrace) -> Valuation:
        boundaries = self.scorer.fork.boundaries(trace)
        scored = await self.scorer.score(trace, boundaries, self.writings(trace))
        return replace(scored.valuation, plans=[BoundaryPlan(j, 0, 0.0) for j in boundaries])

    def estimate(self, graded: GradedBoundary) -> Estimate:
        """Its probability where the verifier, which judges every answer, finds it right."""
        return likelihood(_known_answers(graded))


class ConfidentLikelihood(BoxedProver):
    """The likelihood a of the gold answer with the confidence c of branches in their own answers: 1.5 a c + 0.5 a - c.

    Source: SPAE (arXiv 2601.03823).
    """

    judges_answers_alone: ClassVar[bool] = True
    values_stopping: ClassVar[bool] = False
    type: Literal["confident_likelihood"] = "confident_likelihood"

    def estimator(self, tools: ProverTools) -> "ConfidenceEstimator":
        branches = Branches(tools.fork, tools.closing)
        return ConfidenceEstimator(Scorer(tools.fork), branches, self.branches, tools.history, tools.writings)


class ConfidenceEstimator(RaoBlackwellEstimator):
    def estimate(self, graded: GradedBoundary) -> Estimate:
        """See :func:`mrt_hpc.mrt.values.confident_likelihood`."""
        confidences = [float(np.exp(np.mean(b.logprobs))) for b in graded.branches]
        return confident_likelihood(likelihood(_known_answers(graded)).value, confidences)


def _known_answers(graded: GradedBoundary) -> list[KnownAnswer]:
    return [KnownAnswer(a.probability, a.reward) for a in graded.answers]
