r"""The probability of the gold answer after the forced ``\boxed{``, without sampling."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from mrt_hpc.inference.traces import BoundaryPlan, SampledTrace, Valuation
from mrt_hpc.mrt.values import Estimate, KnownAnswer, likelihood
from mrt_hpc.provers.base import GradedBoundary, OpensBox, ProverTools
from mrt_hpc.provers.box_tokens import Writing
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
        return likelihood(KnownAnswer(a.probability, a.reward) for a in graded.answers)
