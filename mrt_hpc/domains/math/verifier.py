"""Mathematics with a final answer in a box, compared by math-verify."""

from __future__ import annotations

import re
from typing import ClassVar, Literal, Self

from mrt_hpc.domains.base import Judgement, Verifier
from mrt_hpc.recipe.sections import Grading

# -- slow forms --------------------------------------------------------------------------------------------------------
# Decides from its text whether an answer may take long to grade, so that the others need not wait for it.
#
# Only the queue depends on it, never a verdict: an answer named here in error is graded by another process, with the
# full time limit.


LARGEST_DEPTH = 40
"""Brackets inside brackets: the parser's time grows faster than the depth."""
LONG_CHARS = 250
"""The longest gold answer of the benchmarks has 159 characters."""

_SLOW = re.compile(
    r"(?:[)}\]!]|[0-9]{5})\s*!"  # the factorial of more than four digits, or of an expression
    r"|\\[dt]?binom\s*\{[^{}]{5}"
    r"|\\(?:sum|prod|i*int|oint|lim)(?![A-Za-z])"  # evaluated term by term, or for ever
    r"|\^\s*\{?\s*-?[0-9]{5}"  # a power with an exponent of more than four digits
    r"|\^\s*(?:\{[^{}]*|[0-9]*)\^"  # a power in an exponent
)
_BRACKETS = re.compile(r"[({\[]|[)}\]]")


def may_take_long(answer: str) -> bool:
    """Whether ``answer`` has a form whose evaluation is not bounded by its length. Linear in its length."""
    return len(answer) > LONG_CHARS or _SLOW.search(answer) is not None or _depth(answer) > LARGEST_DEPTH


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket[0] in "({[" else -1
        deepest = max(deepest, depth)
    return deepest


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
        from mrt_hpc.domains.math.numbers import read_quantity

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
