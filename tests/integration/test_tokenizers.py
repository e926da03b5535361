"""The bytes of tokens. Tokenizers of each family, saved as model directories whose configuration names whatever class:
loaded, they bring back texts whole, or are refused.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commands import refusal
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from warm_start import build_tokenizer

from mrt_hpc.errors import UserError
from mrt_hpc.inference.prompting import Prompter
from mrt_hpc.inference.tokens import PROBES, StoredTokens, TokenBytes
from mrt_hpc.mrt.episodes import cut_episodes
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.sections import Episodes, Prompt
from mrt_hpc.roles.prepare_checks import refuse_lossy, written_texts

CORPUS = ["Wait, let me re-check: 3*x + 4 = 19.\n\nAlternatively, the answer is 3.\n\n", *PROBES] * 20
QWEN_SPLIT = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
)
TAGS = [AddedToken(tag, normalized=False) for tag in ("<think>", "</think>")]
TRACE = "x = 3.\n\nSo it is.\n\nCheck: 🙂\n\nWait, let me re-check.\n\nAlternatively, 3."
TEXTS = written_texts(load_recipe(ROOT / "recipes" / "quickstart.yaml"))
INDENTED = "if x:\n    y  =   3\n\n\n\tz = '1,234' [and] 数学🙂 <table>  "


def byte_level(*, prefix_space: bool = False) -> Tokenizer:
    return trained(pre_tokenizers.ByteLevel(add_prefix_space=prefix_space))


def split_bytes(*before: pre_tokenizers.PreTokenizer, nfc: bool = False) -> Tokenizer:
    """A byte-level vocabulary whose texts are split by other rules first."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return trained(pre_tokenizers.Sequence([*before, level]), nfc=nfc)


def split_by(*patterns: Regex | str) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(p) if isinstance(p, str) else p, "isolated") for p in patterns]


def qwen() -> Tokenizer:
    return split_bytes(*split_by(QWEN_SPLIT), nfc=True)


def beginning(tokenizer: Tokenizer, *first: str) -> Tokenizer:
    tokenizer.add_special_tokens([*first])
    named = [(token, tokenizer.token_to_id(token)) for token in first]
    tokenizer.post_processor = processors.TemplateProcessing(single=" ".join([*first, "$A"]), special_tokens=named)
    return tokenizer


def llama3() -> Tokenizer:
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return beginning(split_bytes(*split_by(pattern)), "<s>")


def deepseek() -> Tokenizer:
    words = r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s+"
    tokenizer = split_bytes(*split_by(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", words))
    tokenizer.add_tokens([AddedToken(f"<｜{name}｜>", normalized=False) for name in ("User", "Assistant")])
    return beginning(tokenizer, "<｜begin▁of▁sentence｜>")


def neox() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return tokenizer


def phi3() -> Tokenizer:
    tokenizer = legacy(prepends=True)
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    return beginning(tokenizer, "<s>")


def gemma() -> Tokenizer:
    """With runs of spaces and of new lines as added tokens that are not special, spaces as the vocabulary has them."""
    runs = ["\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "<table>"]
    tokenizer = fallback(*runs, merges=[("▁", "▁"), ("▁▁", "▁"), ("▁▁", "▁▁")])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = byte_fallback(strips=False)
    tokenizer.add_tokens([AddedToken(run, normalized=False) for run in runs])
    tokenizer.add_tokens(TAGS)
    return beginning(tokenizer, "<s>")


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer, *, nfc: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
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


def fallback(*more: str, merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"Waitlemchkx", "▁x", *more]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    return Tokenizer(models.BPE(vocab, [("▁", "x"), *merges], byte_fallback=True, unk_token="<unk>", fuse_unk=True))


def fuse() -> Tokenizer:
    """Every character a token, and a decoder that only joins them."""
    characters = sorted({c for text in (*CORPUS, TRACE, INDENTED, *TEXTS) for c in text})
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(["<s>", "</s>", *characters])}, []))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte level, prefix space": lambda: byte_level(prefix_space=True),
    "Qwen2": qwen,
    "Metaspace, never": lambda: metaspace("never"),
    "Metaspace, always": lambda: metaspace("always"),
    "byte fallback": lambda: legacy(prepends=False),
    "Fuse": fuse,
    "Llama 2": lambda: beginning(legacy(prepends=True), "<s>"),
    "Llama 3": llama3,
    "Gemma": gemma,
    "Mistral 3": lambda: beginning(metaspace("first"), "<s>"),
    "Phi-3": phi3,
    "DeepSeek-V3": deepseek,
    "GPT-NeoX": neox,
    "ChatGLM": lambda: beginning(legacy(prepends=True), "[gMASK]", "sop"),
}
"""From ``Llama 2`` on they are built as the files of known models are, with a small vocabulary."""
CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast", "Qwen2Tokenizer", "PreTrainedTokenizerFast")


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>", clean_up_tokenization_spaces=False
    )


def prompter_of(tokenizer: Tokenizer, directory: Path, kind: str = "PreTrainedTokenizerFast") -> Prompter:
    fast(tokenizer).save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": kind}))
    return Prompter.of(directory, Prompt())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokenizer_of_a_family_brings_back_texts_and_tokens_and_begins_prompts(family: str, tmp_path: Path) -> None:
    prompter = prompter_of(FAMILIES[family](), tmp_path)
    refuse_lossy(prompter, [*TEXTS, INDENTED], "model.path")
    tokens, tokenizer = TokenBytes(prompter.tokenizer), prompter.tokenizer
    written = tokenizer.encode("7", add_special_tokens=True)
    count = len(written) - len(tokenizer.encode("7", add_special_tokens=False))
    first, ids = written[:count], prompter.encode_problem(INDENTED)
    assert ids[:count] == first
    assert ids[count : 2 * count] != first or not first
    assert tokens.text(ids[count:]).removeprefix(" ") == tokenizer.decode(ids[count:]).removeprefix(" ")
    trace = prompter.ids(TRACE)
    assert len(cut_episodes(tokens.pieces(trace), Episodes())) == 3
    stored = StoredTokens.read(tmp_path / "tokenizer.json").cut(trace, [0, len(trace)], TRACE)
    assert stored is not None and stored.episodes == (TRACE,)
    (anchor,) = prompter.ids("x")
    for token in {*range(len(tokenizer))} - {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}:
        try:
            whole = tokens.table[token].decode()
        except UnicodeDecodeError:  # a part of a character
            continue
        assert tokenizer.decode([anchor, token, anchor]) == f"x{whole}x"


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("family", ["byte level, prefix space", "Qwen2", "Metaspace, always", "byte fallback", "Fuse"])
def test_a_tokenizer_is_what_its_file_says_whatever_class_is_named(family: str, kind: str, tmp_path: Path) -> None:
    prompter = prompter_of(FAMILIES[family](), tmp_path, kind)
    refuse_lossy(prompter, TEXTS, "model.path")
    pieces = TokenBytes(prompter.tokenizer).pieces(prompter.ids(TRACE))
    assert b"".join(pieces) == TRACE.encode()
    assert len(cut_episodes(pieces, Episodes())) == 3


@pytest.mark.parametrize("fault", ["loses spaces", "swallows blank lines", "decodes without spaces"])
def test_a_tokenizer_that_does_not_bring_back_a_text_is_refused(fault: str, tmp_path: Path) -> None:
    tokenizer = byte_level()
    if fault == "loses spaces":
        tokenizer.normalizer = normalizers.Replace(" ", "")
    elif fault == "swallows blank lines":
        tokenizer.add_special_tokens([AddedToken("</think>", rstrip=True)])
    else:
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(" ", "")])
    assert "model.path" in str(refusal(refuse_lossy, prompter_of(tokenizer, tmp_path), TEXTS, "model.path").where)


def test_files_that_are_no_tokenizer_and_families_whose_bytes_are_unknown_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="the tokenizer cannot be loaded"):
        Prompter.of(tmp_path, Prompt())
    tokenizer = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UserError, match="bytes of this tokenizer's tokens"):
        TokenBytes(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


TOKENIZERS = {
    "byte level": fast(byte_level()),
    "byte fallback": fast(legacy(prepends=False)),
    "small world": build_tokenizer(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=100)
@given(text=st.text(max_size=60))
def test_the_pieces_of_any_text_join_to_its_bytes(name: str, text: str) -> None:
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False)
    pieces = TokenBytes(TOKENIZERS[name]).pieces(ids)
    assert (len(pieces), b"".join(pieces)) == (len(ids), text.encode())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_pieces_of_random_ids_join_to_what_the_tokenizer_decodes(name: str) -> None:
    tokenizer, draw = TOKENIZERS[name], random.Random(0)
    known = TokenBytes(tokenizer)
    for _ in range(200):
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randrange(40))]
        if name == "byte fallback":  # its own decoder gives up a whole run of bytes where one is wrong
            ids = [i for i in ids if not 3 <= i < 259]
        assert known.text(ids) == tokenizer.decode(ids, skip_special_tokens=False)
    assert known.pieces([10_000]) == [b""], "a row that only pads the vocabulary"


@pytest.mark.parametrize("name", [*TOKENIZERS, "prepends"])
@pytest.mark.parametrize("text", ["7", " 7", "\n\n</think>\n\nab", "x"])
def test_a_text_that_goes_on_gets_no_space_of_the_tokenizers_own(name: str, text: str) -> None:
    tokenizer = fast(legacy(prepends=True)) if name == "prepends" else TOKENIZERS[name]
    assert TokenBytes(tokenizer).text(Prompter(tokenizer, Prompt(), (0,)).ids(text)) == text
