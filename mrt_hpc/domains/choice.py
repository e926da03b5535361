"""Multiple choice: the answer is the letter of one of the choices."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from mrt_hpc.domains.base import Judgement, Verifier

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
        found = _CHOICE.fullmatch(answer)
        letter = (found[1] or found[2]).upper() if found else ""
        return letter if letter and letter in LETTERS[: self.choices] else None
