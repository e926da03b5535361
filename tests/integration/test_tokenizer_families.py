"""Tokenizers of each family, saved as model directories whose configuration names whatever class: loaded, they bring
back texts whole, or are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import PROBES, TokenBytes
from mrt_hpc.mrt.episodes import EpisodeRule, cut_episodes
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.sections.prompt import Prompt
from mrt_hpc.roles.preparation.tokenizer_check import refuse_lossy, written_texts

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = ["Wait, let me re-check: 3*x + 4 = 19.\n\nAlternatively, the answer is 3.\n\n", *PROBES] * 20
QWEN_SPLIT = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
)
TAGS = [AddedToken(tag, normalized=False) for tag in ("<think>", "</think>")]
TRACE = "x = 3.\n\nSo it is.\n\nCheck: 🙂\n\nWait, let me re-check.\n\nAlternatively, 3."
RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


def byte_level(*, prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return trained(tokenizer)


def qwen() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(QWEN_SPLIT, "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    return trained(tokenizer)


def trained(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(TAGS)
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    """As SentencePiece's BPE in its newer form: the pre-tokenizer writes the spaces, bytes for what is unknown."""
    tokenizer = fallback()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    tokenizer.decoder = byte_fallback(strips=scheme != "never")
    tokenizer.add_tokens(TAGS)
    return tokenizer


def legacy(*, prepends: bool) -> Tokenizer:
    """As Llama 2's: the normalizer writes the spaces."""
    tokenizer = fallback()
    space = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space]) if prepends else space
    tokenizer.decoder = byte_fallback(strips=prepends)
    tokenizer.add_tokens(TAGS)
    return tokenizer


def byte_fallback(*, strips: bool) -> decoders.Decoder:
    strip = [decoders.Strip(content=" ", left=1)] if strips else []
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def fallback() -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"Waitlemchkx", "▁x"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    return Tokenizer(models.BPE(vocab, [("▁", "x")], byte_fallback=True, unk_token="<unk>", fuse_unk=True))


def fuse() -> Tokenizer:
    """Every character a token, and a decoder that only joins them."""
    characters = sorted({c for text in (*CORPUS, TRACE, *texts()) for c in text})
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(["<s>", "</s>", *characters])}, []))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def texts() -> list[str]:
    return written_texts(load_recipe(RECIPE))


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "byte level, prefix space": lambda: byte_level(prefix_space=True),
    "Qwen2": qwen,
    "Metaspace, never": lambda: metaspace("never"),
    "Metaspace, first": lambda: metaspace("first"),
    "Metaspace, always": lambda: metaspace("always"),
    "byte fallback": lambda: legacy(prepends=False),
    "byte fallback, prepends": lambda: legacy(prepends=True),
    "Fuse": fuse,
}
CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer", "PreTrainedTokenizerFast")


def saved(tokenizer: Tokenizer, directory: Path, kind: str) -> Path:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>", clean_up_tokenization_spaces=False
    )
    fast.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": kind}))
    return directory


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_is_what_its_file_says_whatever_class_is_named(family: str, kind: str, tmp_path: Path) -> None:
    prompter = Prompter.of(saved(FAMILIES[family](), tmp_path, kind), Prompt())
    refuse_lossy(prompter, texts(), "model.path")
    tokens = TokenBytes(prompter.tokenizer)
    pieces = tokens.pieces(prompter.ids(TRACE))
    assert b"".join(pieces) == TRACE.encode()
    assert len(cut_episodes(pieces, EpisodeRule())) == 3


def test_a_tokenizer_that_loses_spaces_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace(" ", "")
    prompter = Prompter.of(saved(tokenizer, tmp_path, "LlamaTokenizerFast"), Prompt())
    with pytest.raises(UserError, match="does not bring back a text whole") as refused:
        refuse_lossy(prompter, texts(), "model.path")
    assert "model.path" in str(refused.value.where)


def test_a_tag_that_swallows_the_blank_line_behind_it_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("</think>", rstrip=True)])
    prompter = Prompter.of(saved(tokenizer, tmp_path, "PreTrainedTokenizerFast"), Prompt())
    with pytest.raises(UserError, match="whole"):
        refuse_lossy(prompter, texts(), "model.path")


def test_a_decoder_that_loses_spaces_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(" ", "")])
    prompter = Prompter.of(saved(tokenizer, tmp_path, "PreTrainedTokenizerFast"), Prompt())
    with pytest.raises(UserError, match="its decoder"):
        refuse_lossy(prompter, texts(), "model.path")


def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="the tokenizer cannot be loaded"):
        Prompter.of(tmp_path, Prompt())
