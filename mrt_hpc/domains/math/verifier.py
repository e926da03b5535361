"""Mathematics with a final answer in a box, compared by math-verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from mrt_hpc.domains.base import Judgement, Verifier
from mrt_hpc.domains.math.slow_forms import may_take_long

if TYPE_CHECKING:
    from mrt_hpc.recipe.sections.grading import Grading


class MathVerifier(Verifier):
    """A final answer in a box, equal to the gold answer as mathematics: numbers, expressions, sets, equations."""

    preload: ClassVar[tuple[str, ...]] = ("math_verify", "mrt_hpc.domains.math.preload")
    type: Literal["math"] = "math"
    strict: bool | None = None
    """Whether an answer to a gold number must be evaluated; null takes grading.strict."""

    def certain(self, answer: str, gold: str) -> bool | None:
        """The verdict on numbers and on equal texts."""
        from mrt_hpc.domains.math.equivalence import certain_verdict  # loads math-verify, which only tasks have

        return certain_verdict(answer, gold, strict=bool(self.strict))

    def reads(self, gold: str) -> bool | None:
        """Numbers are read at once; math-verify has to look at all else."""
        from mrt_hpc.domains.math.quantities import read_quantity

        return True if read_quantity(gold) is not None else None

    def judge(self, answer: str, gold: str) -> Judgement:
        """math-verify's judgement."""
        from mrt_hpc.domains.math.equivalence import judge

        return judge(answer, gold)

    def may_take_long(self, answer: str) -> bool:
        """Whether evaluating the answer may take longer than reading it."""
        return may_take_long(answer)

    def with_defaults(self, grading: Grading) -> Self:
        """Strict as ``grading`` says, unless the verifier says it."""
        return self if self.strict is not None else self.model_copy(update={"strict": grading.strict})
