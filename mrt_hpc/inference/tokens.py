"""The exact bytes of each token, so that a trace can be cut at token boundaries and the server need not decode its
text.

Decoders tell two families: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece with byte fallback (Llama 2,
Mistral). Any other tokenizer gets the rule that reproduces texts exactly. The class in ``tokenizer_config.json`` is
ignored: several byte-level families name LlamaTokenizer, which would build another tokenizer.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.ownership import file_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


# Finds where a thought ends and its answer begins: at the closing tag, or, for models that write no tags, at the last
# box.
#
# Without tags a completion up to its answer is the thought (the paper's open-ended form), and the answer begins at the
# last ``\boxed{`` that is closed again; this box is also the one that is graded.


_BRACE = re.compile(rb"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
r"""An opened box; an escaped character, so that the braces of ``\{1\}`` do not count; a brace."""


BOX_OPENS = b"{"
"""The end of what opens a box, where a model without tags ends its thought."""


def thought_and_answer(text: bytes, thought_end: bytes) -> tuple[bytes, bytes | None]:
    """The thought of a completion (or of its rest), and the answer, None where the thought has no end. ``thought_end``
    is empty for a model without tags.
    """
    if thought_end:
        thought, ended, answer = text.partition(thought_end)
        return thought, answer if ended else None
    box = last_box(text)
    return (text, None) if box is None else (text[:box], text[box:])


def digest_of_ids(token_ids: Sequence[int]) -> str:
    """SHA-256, by which equal prefixes are known without keeping them."""
    return hashlib.sha256(np.asarray(token_ids, dtype=np.int64).tobytes()).hexdigest()


def answer_start(forced_text: str, thought_end: str) -> str:
    """The part after the closing tag; without tags the last paragraph, as the words before are the prover's own."""
    return forced_text.rpartition(thought_end or "\n\n")[2]


def last_box(text: bytes) -> int | None:
    """The offset of the last closed box. Takes linear time."""
    opened: list[int | None] = []  # where a box starts, None for a plain brace
    last = None
    for token in _BRACE.finditer(text):
        if token[0] == b"}":
            start = opened.pop() if opened else None
            last = start if start is not None and start > (-1 if last is None else last) else last
        elif token[0].endswith(b"{") and token[0] != rb"\{":
            opened.append(token.start() if len(token[0]) > 1 else None)
    return last


# The bytes of tokens by the file ``tokenizer.json`` alone, for commands that read a run where transformers is not
# installed.


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"
"""SentencePiece writes it for a space."""


def _byte_alphabet() -> dict[str, int]:
    """The printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(0x100) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def decode_byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:  # written in plain text, as some vocabularies do for tokens that no merge makes
        return token.encode()


def decode_sentencepiece(token: str) -> bytes:
    """The vocabulary has byte fallback (Llama 2, Mistral)."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(SPACE_MARK, " ").encode()


RULES: tuple[Callable[[str], bytes], ...] = (decode_byte_level, decode_sentencepiece)


@dataclass(frozen=True)
class CutText:
    before: str
    """The text before the sampled tokens."""
    episodes: tuple[str, ...]
    """[k] between neighbouring boundaries."""
    rest: str


@dataclass(frozen=True)
class StoredTokens:
    names: dict[int, str]
    """As the vocabulary and the decoder write them, added ones too."""
    special: dict[int, str]
    """As they stand in a text."""

    @classmethod
    def read(cls, path: Path) -> Self:
        stored = json.loads(file_bytes(path))
        try:
            added = {int(token["id"]): token for token in stored.get("added_tokens", [])}
            names = {i: str(token["content"]) for i, token in added.items()}
            special = {i: name for i, name in names.items() if added[i].get("special")}
            return cls({**_vocabulary(stored["model"]["vocab"]), **names}, special)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no tokenizer.json: {error!r}") from error

    def cut(self, token_ids: Sequence[int], boundaries: Sequence[int], text: str) -> CutText | None:
        """Cut a text, which ends with the text of its T tokens, at the token offsets of its episodes, [k + 1]
        ascending; None where no known rule gives the text from the tokens. ``token_ids`` are without the stop token.
        """
        for rule in RULES:
            pieces = [self._piece(i, rule) for i in token_ids]
            if text.endswith(sampled := _decode_pieces(pieces)):
                episodes = tuple(_decode_pieces(pieces[a:b]) for a, b in pairwise(boundaries))
                before = text.removesuffix(sampled) + _decode_pieces(pieces[: boundaries[0]])
                return CutText(before, episodes, _decode_pieces(pieces[boundaries[-1] :]))
        return None

    def _piece(self, token: int, rule: Callable[[str], bytes]) -> bytes:
        """An unknown id (as in a padded vocabulary) is empty."""
        return self.special[token].encode() if token in self.special else rule(self.names.get(token, ""))


def _vocabulary(stored: Any) -> dict[int, str]:
    """Unigram models store a list of pairs, all others a mapping."""
    if isinstance(stored, dict):
        return {int(number): str(token) for token, number in stored.items()}
    return {number: str(token) for number, (token, _) in enumerate(stored)}


def _decode_pieces(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode(errors="replace")


BYTE_LEVEL_SPACE = "\u0120"
"""Byte-level vocabularies write it for a space."""
PROBES = (
    "First, x = 3.\n\nWait, let me check:\n\n\nSo 3 * x  - 1 = 8.\n",
    "\\boxed{\\frac{1}{2}} costs 5 € at 30°, café, Δx ≈ 0.1, 数学, 🙂 and ∎.\n\nAlternatively, x",
)
"""A tokenizer must reproduce these exactly: blank lines, several spaces, mathematics, characters of 1 to 4 bytes."""


def load_tokenizer(directory: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer of ``tokenizer.json``, or of files that convert to one; nothing is fetched."""
    from transformers import PreTrainedTokenizerFast  # not needed to find where a thought ends

    kind: Any = PreTrainedTokenizerFast
    try:
        if not (directory / "tokenizer.json").is_file():
            from transformers import AutoTokenizer  # imports torch, which takes two seconds at each start of a task

            kind = AutoTokenizer
        tokenizer = kind.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the libraries raise various errors for damaged files
        raise _no_tokenizer(directory, f"{type(error).__name__}: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise _no_tokenizer(directory, f"{type(tokenizer).__name__} is not a fast tokenizer")
    return tokenizer


def _no_tokenizer(directory: Path, reason: str) -> UserError:
    expected = "a tokenizer.json, or files that transformers can convert to one"
    advice = "fetch all files of the model, or save its fast tokenizer there with save_pretrained"
    return UserError(f"the tokenizer cannot be loaded: {reason}", where=directory, expected=expected, advice=advice)


class TokenBytes:
    """The bytes of every token of one tokenizer, computed once."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        to_bytes = _rule(tokenizer)
        self.table: dict[int, bytes] = {i: to_bytes(token) for token, i in tokenizer.get_vocab().items()}
        special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.table.update((i, content.encode()) for i, content in special.items())

    def pieces(self, ids: Iterable[int]) -> list[bytes]:
        """[T] special tokens as they are written, unknown ids empty."""
        return [self.table.get(i, b"") for i in ids]

    def text(self, ids: Iterable[int]) -> str:
        """Bytes that are not UTF-8, as where a limit cut a character, become U+FFFD."""
        return b"".join(self.pieces(ids)).decode(errors="replace")


def _rule(tokenizer: "PreTrainedTokenizerFast") -> Callable[[str], bytes]:
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    kinds = {part["type"] for part in _parts(decoder)}
    if "ByteLevel" in kinds:
        return decode_byte_level
    if "ByteFallback" in kinds:
        return decode_sentencepiece
    for rule in (decode_sentencepiece, decode_byte_level):
        # The tokenizer itself may add one space before the texts.
        if all(_join_pieces(tokenizer, rule, text).removeprefix(b" ") == text.encode() for text in PROBES):
            return rule
    what = "the bytes of this tokenizer's tokens are unknown: no known rule reproduces the probe texts"
    expected = "a fast tokenizer with byte-level BPE, SentencePiece with byte fallback, or one that loses nothing"
    raise UserError(what, value=sorted(kinds), where=tokenizer.name_or_path or None, expected=expected)


def _join_pieces(tokenizer: "PreTrainedTokenizerFast", rule: Callable[[str], bytes], text: str) -> bytes:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return b"".join(rule(token) for token in tokenizer.convert_ids_to_tokens(ids))


def _parts(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    yield decoder
    for part in decoder.get("decoders", ()):
        yield from _parts(part)
