"""The small world's model: a Qwen3 of under a million parameters, a Hugging Face directory like any other.

The output layer is not tied to the embedding: servers that reload weights in place get tied ones wrong on CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from mrt_hpc.domains.small_world.tokenizer import NUMBERS


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
