r"""The rules by which an answer is found in a completion, by the names that ``extraction`` of a recipe takes.

Trainers differ where a box stands in the thought only, where the thought does not end, and where there is no box. Rules
run in the task, so each takes linear time.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from mrt_hpc.recipe.choices import Extraction

# -- boxed -------------------------------------------------------------------------------------------------------------
# Finds the final answer in a completion.
#
# It holds the usual rule for the place of the answer: after the thought, in the last ``\boxed{...}`` whose braces
# balance; ``extraction`` has the others. Leaves out what the answer means (``equivalence``). Every function takes
# linear time, whatever the text.


THOUGHT_END = "</think>"

_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BRACE_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
"""Escaped characters are swallowed first, so that the braces of ``\\{1, 2\\}`` are not counted."""


def extract_answer(
    text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
) -> str | None:
    """The final answer in ``text``, or None.

    The content of the last ``\\boxed{...}`` (or ``\\fbox``) with balanced braces after the first ``thought_end``; of
    the inner one where boxes are nested. Text without ``thought_end`` is searched whole, unless ``thinking``: a trace
    cut off while thinking has no answer.

    Args:
        text: a completion; for a branch, the forced start of the answer and the completion together.
        thinking: whether the text begins inside a thought.
        cut: whether the token limit cut the text off: a last box that is still open was to be the answer, and an
            earlier one is none.
    """
    searched = after_thought(text, thinking=thinking, thought_end=thought_end)
    return None if searched is None else (last_box(searched, cut=cut) or None)


def after_thought(text: str, *, thinking: bool, thought_end: str) -> str | None:
    """None if the thought has not ended."""
    _, ended, rest = text.partition(thought_end)
    return rest if ended else None if thinking else text


def last_box(text: str, *, cut: bool = False) -> str | None:
    """May be empty; with ``cut``, None where a later box is still open."""
    start_and_content = max(_boxes(text), default=None)
    if start_and_content is None or (cut and start_and_content[0] < _last_opening(text)):
        return None
    return start_and_content[1].strip()


def _last_opening(text: str) -> int:
    """Closed or not; there is one."""
    return max(token.start() for token in _BOX_TOKEN.finditer(text) if token[0].startswith((r"\boxed", r"\fbox")))


def _boxes(text: str) -> Iterator[tuple[int, str]]:
    """The balanced boxes of ``text`` as (start, content). Only contents of innermost boxes are copied, at most two
    copies of any character: an outer one never starts last.
    """
    open_braces: list[tuple[int, int] | None] = []  # (start of the box, start of its content), None for a plain brace
    last_started = -1
    for token in _BOX_TOKEN.finditer(text):
        if token[0] == "}":
            box = open_braces.pop() if open_braces else None
            if box is not None and box[0] > last_started:
                last_started = box[0]
                yield box[0], text[box[1] : token.start()]
        elif token[0].endswith("{") and token[0] != r"\{":
            open_braces.append((token.start(), token.end()) if len(token[0]) > 1 else None)


def braces_balance(text: str) -> bool:
    depth = 0
    for token in _BRACE_TOKEN.finditer(text):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth < 0:
            return False
    return depth == 0


# -- running text ------------------------------------------------------------------------------------------------------
# Finds mathematics in running text: formulas between their delimiters, and numbers with their calculations.
#
# math-verify's own search looks for the same, but its patterns take quadratic time for texts that open formulas and
# never close them. Here each text is read once.


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
    start: int
    """With its delimiter."""
    end: int
    content: str
    """Without delimiters and blank space around it."""


def last_mathematics_in(text: str) -> str | None:
    """The mathematics that the last word "answer" announces, else the last in the text."""
    texts = list(_mathematics(text))
    starts = [piece.start for piece in texts]
    for word in reversed(list(_ANSWER.finditer(text))):
        following = bisect_left(starts, word.end())
        if following < len(texts) and starts[following] - word.end() <= ANNOUNCED_WITHIN:
            return texts[following].content
    return texts[-1].content if texts else None


def _mathematics(text: str) -> Iterator[Found]:
    behind = 0
    for formula in _formulas(text):
        yield from _calculations(text, behind, formula.start)
        yield formula
        behind = formula.end
    yield from _calculations(text, behind, len(text))


def _calculations(text: str, start: int, end: int) -> Iterator[Found]:
    for match in _CALCULATION.finditer(text, start, end):
        yield Found(match.start(), match.end(), match[0])


def _formulas(text: str) -> Iterator[Found]:
    """A dollar sign before a digit closes nothing, so that prices are no delimiters."""
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


class ExtractionRule(Protocol):
    """Arguments as in ``Verifier.extract``."""

    def __call__(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None: ...


def any_box(
    text: str,
    *,
    thinking: bool = False,  # noqa: ARG001 - a box counts wherever it stands
    thought_end: str = THOUGHT_END,  # noqa: ARG001
    cut: bool = False,  # noqa: ARG001 - a box that was closed counts, whatever was to come
) -> str | None:
    """In the thought or after it, whether or not the text was cut."""
    return last_box(text) or None


def last_mathematics(
    text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
) -> str | None:
    """After the thought: the last closed box, else the last formula or number, or the one that the last word "answer"
    announces. A cut text has only its boxes: its last number may lack digits, or be a step on the way.
    """
    searched = after_thought(text, thinking=thinking, thought_end=thought_end)
    if searched is None:
        return None
    boxed = last_box(searched, cut=cut)
    if boxed is not None or cut:
        return boxed or None
    return last_mathematics_in(searched)


RULES: Mapping[Extraction, ExtractionRule] = {
    "after_thought": extract_answer,
    "any_box": any_box,
    "last_mathematics": last_mathematics,
}
