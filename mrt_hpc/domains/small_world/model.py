r"""The small world's tokenizer: one token a word or number of its traces, bytes for everything else.

Any text survives ``decode(encode(text))``: a stretch that is no known word falls apart into its bytes. Every stretch (a
number, ``\n\n``, ``\boxed{``) is a token of its own, so an episode always starts at a token boundary. It is saved as a
Hugging Face directory like any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from mrt_hpc.domains.small_world.equations import END_THINK, PARAGRAPH_END, THINK

END_OF_TEXT = "<|end|>"
PADDING = "<|pad|>"
# No newline right after a block: templates are rendered with those trimmed.
_MESSAGE = "{{ message['content'] }}{{ eos_token if message['role'] == 'assistant' else '' }}\n"
_MESSAGES = "{% for message in messages %}" + _MESSAGE + "{% endfor %}"
CHAT_TEMPLATE = _MESSAGES + "{% if add_generation_prompt %}<think>\n{% endif %}"
"""The thought is opened in the prompt, as R1-style models have it; a turn of the assistant ends the text."""

NUMBERS = range(128)
WORDS = (
    "Solve", " ", "*", "x", "+", "=", "*x+", "\n", PARAGRAPH_END, "First", "Wait", ", x=", ": ", ", ", " vs ",
    " low", " high", " yes", "Time", " is", " up", ".", r"\boxed{", "}",
)  # fmt: skip
_STRETCH = Regex(r"\\boxed\{|\n\n|\n|, x=|\*x\+|[:,] | vs |\d{1,3}| ?[A-Za-z]+|.")
_LONGEST = 512


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, the same at every call."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(p for p in map(_byte_level, (*WORDS, *map(str, NUMBERS))) if len(p) > 1)]
    model = models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_STRETCH, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in (THINK, END_THINK)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=_LONGEST,
    )


def _byte_level(text: str) -> str:
    """``text`` in the printable alphabet that stands for bytes."""
    [(piece, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return piece


# -- network -----------------------------------------------------------------------------------------------------------
# The small world's model: a Qwen3 of under a million parameters, a Hugging Face directory like any other.
#
# The output layer is not tied to the embedding: servers that reload weights in place get tied ones wrong on CPU.


@dataclass(frozen=True)
class ModelSize:
    """The numbers that make up the model."""

    width: int = 128
    layers: int = 2
    heads: int = 4
    feed_forward: int = 384
    longest: int = 512
    """Positions, in tokens: prompt and trace together."""


def fresh_model(size: ModelSize, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """A model with random weights drawn from ``seed``, but for the number tokens, which start as what they count.

    Without that head start the sums alone take twice the training.
    """
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(model_config(size, tokenizer))
    write_number_features(model, tokenizer)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def model_config(size: ModelSize, tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """The model's configuration, its vocabulary that of ``tokenizer``."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.width // size.heads,
        max_position_embeddings=size.longest,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


PERIODS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 20, 50, 100, 200, 400)
EMBEDDING_SCALE, OUTPUT_SCALE = 0.2, 0.1


def write_number_features(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Begin the rows of the number tokens, in both vocabulary matrices, with :func:`number_features`."""
    numbers = [tokenizer.convert_tokens_to_ids(str(n)) for n in NUMBERS]
    features = number_features(torch.tensor(list(NUMBERS)))[:, : model.config.hidden_size]
    with torch.no_grad():
        model.model.embed_tokens.weight[numbers, : features.shape[1]] = EMBEDDING_SCALE * features
        model.lm_head.weight[numbers, : features.shape[1]] = OUTPUT_SCALE * features


def number_features(numbers: Tensor) -> Tensor:
    """[N, 33] for [N] numbers: sine and cosine of each period, in which sums are rotations, and the size itself."""
    angles = 2 * math.pi * numbers[:, None] / torch.tensor(PERIODS)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return torch.cat([waves, numbers[:, None] / 100 - 1], dim=1)
