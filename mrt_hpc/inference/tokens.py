"""The exact bytes of each token, so that a trace can be cut at token boundaries and its text needs no decoding by the
server.

Decoding ids one at a time does not do: a character may be spread over several tokens. Two families of tokenizers are
known here: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece with byte fallback (Llama 2, Mistral).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from mrt_hpc.recipe.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from transformers import PreTrainedTokenizerFast

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"
"""SentencePiece's visible space."""


class TokenBytes:
    """The bytes of every token of one tokenizer, made once."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
        to_bytes = _rule(tokenizer)
        self.table: dict[int, bytes] = {
            i: to_bytes(token) for token, i in tokenizer.get_vocab().items() if i not in added
        }
        self.table.update((i, content.encode()) for i, content in added.items())

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """[T] the bytes of each token; special tokens as they are written. An id the tokenizer does not know (a padded
        vocabulary has such rows) is empty.
        """
        return [self.table.get(i, b"") for i in ids]

    def text(self, ids: Iterable[int]) -> str:
        """The text of the tokens; bytes that are no UTF-8, as where a limit cut a character, become U+FFFD."""
        return b"".join(self.pieces(ids)).decode(errors="replace")


def token_pieces(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> list[bytes]:
    """[T] the bytes of each token; joined they are the decoded text. For many traces make a `TokenBytes` once."""
    return TokenBytes(tokenizer).pieces(ids)


def _rule(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], bytes]:
    """How this tokenizer's vocabulary writes bytes.

    Raises:
        UserError: neither family.
    """
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    kinds = {part["type"] for part in _parts(decoder)}
    if "ByteLevel" in kinds:
        return _from_byte_level
    if "ByteFallback" in kinds:
        return _from_sentencepiece
    raise UserError(
        "cannot tell the bytes of this tokenizer's tokens",
        value=sorted(kinds),
        where=tokenizer.name_or_path or None,
        expected="a fast tokenizer with byte-level BPE, or SentencePiece with byte fallback",
    )


def _parts(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    yield decoder
    for part in decoder.get("decoders", ()):
        yield from _parts(part)


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(0x100) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:  # written in plain text, as some vocabularies do for tokens that no merge makes
        return token.encode()


def _from_sentencepiece(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(SPACE_MARK, " ").encode()
