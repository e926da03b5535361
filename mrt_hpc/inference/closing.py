r"""Where a boxed answer ends: the tokens that may close ``\boxed{``, and the ways in which a known answer is written.

Tokenizers merge the closing brace with what comes before or after it (``}``, ``}.``, ``7}``, ``}$\n``): an answer ends
at the first token in which its braces balance, whatever else that token holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mrt_hpc.inference.tokens import TokenBytes

_BRACE = re.compile(rb"\\.|[{}]", re.DOTALL)
r"""The first alternative swallows escaped characters, so that the brace of ``\}`` closes nothing."""


def box_end(text: bytes) -> int | None:
    """The offset at which a box that is open at the start of ``text`` closes; None where it stays open."""
    return next((end for end, depth in _depths(text) if depth == 0), None)


def could_end(text: bytes) -> bool:
    """Whether a box that is open at the start of ``text`` is open after it with no other brace open inside."""
    depths = [depth for _, depth in _depths(text)]
    return 0 not in depths and (not depths or depths[-1] == 1)


def _depths(text: bytes) -> Iterator[tuple[int, int]]:
    """The offset of each brace, and how many are open after it, the box's own counted."""
    depth = 1
    for brace in _BRACE.finditer(text):
        change = {b"{": 1, b"}": -1}.get(brace[0], 0)
        depth += change
        if change:
            yield brace.start(), depth


@dataclass(frozen=True)
class Writing:
    """The counted ways of writing one answer: its tokens as the tokenizer writes it, ended at any of several places."""

    answer: str
    token_ids: tuple[int, ...]
    """[n] the answer without the closing brace."""
    closings: tuple[tuple[int, ...], ...]
    """[n + 1] after the first i tokens, those that hold the rest of the answer and close the box."""

    @property
    def longest(self) -> int:
        """Tokens of the longest counted way, closing token included."""
        return max((i + 1 for i, ids in enumerate(self.closings) if ids), default=0)

    def is_written_by(self, token_ids: Sequence[int]) -> bool:
        """Whether a branch of exactly these tokens is one of the counted ways."""
        n = len(token_ids) - 1
        if not 0 <= n <= len(self.token_ids):
            return False
        return tuple(token_ids[:n]) == self.token_ids[:n] and token_ids[n] in self.closings[n]


@dataclass(frozen=True)
class Closing:
    """What one tokenizer's tokens do to an open box."""

    tokens: TokenBytes

    @cached_property
    def brace_ids(self) -> tuple[int, ...]:
        """Every token with a closing brace in it: a branch stops there, to see whether the box is closed."""
        return tuple(sorted(i for i, piece in self.tokens.table.items() if b"}" in piece))

    @cached_property
    def _braces(self) -> list[tuple[int, bytes]]:
        return [(i, self.tokens.table[i]) for i in self.brace_ids]

    def is_closed(self, token_ids: Sequence[int]) -> bool:
        """Whether the box is closed within these tokens."""
        return box_end(b"".join(self.tokens.pieces(token_ids))) is not None

    def writing(self, answer: str, token_ids: Sequence[int]) -> Writing:
        """The counted ways of an answer.

        Args:
            answer: as it stands in the box; its own braces balance.
            token_ids: of the answer alone.
        """
        pieces = self.tokens.pieces(token_ids)
        rests = [b"".join(pieces[i:]) for i in range(len(pieces) + 1)]
        return Writing(answer, tuple(token_ids), tuple(self._closings(rest) for rest in rests))

    def _closings(self, rest: bytes) -> tuple[int, ...]:
        """All tokens that hold the rest of an answer and close its box: a large vocabulary has hundreds."""
        return tuple(i for i, piece in self._braces if piece.startswith(rest + b"}"))
