"""The bytes of tokens, for both families of tokenizers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import TokenBytes
from mrt_hpc.recipe.sections import Prompt

CORPUS = [
    "Wait, let me re-check: 3*x + 4 = 19.\n\n",
    "naïve café — Δx ≈ 0,1 €",
    "数学の問題を解く。",
    "🙂🧮 proof ∎",
] * 20


def byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<eos>", "</think>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", clean_up_tokenization_spaces=False)


def sentencepiece(*, prepends: bool = False) -> PreTrainedTokenizerFast:
    """As Llama 2's: visible spaces, and bytes for what the vocabulary lacks. One of them ``prepends`` a space."""
    words = ["▁", "▁Wait", "▁let", "é", ",", ":", "數", *"abcdefghijklmnopqrstuvwxyz"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prepends else space
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )


TOKENIZERS = {"byte level": byte_level(), "sentencepiece": sentencepiece(), "small world": build_tokenizer()}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=100)
@given(text=st.text(max_size=60))
def test_the_pieces_of_any_text_join_to_its_bytes(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(TokenBytes(tokenizer).pieces(ids)) == text.encode()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_pieces_of_random_ids_join_to_what_the_tokenizer_decodes(name: str) -> None:
    tokenizer, draw = TOKENIZERS[name], random.Random(0)
    known = TokenBytes(tokenizer)
    for _ in range(200):
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randrange(40))]
        if name == "sentencepiece":  # its own decoder gives up a whole run of bytes where one is wrong
            ids = [i for i in ids if not 3 <= i < 259]
        assert known.text(ids) == tokenizer.decode(ids, skip_special_tokens=False)


def test_there_is_a_piece_for_every_token_and_boundaries_fall_between_them() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = tokenizer.encode("Wait, 🙂</think>\n\nx", add_special_tokens=False)
    pieces = TokenBytes(tokenizer).pieces(ids)
    assert len(pieces) == len(ids)
    assert b"</think>" in pieces
    assert any(piece and not _is_text(piece) for piece in pieces)  # a character that lies over several tokens


def test_rows_that_only_pad_the_vocabulary_are_empty() -> None:
    assert TokenBytes(TOKENIZERS["byte level"]).pieces([10_000]) == [b""]


def test_another_family_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UserError, match="bytes of this tokenizer's tokens"):
        TokenBytes(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("name", [*TOKENIZERS, "prepends"])
@pytest.mark.parametrize("text", ["7", " 7", "\n\n</think>\n\nab", "x"])
def test_a_text_that_goes_on_gets_no_space_of_the_tokenizers_own(name: str, text: str) -> None:
    tokenizer = sentencepiece(prepends=True) if name == "prepends" else TOKENIZERS[name]
    prompter = Prompter(tokenizer, Prompt(), (0,))
    assert b"".join(TokenBytes(tokenizer).pieces(prompter.ids(text))) == text.encode()
