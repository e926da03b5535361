"""The exact bytes of each token, so that a trace can be cut at token boundaries and the server need not decode its
text.

Decoding ids one at a time is not enough: a character may be spread over several tokens. Two families of tokenizers are
recognised by their decoders: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece with byte fallback (Llama 2,
Mistral). For any other tokenizer the rule that reproduces texts exactly is used.

The file ``tokenizer.json`` defines a tokenizer. The class named in ``tokenizer_config.json`` is ignored: several model
families name LlamaTokenizer but are byte-level, and that class would build another tokenizer from the vocabulary.
The vLLM server loads a tokenizer of its own and never uses it: it receives ids and stop tokens, and returns ids.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


# Finds where a thought ends and its answer begins: at the closing tag, or, for models that write no tags, at the last
# box.
#
# Without tags a completion up to its answer is the thought (the paper's open-ended form), and the answer begins at the
# last ``\boxed{`` that is closed again; this box is also the one that is graded.


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


# The bytes of tokens by the file ``tokenizer.json`` alone, for commands that read a run where transformers is not
# installed.


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
    def read(cls, path: Path) -> Self:
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


BYTE_LEVEL_SPACE = "\u0120"
"""The character for a space in byte-level vocabularies."""
PROBES = (
    "First, x = 3.\n\nWait, let me check:\n\n\nSo 3 * x  - 1 = 8.\n",
    "\\boxed{\\frac{1}{2}} costs 5 € at 30°, café, Δx ≈ 0.1, 数学, 🙂 and ∎.\n\nAlternatively, x",
)
"""Texts that a tokenizer must reproduce exactly: blank lines, several spaces, mathematics, characters of 1 to 4 bytes.
"""


def load_tokenizer(directory: Path) -> "PreTrainedTokenizerFast":
    """The tokenizer of a model directory, as its ``tokenizer.json`` says; nothing is fetched from anywhere.

    Raises:
        UserError: there is none that can be read, or it has no tokenizer.json and cannot be converted to one.
    """
    from transformers import PreTrainedTokenizerFast  # not needed to find where a thought ends

    try:
        kind = PreTrainedTokenizerFast if (directory / "tokenizer.json").is_file() else _converting()
        tokenizer = kind.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the libraries raise various errors for damaged files
        raise _no_tokenizer(directory, f"{type(error).__name__}: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise _no_tokenizer(directory, f"{type(tokenizer).__name__} is not a fast tokenizer")
    return tokenizer


def _converting() -> Any:
    """The class that converts other files: it imports torch, which takes a task two seconds at each start."""
    from transformers import AutoTokenizer

    return AutoTokenizer


def _no_tokenizer(directory: Path, reason: str) -> UserError:
    return UserError(
        f"the tokenizer cannot be loaded: {reason}",
        where=directory,
        expected="a tokenizer.json, or files that transformers can convert to one",
        advice="fetch all files of the model, or save its fast tokenizer there with save_pretrained",
    )


class TokenBytes:
    """The bytes of every token of one tokenizer, computed once."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
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


def _rule(tokenizer: "PreTrainedTokenizerFast") -> Callable[[str], bytes]:
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


def _brings_back(tokenizer: "PreTrainedTokenizerFast", rule: Callable[[str], bytes]) -> bool:
    """Return whether a rule reproduces the texts; the tokenizer itself may add one space before them."""
    return all(_pieced(tokenizer, rule, text).removeprefix(b" ") == text.encode() for text in PROBES)


def _pieced(tokenizer: "PreTrainedTokenizerFast", rule: Callable[[str], bytes], text: str) -> bytes:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return b"".join(rule(token) for token in tokenizer.convert_ids_to_tokens(ids))


def _parts(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    yield decoder
    for part in decoder.get("decoders", ()):
        yield from _parts(part)
