r"""Finds where a thought ends and its answer begins: at the closing tag, or, for models that write no tags, at the last
box.

Without tags a completion up to its answer is the thought (the paper's open-ended form), and the answer begins at the
last ``\boxed{`` that is closed again; this box is also the one that is graded.
"""

from __future__ import annotations

import re

_BRACE = re.compile(rb"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
r"""An opened box; an escaped character, so that the braces of ``\{1\}`` are not counted; a brace."""


def thought_and_answer(text: bytes, thought_end: bytes) -> tuple[bytes, bytes | None]:
    """Return the thought at the beginning of a text and the answer after it; None where the thought has no end.

    Args:
        text: a completion, or the rest of a completion.
        thought_end: the closing tag; empty for a model that writes none.
    """
    if thought_end:
        thought, ended, answer = text.partition(thought_end)
        return thought, answer if ended else None
    box = last_box(text)
    return (text, None) if box is None else (text[:box], text[box:])


def answer_start(forced_text: str, thought_end: str) -> str:
    """Return the part of the prover's text that belongs to the answer: the text after the closing tag; without tags the
    last paragraph, as the words before are the prover's own.
    """
    return forced_text.rpartition(thought_end or "\n\n")[2]


def last_box(text: bytes) -> int | None:
    """Return the offset of the last box that is closed; None where there is none. Takes linear time."""
    opened: list[int | None] = []  # where a box starts, None for a plain brace
    last = None
    for token in _BRACE.finditer(text):
        if token[0] == b"}":
            start = opened.pop() if opened else None
            last = start if start is not None and start > (-1 if last is None else last) else last
        elif token[0].endswith(b"{") and token[0] != rb"\{":
            opened.append(token.start() if len(token[0]) > 1 else None)
    return last
