r"""Tokens that may close ``\boxed{``, and the ways to write a known answer.

Tokenizers merge the closing brace with its neighbours (``}``, ``}.``, ``7}``, ``}$\n``): an answer ends at the first
token in which its braces balance, whatever else that token holds.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from mrt_hpc.inference.tokens import TokenBytes

_BRACE = re.compile(rb"\\.|[{}]", re.DOTALL)
r"""The first alternative skips escaped characters: the brace of ``\}`` closes nothing."""


def box_end(text: bytes) -> int | None:
    """Where a box open at the start of ``text`` closes; None where it stays open."""
    return next((end for end, depth in _depths(text) if depth == 0), None)


def could_end(text: bytes) -> bool:
    """Whether a box open at the start is open after ``text``, with no brace open inside."""
    depths = [depth for _, depth in _depths(text)]
    return 0 not in depths and (not depths or depths[-1] == 1)


def _depths(text: bytes) -> Iterator[tuple[int, int]]:
    """Each brace's offset, and the depth after it, the box's own included."""
    depth = 1
    for brace in _BRACE.finditer(text):
        change = {b"{": 1, b"}": -1}.get(brace[0], 0)
        depth += change
        if change:
            yield brace.start(), depth


@dataclass(frozen=True)
class WritingStep:
    """Tokens that may come next behind the first bytes of an answer."""

    closing: tuple[int, ...]
    """Tokens with the rest of the answer that close the box."""
    following: dict[int, int]
    """Tokens with a part of the rest, and the answer's bytes in the box after each. Tokens from which the vocabulary
    cannot finish the answer are left out.
    """


@dataclass(frozen=True)
class Writing:
    """Tokens that can write one answer and close its box: a tree of all tokenisations."""

    answer: str
    token_ids: tuple[int, ...]
    """As the tokenizer writes the answer, without the closing brace."""
    steps: tuple[WritingStep, ...]
    """[bytes of the answer + 1] by the answer's bytes in the box."""

    def step(self, prefix: Sequence[int]) -> WritingStep | None:
        """The step after a beginning, or None."""
        step = self.steps[0]
        for token in prefix:
            if token not in step.following:
                return None
            step = self.steps[step.following[token]]
        return step

    @property
    def beginnings(self) -> list[tuple[int, ...]]:
        """The tokenizer's own beginnings, from the empty one, as far as the box can still be closed."""
        beginnings = [self.token_ids[:n] for n in range(len(self.token_ids) + 1)]
        return [prefix for prefix in beginnings if (step := self.step(prefix)) and (step.closing or step.following)]

    @property
    def longest(self) -> int:
        """The tokenizer's own tokens with the longest closing one; 0 where the box cannot be closed."""
        ends = [len(prefix) + 1 for prefix in self.beginnings if (step := self.step(prefix)) and step.closing]
        return max(ends, default=0)


@dataclass(frozen=True)
class Closing:
    """Each token's effect on an open box, for one tokenizer."""

    tokens: TokenBytes

    @cached_property
    def brace_ids(self) -> tuple[int, ...]:
        """Tokens with a closing brace: a branch stops there, to check its box."""
        return tuple(sorted(i for i, piece in self.tokens.table.items() if b"}" in piece))

    @cached_property
    def _braces(self) -> list[tuple[int, bytes]]:
        return [(i, self.tokens.table[i]) for i in self.brace_ids]

    @cached_property
    def _ids(self) -> dict[bytes, list[int]]:
        """Several where a vocabulary writes one text in several ways."""
        ids: dict[bytes, list[int]] = defaultdict(list)
        for i, piece in sorted(self.tokens.table.items()):
            ids[piece].append(i)
        return ids

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token: longer pieces need no look-up."""
        return max(map(len, self._ids), default=0)

    def is_closed(self, token_ids: Sequence[int]) -> bool:
        return box_end(b"".join(self.tokens.pieces(token_ids))) is not None

    def ways_to_write(self, answer: str, token_ids: Sequence[int]) -> Writing:
        """Tokens that can write an answer.

        Args:
            answer: as in the box, with balanced braces.
            token_ids: of the answer alone.
        """
        text = b"".join(self.tokens.pieces(token_ids))
        steps: list[WritingStep] = [WritingStep((), {})] * (len(text) + 1)
        for at in reversed(range(len(text) + 1)):  # the steps behind a token are known before the token's own
            following = {
                token: end
                for end in range(at + 1, min(at + self._longest, len(text)) + 1)
                if steps[end].closing or steps[end].following
                for token in self._ids.get(text[at:end], ())
            }
            closing = self._closings(text[at:]) if len(text) - at < self._longest else ()
            steps[at] = WritingStep(closing, following)
        return Writing(answer, tuple(token_ids), tuple(steps))

    def _closings(self, rest: bytes) -> tuple[int, ...]:
        """Tokens with the rest of an answer that close its box: hundreds in a large vocabulary."""
        return tuple(i for i, piece in self._braces if piece.startswith(rest + b"}"))
