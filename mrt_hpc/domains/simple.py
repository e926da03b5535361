"""Multiple choice: the answer is the letter of one of the choices."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from mrt_hpc.domains.base import Judgement, NoVerdictError, Verifier
from mrt_hpc.recipe.registry import imported

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CHOICE = re.compile(
    r"\s*+(?:\\(?:text|textbf|mathrm|mathbf)\s*+\{)?\s*+"
    r"(?:[(\[]\s*+([A-Za-z])\s*+[)\]](?:\W.*)?|([A-Za-z])\s*+\}?\s*+(?:[.:,)].*)?)",
    re.DOTALL,
)
"""A letter in brackets, whatever follows; or alone, or before a full stop, a colon, a comma or a bracket and a choice;
each may stand in a LaTeX text command. White space is given back by no repetition, so the time is linear.
"""


class ChoiceVerifier(Verifier):
    r"""A final answer in a box that is the letter of a choice, as in ``B``, ``(B)``, ``\text{B}`` or ``B. Paris``."""

    type: Literal["choice"] = "choice"
    choices: Annotated[int, Field(ge=2, le=26)] = 4
    """The number of choices: 4 are A to D."""

    def certain(self, answer: str, gold: str) -> bool:
        """The verdict, always: a letter is read at once, and what is none is wrong."""
        letter = self.letter(answer)
        return letter is not None and letter == self.letter(gold)

    def reads(self, gold: str) -> bool:
        """Whether it is the letter of a choice."""
        return self.letter(gold) is not None

    def judge(self, answer: str, gold: str) -> Judgement:
        """The same, and whether the answer was a letter of a choice."""
        return Judgement(correct=self.certain(answer, gold), readable=self.letter(answer) is not None)

    def letter(self, answer: str) -> str | None:
        """The letter of a choice that an answer gives; None where it gives none, or one beyond the choices."""
        match = _CHOICE.fullmatch(answer)
        letter = (match[1] or match[2]).upper() if match else ""
        return letter if letter and letter in LETTERS[: self.choices] else None


# -- exact -------------------------------------------------------------------------------------------------------------
# Answers that must be the gold answer's own text.


class ExactVerifier(Verifier):
    """A final answer in a box that is the gold answer's text, blank space around it left out."""

    type: Literal["exact"] = "exact"
    ignore_case: bool = False
    """Whether capital and small letters are the same."""

    def certain(self, answer: str, gold: str) -> bool:
        """The verdict, always: texts are compared at once."""
        given, expected = answer.strip(), gold.strip()
        return given.casefold() == expected.casefold() if self.ignore_case else given == expected

    def reads(self, gold: str) -> bool:  # noqa: ARG002 - any text will do
        """Always."""
        return True

    def judge(self, answer: str, gold: str) -> Judgement:
        """The same."""
        return Judgement(correct=self.certain(answer, gold), readable=True)


# -- function ----------------------------------------------------------------------------------------------------------
# A function of the user's own as a verifier: it compares an answer with the gold answer.


class FunctionVerifier(Verifier):
    """A final answer in a box that a function of the user's own takes for right.

    The function gets the answer and the gold answer, and returns true or false. It runs in the grader processes, so it
    may hang or crash: the answer then scores 0.
    """

    type: str
    """The function as ``module:function``; the module may lie beside the recipe."""

    @field_validator("type")
    @classmethod
    def _takes_two_texts(cls, name: str) -> str:
        try:
            inspect.signature(imported(name)).bind("answer", "gold")
        except TypeError as error:
            raise PydanticCustomError(
                "wrong_arguments",
                "a function of two texts, the answer and the gold answer; of {name} Python says: {reason}",
                {"name": name, "reason": str(error)},
            ) from error
        return name

    @property
    def function(self) -> Callable[[str, str], object]:
        """The function itself."""
        function: Callable[[str, str], object] = imported(self.type)
        return function

    def judge(self, answer: str, gold: str) -> Judgement:
        """What the function returns.

        Raises:
            NoVerdictError: it returns something else than true or false, of Python or numpy.
        """
        correct = self.function(answer, gold)
        if isinstance(correct, np.bool_):
            correct = bool(correct)
        if not isinstance(correct, bool):
            raise NoVerdictError(f"{self.type} returned {correct!r}, which is neither true nor false")
        return Judgement(correct=correct, readable=True)
