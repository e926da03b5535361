r"""Finds mathematics in running text: formulas between their delimiters, and numbers with their calculations.

math-verify's own search looks for the same, but its patterns take quadratic time for texts that open formulas and never
close them. Here each text is read once.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ANNOUNCED_WITHIN = 50
"""Characters between the word "answer" and what it announces, at most."""

_CLOSING = {r"\(": r"\)", r"\[": r"\]", "$": "$", "$$": "$$"}
_ON_ONE_LINE = (r"\(", "$")
_MARK = re.compile(r"\\.|\$\$?|\n", re.DOTALL)
_ANSWER = re.compile("answer", re.IGNORECASE)
_NUMBER = (
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+|\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\})"
)
_CALCULATION = re.compile(rf"(?<![\w.\\])[-+−]?{_NUMBER}(?:\s*[-+−*/^×÷·=≈]\s*\(?{_NUMBER}\)?)*(?:\s*\\?%)?", re.ASCII)


@dataclass(frozen=True)
class Found:
    """Mathematics in a text."""

    start: int
    """Where it starts, with its delimiter."""
    end: int
    content: str
    """Without its delimiters and without blank space around it."""


def last_mathematics_in(text: str) -> str | None:
    """What the last word "answer" announces that announces any mathematics, else the last; None where there is none."""
    found = list(_mathematics(text))
    starts = [piece.start for piece in found]
    for word in reversed(list(_ANSWER.finditer(text))):
        following = bisect_left(starts, word.end())
        if following < len(found) and starts[following] - word.end() <= ANNOUNCED_WITHIN:
            return found[following].content
    return found[-1].content if found else None


def _mathematics(text: str) -> Iterator[Found]:
    """Formulas and the calculations between them, in order."""
    behind = 0
    for formula in _formulas(text):
        yield from _calculations(text, behind, formula.start)
        yield formula
        behind = formula.end
    yield from _calculations(text, behind, len(text))


def _calculations(text: str, start: int, end: int) -> Iterator[Found]:
    for found in _CALCULATION.finditer(text, start, end):
        yield Found(found.start(), found.end(), found[0])


def _formulas(text: str) -> Iterator[Found]:
    """What stands between delimiters. A dollar sign before a digit closes nothing, so that prices are no delimiters."""
    opening: re.Match[str] | None = None
    for mark in _MARK.finditer(text):
        if opening is not None and _closes(mark, opening, text):
            if content := text[opening.end() : mark.start()].strip():
                yield Found(opening.start(), mark.end(), content)
            opening = None
        elif mark[0] in _CLOSING:
            opening = mark
        elif mark[0] == "\n" and opening is not None and opening[0] in _ON_ONE_LINE:
            opening = None


def _closes(mark: re.Match[str], opening: re.Match[str], text: str) -> bool:
    if mark[0] != _CLOSING[opening[0]]:
        return False
    before, behind = text[mark.start() - 1], text[mark.end() : mark.end() + 1]
    return mark[0] != "$" or not (before.isspace() or behind.isdigit())
