r"""Where a boxed answer ends: the tokens that may close ``\boxed{``, and the ways in which a known answer is written.

Tokenizers merge the closing brace with what comes before or after it (``}``, ``}.``, ``7}``, ``}$\n``): an answer ends
at the first token in which its braces balance, whatever else that token holds.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

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
class WritingStep:
    """The tokens that may come next when the first bytes of an answer are in the box."""

    closing: tuple[int, ...]
    """The tokens that hold the rest of the answer and close the box."""
    following: dict[int, int]
    """The tokens that hold a part of the rest, and how many bytes of the answer stand in the box behind each. Tokens
    after which no token of the vocabulary can end the answer are left out.
    """


@dataclass(frozen=True)
class Writing:
    """The tokens that can write one answer and close its box, as a tree of all its tokenisations."""

    answer: str
    token_ids: tuple[int, ...]
    """The answer's tokens as the tokenizer writes them, without the closing brace."""
    steps: tuple[WritingStep, ...]
    """[bytes of the answer + 1] the next step, by how many bytes of the answer stand in the box."""

    def step(self, prefix: Sequence[int]) -> WritingStep | None:
        """The step after a beginning; None where the answer does not begin so."""
        step = self.steps[0]
        for token in prefix:
            if token not in step.following:
                return None
            step = self.steps[step.following[token]]
        return step

    @property
    def beginnings(self) -> list[tuple[int, ...]]:
        """The beginnings of the tokenizer's own tokens, from none of them on, as far as the box can still be closed."""
        beginnings = [self.token_ids[:n] for n in range(len(self.token_ids) + 1)]
        return [prefix for prefix in beginnings if (step := self.step(prefix)) and (step.closing or step.following)]

    @property
    def longest(self) -> int:
        """The number of the tokenizer's own tokens with the longest closing token; 0 where the box cannot be closed."""
        ends = [len(prefix) + 1 for prefix in self.beginnings if (step := self.step(prefix)) and step.closing]
        return max(ends, default=0)


@dataclass(frozen=True)
class Closing:
    """The effect of each token of one tokenizer on an open box."""

    tokens: TokenBytes

    @cached_property
    def brace_ids(self) -> tuple[int, ...]:
        """All tokens with a closing brace in them: a branch stops there, to check whether its box is closed."""
        return tuple(sorted(i for i, piece in self.tokens.table.items() if b"}" in piece))

    @cached_property
    def _braces(self) -> list[tuple[int, bytes]]:
        return [(i, self.tokens.table[i]) for i in self.brace_ids]

    @cached_property
    def _ids(self) -> dict[bytes, list[int]]:
        """The tokens of each text: several where a vocabulary writes one text in several ways."""
        ids: dict[bytes, list[int]] = defaultdict(list)
        for i, piece in sorted(self.tokens.table.items()):
            ids[piece].append(i)
        return ids

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token: no piece of an answer that is longer need be looked up."""
        return max(map(len, self._ids), default=0)

    def is_closed(self, token_ids: Sequence[int]) -> bool:
        """Whether the box is closed within these tokens."""
        return box_end(b"".join(self.tokens.pieces(token_ids))) is not None

    def writing(self, answer: str, token_ids: Sequence[int]) -> Writing:
        """The tokens that can write an answer.

        Args:
            answer: as it stands in the box; its own braces balance.
            token_ids: of the answer alone, as the tokenizer writes it.
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
        """All tokens that hold the rest of an answer and close its box: a large vocabulary has hundreds."""
        return tuple(i for i, piece in self._braces if piece.startswith(rest + b"}"))
