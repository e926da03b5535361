"""A verifier of a user's own, as it lies beside a recipe: multiple choice whose answer stands in the last line.

docs/extending.md explains it; tests/unit/test_verifiers.py runs it.
"""

import re
from typing import Annotated

from pydantic import Field

from mrt_hpc import THOUGHT_END, Judgement, Verifier, after_thought

LAST_LINE = re.compile(r"answer:\s*\(?([A-Z])\)?\.?\s*\Z", re.IGNORECASE)


class LastLineChoice(Verifier):
    """The letter after `Answer:` in the last line of the completion."""

    reads_boxes = False
    type: str
    choices: Annotated[int, Field(ge=2, le=26)] = 4
    """The number of choices: 4 are A to D."""

    def extract(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None:
        """The letter in the last line after the thought; None for a text that was cut, which has none."""
        said = after_thought(text, thinking=thinking, thought_end=thought_end)
        found = LAST_LINE.search(said) if said is not None and not cut else None
        return found[1].upper() if found else None

    def certain(self, answer: str, gold: str) -> bool | None:  # noqa: ARG002
        """A letter beyond the choices is wrong; whether others are right is decided in a process of its own."""
        return False if ord(answer) - ord("A") >= self.choices else None

    def judge(self, answer: str, gold: str) -> Judgement:
        """Whether the letters are equal."""
        return Judgement(correct=answer == gold.strip().upper(), readable=True)


def same_words(answer: str, gold: str) -> bool:
    """A verifier that is a function, `verifier: my_verifier:same_words`: the words of the box, in any order."""
    return sorted(answer.casefold().split()) == sorted(gold.casefold().split())


def tidy(answer: str | None, gold: str, trace: str) -> float | None:  # noqa: ARG001 - it looks at the trace alone
    """A reward of the whole trace: half for a thought that ends, half for one box; no verdict on an empty text."""
    if not trace.strip():
        return None
    return 0.5 * (trace.count(THOUGHT_END) == 1) + 0.5 * (trace.count("\\boxed{") == 1)
