"""The bytes of tokens by the file ``tokenizer.json`` alone, for commands that read a run where transformers is not
installed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"
"""The character that SentencePiece writes for a space."""


def _byte_alphabet() -> dict[str, int]:
    """Return the printable character for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(0x100) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def from_byte_level(token: str) -> bytes:
    """Return the bytes of a token of a byte-level vocabulary (GPT-2, Llama 3, Qwen)."""
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:  # written in plain text, as some vocabularies do for tokens that no merge makes
        return token.encode()


def from_sentencepiece(token: str) -> bytes:
    """Return the bytes of a token of a SentencePiece vocabulary with byte fallback (Llama 2, Mistral)."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(SPACE_MARK, " ").encode()


RULES: tuple[Callable[[str], bytes], ...] = (from_byte_level, from_sentencepiece)


@dataclass(frozen=True)
class CutText:
    """The text of a completion in its parts."""

    before: str
    """The text before the sampled tokens."""
    episodes: tuple[str, ...]
    """[k] the text between neighbouring boundaries."""
    rest: str
    """The text after the last boundary."""


@dataclass(frozen=True)
class StoredTokens:
    """The tokens of one ``tokenizer.json``."""

    names: dict[int, str]
    """The token of each id, as the vocabulary writes it: added ones too, which the decoder writes as all others."""
    special: dict[int, str]
    """The special tokens, as they stand in a text."""

    @classmethod
    def read(cls, path: Path) -> StoredTokens:
        """Read the vocabulary of a tokenizer.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no tokenizer.json.
        """
        stored = json.loads(path.read_bytes())
        try:
            added = {int(token["id"]): token for token in stored.get("added_tokens", [])}
            names = {i: str(token["content"]) for i, token in added.items()}
            special = {i: name for i, name in names.items() if added[i].get("special")}
            return cls({**_vocabulary(stored["model"]["vocab"]), **names}, special)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no tokenizer.json: {error!r}") from error

    def cut(self, token_ids: Sequence[int], boundaries: Sequence[int], text: str) -> CutText | None:
        """Cut a text at the token offsets of its episodes.

        Args:
            token_ids: [T] the sampled tokens, without the stop token.
            boundaries: [k + 1] ascending token offsets, at most T.
            text: the whole text, which ends with the text of the tokens.

        Returns:
            The parts; None where no known rule gives the text from the tokens.
        """
        for rule in RULES:
            pieces = [self._piece(i, rule) for i in token_ids]
            if text.endswith(sampled := _decoded(pieces)):
                episodes = tuple(_decoded(pieces[a:b]) for a, b in pairwise(boundaries))
                before = text.removesuffix(sampled) + _decoded(pieces[: boundaries[0]])
                return CutText(before, episodes, _decoded(pieces[boundaries[-1] :]))
        return None

    def _piece(self, token: int, rule: Callable[[str], bytes]) -> bytes:
        """An id that the tokenizer does not know (a padded vocabulary has such rows) is empty."""
        return self.special[token].encode() if token in self.special else rule(self.names.get(token, ""))


def _vocabulary(stored: Any) -> dict[int, str]:
    """The token of each id. Unigram models store a list of pairs, all others a mapping."""
    if isinstance(stored, dict):
        return {int(number): str(token) for token, number in stored.items()}
    return {number: str(token) for number, (token, _) in enumerate(stored)}


def _decoded(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode(errors="replace")
