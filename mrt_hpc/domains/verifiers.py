"""The verifiers of the package, and those of the sections of a recipe."""

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from mrt_hpc.domains.base import Judgement, Solution, Verifier, reward_of
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION
from mrt_hpc.recipe.registry import import_name
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Grading, ProblemSource

if TYPE_CHECKING:
    from mrt_hpc.domains.grader_queue import GraderPool


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
    """Whether the evaluation is not bounded by the length. Linear in its length."""
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
        """Of numbers and equal texts."""
        from mrt_hpc.domains.math.equivalence import certain_verdict  # loads math-verify, which only tasks have

        return certain_verdict(answer, gold, strict=bool(self.strict))

    def reads(self, gold: str) -> bool | None:
        """Numbers are read at once; math-verify has to look at all else."""
        from mrt_hpc.domains.math.numbers import read_quantity

        return True if read_quantity(gold) is not None else None

    def probes(self, gold: str) -> dict[str, bool]:
        """Other spellings of the gold answer, and three unrelated answers."""
        from mrt_hpc.domains.math.reading import other_spellings

        return {"0": False, "17": False, "q": False} | dict.fromkeys(other_spellings(gold), True)

    def judge(self, answer: str, gold: str) -> Judgement:
        from mrt_hpc.domains.math.equivalence import judge

        return judge(answer, gold)

    def may_take_long(self, answer: str) -> bool:
        return may_take_long(answer)

    def with_defaults(self, grading: Grading) -> Self:
        return self if self.strict is not None else self.model_copy(update={"strict": grading.strict})


# -- choice ------------------------------------------------------------------------------------------------------------


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_AROUND = re.compile(
    r"\\(?:text[a-z]*|math[a-z]*|boldsymbol|bm|mbox|bf|rm|it|q?quad)(?![A-Za-z])|\*\*|\\[()\[\] ,;:!]|[${}]|~"
)
"""Fonts, delimiters and spaces around a letter."""
_CHOICE = re.compile(
    r"\s*+(?:(?:option|choice|answer)\s*+:?\s*+)?"
    r"(?:[(\[]\s*+([A-Z])\s*+[)\]](\W.*)?|([A-Z])\s*+([.:,)].*|[-–—]\s.*)?)",
    re.DOTALL | re.IGNORECASE,
)
"""A letter in brackets; or alone, or before a full stop, a colon, a comma, a bracket or a dash and a choice. No
repetition gives back white space, so the time is linear.
"""
_SECOND_CHOICE = re.compile(
    r"(?:\A[\s.:,–—-]*+|[,;/&]\s*+|\b(?:and|or|not)\s++)[(\[]?\s*+([A-Z])(?=\s*+(?:\Z|[])/&.,:;]|(?:and|or)\b))"
)
"""Another letter in the rest of an answer, that may be a choice too."""


class ChoiceVerifier(Verifier):
    r"""A final answer in a box that is the letter of a choice, as in ``B``, ``(B)``, ``\text{B}`` or ``B. Paris``."""

    type: Literal["choice"] = "choice"
    choices: Annotated[int, Field(ge=2, le=26)] = 4
    """The number of choices: 4 are A to D."""

    def certain(self, answer: str, gold: str) -> bool:
        """Always known: a letter is read at once, and anything else is wrong."""
        letter = self.letter(answer)
        return letter is not None and letter == self.letter(gold)

    def reads(self, gold: str) -> bool:
        return self.letter(gold) is not None

    def judge(self, answer: str, gold: str) -> Judgement:
        return Judgement(correct=self.certain(answer, gold), readable=self.letter(answer) is not None)

    def letter(self, answer: str) -> str | None:
        match = _CHOICE.fullmatch(_AROUND.sub(" ", answer))
        if match is None:
            return None
        letter, rest = (match[1] or match[3]).upper(), match[2] or match[4] or ""
        letters = {letter, *_SECOND_CHOICE.findall(rest)}.intersection(LETTERS[: self.choices])
        return letter if letters == {letter} else None


# -- exact -------------------------------------------------------------------------------------------------------------
# Answers that must be the gold answer's own text.


class ExactVerifier(Verifier):
    """A final answer in a box that is the gold answer's text, blank space around it left out."""

    type: Literal["exact"] = "exact"
    former_fields: ClassVar[Mapping[str, Any]] = {"ignore_case": False}

    def certain(self, answer: str, gold: str) -> bool:
        """Always known."""
        return answer.strip() == gold.strip()

    def reads(self, gold: str) -> bool:  # noqa: ARG002 - any text will do
        """Always."""
        return True

    def judge(self, answer: str, gold: str) -> Judgement:
        return Judgement(correct=self.certain(answer, gold), readable=True)


# -- function ----------------------------------------------------------------------------------------------------------
# A function of the user's own as a verifier.


class FunctionVerifier(Verifier):
    """A final answer in a box that a function of the user's own judges, of answer and gold answer, and of ``problem``
    and ``trace`` where it has such parameters. It runs in the grader processes: where it hangs or crashes, the answer
    scores 0.
    """

    type: str
    """The function as ``module:function``; the module may lie beside the recipe."""

    @field_validator("type")
    @classmethod
    def _takes_texts(cls, name: str) -> str:
        try:
            function = import_name(name)
            inspect.signature(function).bind("answer", "gold", **dict.fromkeys(_texts_wanted(function)))
        except TypeError as error:
            raise PydanticCustomError(
                "wrong_arguments",
                "a function of two texts, the answer and the gold answer, and of problem and trace where it has such "
                "parameters; of {name} Python says: {reason}",
                {"name": name, "reason": str(error)},
            ) from error
        return name

    @property
    def function(self) -> Callable[..., object]:
        function: Callable[..., object] = import_name(self.type)
        return function

    @property
    def sees_trace(self) -> bool:
        return bool(_texts_wanted(self.function))

    def judge(self, answer: str, gold: str) -> Judgement:
        return self.judge_trace(Solution(answer, gold, "", ""))

    def judge_trace(self, solution: Solution) -> Judgement:
        """Raises NoVerdictError for results that are no verdict."""
        texts = {name: getattr(solution, name) for name in _texts_wanted(self.function)}
        said = self.function(solution.answer, solution.gold, **texts)
        return Judgement(correct=reward_of(said, self.type), readable=True)


def _texts_wanted(function: Callable[..., object]) -> list[str]:
    """Texts that a function gets by name beside answer and gold answer."""
    return [name for name in ("problem", "trace") if name in inspect.signature(function).parameters]


# -- of a recipe -------------------------------------------------------------------------------------------------------
# Makes the verifiers of a recipe's sections, and asks them whether they can judge on this machine.


def verifier_of(problems: ProblemSource, grading: Grading) -> Verifier:
    """With the problems' rule of extraction and the settings from ``grading``.

    Raises:
        TypeError: the class that the recipe names is no verifier.
    """
    verifier = require_kind(problems.verifier or MathVerifier(), Verifier).with_defaults(grading)
    return verifier.with_extraction(problems.extraction or DEFAULT_EXTRACTION)


def verifiers_of(recipe: Experiment) -> list[Verifier]:
    """Of all problems of a recipe, each once."""
    sources = [recipe.data, *(benchmark.problems for benchmark in recipe.evaluation.benchmarks)]
    problems = [source for source in sources if isinstance(source, ProblemSource)]
    return list(dict.fromkeys(verifier_of(source, recipe.grading) for source in problems))


def refusals(recipe: Experiment) -> list[UserError]:
    """The reasons why answers cannot be judged on this machine; most recipes have none."""
    refused = (verifier.refusal() for verifier in verifiers_of(recipe))
    return [refusal for refusal in refused if refusal is not None]


class GoldFault(StrEnum):
    """Why a gold answer is of no use."""

    UNREADABLE = "the verifier cannot read it, so an answer in another spelling scores 0"
    UNREACHABLE = "an ordinary other spelling of it scores 0"
    LOOSE = "answers that have nothing to do with it score 1"


def gold_faults(
    answers: Sequence[str], verifier: Verifier, open_pool: "Callable[[], AbstractContextManager[GraderPool]]"
) -> dict[str, GoldFault]:
    """Gold answers that no answer in another spelling reaches, or almost any answer does. Where all can be read at
    once, as numbers can, no grader process starts.
    """
    known = {answer: verifier.reads(answer) for answer in answers}
    unknown = [answer for answer, readable in known.items() if readable is None]
    loose = dict[str, GoldFault]()
    if unknown:
        with open_pool() as pool:
            known |= dict(zip(unknown, pool.readable_all(unknown), strict=True))
            loose = _probe_faults([answer for answer in unknown if known[answer]], verifier, pool)
    return {answer: GoldFault.UNREADABLE for answer, readable in known.items() if not readable} | loose


def _probe_faults(golds: Sequence[str], verifier: Verifier, pool: "GraderPool") -> dict[str, GoldFault]:
    probes = [(answer, gold, right) for gold in golds for answer, right in verifier.probes(gold).items()]
    verdicts = asyncio.run(pool.grade([probe[:2] for probe in probes], log_failures=False))
    missed, taken = Counter[str](), Counter[str]()
    for (_, gold, right), verdict in zip(probes, verdicts, strict=True):
        missed[gold] += right and verdict.reward == 0.0
        taken[gold] += right or is_right(verdict.reward, verdict.parts)
    loose = {gold: GoldFault.LOOSE for gold in golds if taken[gold] == len(verifier.probes(gold)) > 0}
    return loose | {gold: GoldFault.UNREACHABLE for gold in golds if missed[gold]}
