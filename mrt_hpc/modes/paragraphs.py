"""Where a thought may be cut or continued: after a whole paragraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.inference.sampler import tokens_within

if TYPE_CHECKING:
    from collections.abc import Sequence

BLANK_LINE = b"\n\n"


def whole_paragraphs(pieces: Sequence[bytes]) -> int:
    """Return the number of tokens up to the end of the last blank line: what follows is an unfinished paragraph.

    A token that reaches beyond the blank line belongs to the unfinished paragraph. A text without a blank line is kept
    whole.

    Args:
        pieces: [T] the bytes of each token of a thought that a limit has cut.
    """
    text = b"".join(pieces)
    last = text.rfind(BLANK_LINE)
    return len(pieces) if last < 0 else tokens_within(pieces, last + len(BLANK_LINE))


def paragraph_break(text: bytes) -> str:
    """Return the newlines that a text lacks for another paragraph to begin."""
    if not text or text.endswith(BLANK_LINE):
        return ""
    return "\n" if text.endswith(b"\n") else "\n\n"
