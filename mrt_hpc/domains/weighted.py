"""Several rewards as one verifier, each with its weight."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mrt_hpc.domains.base import Judgement, Solution, Verifier, reward_of
from mrt_hpc.domains.extraction import THOUGHT_END
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.rewards import weighted_sum
from mrt_hpc.recipe.base import Section, misfit, require_kind
from mrt_hpc.recipe.choices import Extraction
from mrt_hpc.recipe.kinds import SINGLE_VERIFIERS, VerifierSettings
from mrt_hpc.recipe.sections import Grading

WEIGHTS_DIFFER = 1e-6
"""By rounding, from a sum of 1."""


class WeightedPart(Section):
    verifier: Annotated[VerifierSettings, SINGLE_VERIFIERS]
    """The verifier that gives this part of the reward, as under data.verifier."""
    weight: Annotated[float, Field(gt=0, le=1)]
    """The share of the whole reward; all shares sum to 1."""


class WeightedVerifier(Verifier):
    """The weighted sum of several rewards. The first part finds the answer. A text that one part cannot judge is not
    judged.
    """

    type: Literal["weighted"] = "weighted"
    parts: Annotated[tuple[WeightedPart, ...], Field(min_length=2)]
    """The verifiers and their weights."""
    combine: Literal["sum_then_normalise", "normalise_then_sum"] = "sum_then_normalise"
    """How advantages follow: from the weighted sum; or (GDPO, with algorithm grpo alone) as the weighted sum of each
    reward's own advantages, divided by that reward's deviation in the group.
    """

    @model_validator(mode="after")
    def _weights_sum_to_one(self) -> Self:
        if abs(sum(self.weights) - 1.0) > WEIGHTS_DIFFER:
            raise misfit("parts", f"weights that sum to 1, and not to {sum(self.weights):g}")
        return self

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(part.weight for part in self.parts)

    @property
    def normalised_weights(self) -> tuple[float, ...]:
        return self.weights if self.combine == "normalise_then_sum" else ()

    @property
    def finds_boxes(self) -> bool:
        return self.judges[0].finds_boxes

    @property
    def judges(self) -> tuple[Verifier, ...]:
        return tuple(require_kind(part.verifier, Verifier) for part in self.parts)

    @property
    def members(self) -> tuple[Verifier, ...]:
        return (self, *(member for judge in self.judges for member in judge.members))

    @property
    def sees_trace(self) -> bool:
        return any(judge.sees_trace for judge in self.judges)

    @property
    def longest_wall_s(self) -> float:
        return sum(judge.longest_wall_s for judge in self.judges)

    def extract(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None:
        return self.judges[0].extract(text, thinking=thinking, thought_end=thought_end, cut=cut)

    def judge(self, answer: str, gold: str) -> Judgement:
        return self.judge_trace(Solution(answer, gold, "", ""))

    def judge_trace(self, solution: Solution) -> Judgement:
        judged = [_judge_part(judge, solution) for judge in self.judges]
        rewards = [reward_of(one.correct, judge.type) for one, judge in zip(judged, self.judges, strict=True)]
        readable, parts = judged[0].readable, tuple(reward for reward in rewards if reward is not None)
        if len(parts) < len(rewards):
            return Judgement(correct=None, readable=readable)
        return Judgement(correct=weighted_sum(parts, self.weights), readable=readable, parts=parts)

    def may_take_long(self, answer: str) -> bool:
        return any(judge.may_take_long(answer) for judge in self.judges)

    def refusal(self) -> UserError | None:
        return next(filter(None, (judge.refusal() for judge in self.judges)), None)

    def with_defaults(self, grading: Grading) -> Self:
        return self._with_judges([judge.with_defaults(grading) for judge in self.judges])

    def with_extraction(self, rule: Extraction) -> Self:
        changed = self._with_judges([judge.with_extraction(rule) for judge in self.judges])
        return super(WeightedVerifier, changed).with_extraction(rule)

    def _with_judges(self, judges: Sequence[Verifier]) -> Self:
        parts = [part.model_copy(update={"verifier": one}) for part, one in zip(self.parts, judges, strict=True)]
        return self.model_copy(update={"parts": tuple(parts)})


def _judge_part(judge: Verifier, solution: Solution) -> Judgement:
    """As a pool judges one verifier's answers."""
    if judge.sees_trace:
        return judge.judge_trace(solution)
    if solution.answer is None or not solution.answer.strip():
        return Judgement(correct=False, readable=False)
    certain = judge.certain(solution.answer, solution.gold)
    return judge.judge_trace(solution) if certain is None else Judgement(correct=certain, readable=True)
