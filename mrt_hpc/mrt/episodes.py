r"""Segmentation of a trace into episodes (paper, Section 5 and its appendix).

The thought is split at every two newlines into paragraphs; a new episode starts at a paragraph that begins with a
reconsideration marker ("Wait", "Alternatively", ...), but never fewer than ``min_paragraphs`` paragraphs after the last
boundary; at most ``max_cuts`` cuts; then every ``group_size`` consecutive steps merge into one episode, and the steps
beyond ``max_episodes`` join the last one.

A cut that falls inside a token moves to that token's start: the marker stays whole, in the episode that it opens.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

_BLANK_LINE = re.compile(rb"\n\n")


class EpisodeRule(Protocol):
    """The numbers of the rule above."""

    @property
    def markers(self) -> tuple[str, ...]:
        """A paragraph that begins with one of these may open an episode."""

    @property
    def min_paragraphs(self) -> int:
        """Between two cuts."""

    @property
    def max_cuts(self) -> int:
        """Of a trace."""

    @property
    def group_size(self) -> int:
        """Consecutive steps that merge into one episode."""

    @property
    def max_episodes(self) -> int:
        """Of a trace."""


def cut_episodes(pieces: Sequence[bytes], rule: EpisodeRule) -> list[int]:
    """The token boundaries of the episodes of a thought.

    Args:
        pieces: [T] the bytes of each token of the thought; joined they are its text.

    Returns:
        [k + 1] token offsets, strictly ascending from 0 to T, with 1 <= k <= ``rule.max_episodes``; ``[0]`` for an
        empty thought.

    Source: paper, Section 5.
    """
    if not pieces:
        return [0]
    ends = list(accumulate(len(p) for p in pieces))
    cuts = merge_steps(episode_starts(b"".join(pieces), rule), rule.group_size)
    inner = sorted({bisect_right(ends, cut) for cut in cuts} - {0, len(pieces)})
    return [0, *inner[: rule.max_episodes - 1], len(pieces)]


def credit_bounds(
    pieces: Sequence[bytes], boundaries: Sequence[int], markers: Sequence[str], thought_end: bytes
) -> list[int]:
    """The token offsets between which each episode's tokens get its credit.

    An episode ends by a choice: at the same prefix the policy may write the marker that opens the next episode, the
    closing tag, or any other token, with which the episode goes on. All of them get the credit of this episode, so that
    the extent of a credit depends on the prefix alone.

    Args:
        pieces: [T] the bytes of each token of the trace, answer included.
        boundaries: [k + 1] of :func:`cut_episodes`.
        markers: with which a paragraph opens an episode.
        thought_end: the closing tag; for a model without tags the brace that opens its box.

    Returns:
        [k + 1] ascending, from 0 to the offset after the closing tag, or to T where a limit cut the thought; that
        offset alone for an empty thought.

    Source: paper, Section 6.
    """
    start = [0] if len(boundaries) > 1 else []
    inner = [_offset_after(pieces, boundary, [m.encode() for m in markers]) for boundary in boundaries[1:-1]]
    return [*start, *inner, _offset_after(pieces, boundaries[-1], [thought_end])]


def _offset_after(pieces: Sequence[bytes], start: int, texts: Sequence[bytes]) -> int:
    """The offset after the token that completes one of the texts, from ``start`` on; T where none stands there."""
    written = b""
    for offset in range(start, len(pieces)):
        written += pieces[offset]
        if any(text in written for text in texts):
            return offset + 1
    return len(pieces)


def episode_starts(text: bytes, rule: EpisodeRule) -> list[int]:
    """The byte offsets at which a new step starts, without the start of the text; only ``markers``, ``min_paragraphs``
    and ``max_cuts`` of the rule count.

    Source: paper, Section 5, and its appendix on segmentation.
    """
    markers = tuple(m.encode() for m in rule.markers)
    starts: list[int] = []
    since_cut = 1  # paragraphs from the last boundary to the current one
    for start in paragraph_starts(text):
        if len(starts) == rule.max_cuts:
            break
        if since_cut >= rule.min_paragraphs and text.startswith(markers, start):
            starts.append(start)
            since_cut = 0
        since_cut += 1
    return starts


def paragraph_starts(text: bytes) -> list[int]:
    """The byte offsets of the paragraphs after the first, as ``text.split("\\n\\n")`` makes them.

    Four newlines have an empty paragraph between them, which counts; after three the paragraph begins with a newline; a
    line of spaces separates nothing. An empty paragraph at the end of the text is left out.

    Source: paper, Section 5, and the authors' code.
    """
    return [m.end() for m in _BLANK_LINE.finditer(text) if m.end() < len(text)]


def merge_steps(starts: list[int], group_size: int) -> list[int]:
    """Keep every ``group_size``-th start, so that as many consecutive steps become one episode.

    Source: paper, Section 5, and its appendix on segmentation.
    """
    return starts[group_size - 1 :: group_size]
