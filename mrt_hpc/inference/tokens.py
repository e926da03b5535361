"""The exact bytes of each token, so that a trace can be cut at token boundaries and the server need not decode its
text.

Decoding ids one at a time is not enough: a character may be spread over several tokens. Two families of tokenizers are
recognised by their decoders: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece with byte fallback (Llama 2,
Mistral). For any other tokenizer the rule that reproduces texts exactly is used.

The file ``tokenizer.json`` defines a tokenizer. The class named in ``tokenizer_config.json`` is ignored: several model
families name LlamaTokenizer but are byte-level, and that class would build another tokenizer from the vocabulary.
The vLLM server loads a tokenizer of its own and never uses it: it receives ids and stop tokens, and returns ids.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mrt_hpc.errors import UserError
from mrt_hpc.inference.token_pieces import from_byte_level, from_sentencepiece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

BYTE_LEVEL_SPACE = "\u0120"
"""The character for a space in byte-level vocabularies."""
PROBES = (
    "First, x = 3.\n\nWait, let me check:\n\n\nSo 3 * x  - 1 = 8.\n",
    "\\boxed{\\frac{1}{2}} costs 5 € at 30°, café, Δx ≈ 0.1, 数学, 🙂 and ∎.\n\nAlternatively, x",
)
"""Texts that a tokenizer must reproduce exactly: blank lines, several spaces, mathematics, characters of 1 to 4 bytes.
"""


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model directory, as its ``tokenizer.json`` says; nothing is fetched from anywhere.

    Raises:
        UserError: there is none that can be read, or it has no tokenizer.json and cannot be converted to one.
    """
    kind = PreTrainedTokenizerFast if (directory / "tokenizer.json").is_file() else AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the libraries raise various errors for damaged files
        raise _no_tokenizer(directory, f"{type(error).__name__}: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise _no_tokenizer(directory, f"{type(tokenizer).__name__} is not a fast tokenizer")
    return tokenizer


def _no_tokenizer(directory: Path, reason: str) -> UserError:
    return UserError(
        f"the tokenizer cannot be loaded: {reason}",
        where=directory,
        expected="a tokenizer.json, or files that transformers can convert to one",
        advice="fetch all files of the model, or save its fast tokenizer there with save_pretrained",
    )


class TokenBytes:
    """The bytes of every token of one tokenizer, computed once."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        to_bytes = _rule(tokenizer)
        self.table: dict[int, bytes] = {i: to_bytes(token) for token, i in tokenizer.get_vocab().items()}
        special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.table.update((i, content.encode()) for i, content in special.items())

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """Return [T] the bytes of each token; special tokens as they are written. An id the tokenizer does not know (a
        padded vocabulary has such rows) is empty.
        """
        return [self.table.get(i, b"") for i in ids]

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of the tokens; bytes that are not UTF-8, as where a limit cut a character, become U+FFFD."""
        return b"".join(self.pieces(ids)).decode(errors="replace")


def _rule(tokenizer: PreTrainedTokenizerFast) -> Callable[[str], bytes]:
    """Return the rule by which this tokenizer's vocabulary writes bytes.

    Raises:
        UserError: none of the known rules reproduces the texts.
    """
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    kinds = {part["type"] for part in _parts(decoder)}
    if "ByteLevel" in kinds:
        return from_byte_level
    if "ByteFallback" in kinds:
        return from_sentencepiece
    for rule in (from_sentencepiece, from_byte_level):
        if _brings_back(tokenizer, rule):
            return rule
    raise UserError(
        "the bytes of this tokenizer's tokens are unknown: no known rule reproduces the probe texts",
        value=sorted(kinds),
        where=tokenizer.name_or_path or None,
        expected="a fast tokenizer with byte-level BPE, SentencePiece with byte fallback, or one that loses nothing",
    )


def _brings_back(tokenizer: PreTrainedTokenizerFast, rule: Callable[[str], bytes]) -> bool:
    """Return whether a rule reproduces the texts; the tokenizer itself may add one space before them."""
    return all(_pieced(tokenizer, rule, text).removeprefix(b" ") == text.encode() for text in PROBES)


def _pieced(tokenizer: PreTrainedTokenizerFast, rule: Callable[[str], bytes], text: str) -> bytes:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return b"".join(rule(token) for token in tokenizer.convert_ids_to_tokens(ids))


def _parts(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    yield decoder
    for part in decoder.get("decoders", ()):
        yield from _parts(part)
