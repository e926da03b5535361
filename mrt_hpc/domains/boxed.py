"""Finds the final answer in a completion.

It holds the usual rule for the place of the answer: after the thought, in the last ``\\boxed{...}`` whose braces
balance; ``extraction`` has the others. Leaves out what the answer means (``equivalence``). Every function takes linear
time, whatever the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

THOUGHT_END = "</think>"

_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_BRACE_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
"""The second alternative swallows escaped characters, so that the braces of ``\\{1, 2\\}`` are not counted."""


def extract_answer(
    text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
) -> str | None:
    """The final answer in ``text``, or None when there is none.

    The answer is the content of the last ``\\boxed{...}`` (or ``\\fbox``) with balanced braces after the first
    ``thought_end``; of the inner one where boxes are nested. Text without ``thought_end`` is searched whole, unless
    ``thinking`` says that a thought must have ended: a trace cut off while thinking has no answer, whatever it boxed on
    the way.

    Args:
        text: a completion; for a branch, the forced start of the answer and the completion together.
        thinking: whether the text begins inside a thought.
        thought_end: the closing tag of the thought.
        cut: whether the token limit cut the text off: then a last box that is still open was to be the answer, and an
            earlier one is none.
    """
    searched = after_thought(text, thinking=thinking, thought_end=thought_end)
    return None if searched is None else (last_box(searched, cut=cut) or None)


def after_thought(text: str, *, thinking: bool, thought_end: str) -> str | None:
    """The part of a text after its thought; None if the thought has not ended."""
    _, ended, rest = text.partition(thought_end)
    return rest if ended else None if thinking else text


def last_box(text: str, *, cut: bool = False) -> str | None:
    """The content of the last closed box, which may be empty; None where there is none.

    Args:
        text: what is searched, whole.
        cut: whether a later box that is still open takes the place of the closed one.
    """
    start_and_content = max(_boxes(text), default=None)
    if start_and_content is None or (cut and start_and_content[0] < _last_opening(text)):
        return None
    return start_and_content[1].strip()


def _last_opening(text: str) -> int:
    """Where the last box of ``text`` starts, closed or not; there is one."""
    return max(token.start() for token in _BOX_TOKEN.finditer(text) if token[0].startswith((r"\boxed", r"\fbox")))


def _boxes(text: str) -> Iterator[tuple[int, str]]:
    """The balanced boxes of ``text`` as (start, content), at most two copies of any character in all.

    Only the contents of innermost boxes are copied: an outer one never starts last.
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
    """Whether every brace that is not escaped has its partner."""
    depth = 0
    for token in _BRACE_TOKEN.finditer(text):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth < 0:
            return False
    return depth == 0
