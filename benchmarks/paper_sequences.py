"""Models and sequences in the sizes of the paper, with random contents, and the FLOPs of an update on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from mrt_hpc.training.micro_batch import MicroBatch, arrange, lay_out
from mrt_hpc.training.settings import TrainingSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.recipe.choices import Batching

SHAPES = {
    "1.5b": (1536, 28, 12, 2, 8960, 151_936),
    "7b": (3584, 8, 28, 4, 18_944, 152_064),
    "tiny": (64, 2, 2, 1, 192, 2048),
}
"""Hidden size, layers, heads, key heads, intermediate size, vocabulary."""

MEDIAN, PERCENTILE_95, CUT = 6144, 16_384, 16_384
SMALLER = 64  # by how much the lengths of the tiny shape are divided
GROUP = 4  # traces of one prompt
BOUNDARIES, BRANCHES, BRANCH_TOKENS = 4, 2, 64


def config_of(shape: str, layers: int | None = None) -> Qwen2Config:
    """The configuration of a shape, with another number of layers where one is given."""
    hidden, own_layers, heads, key_heads, intermediate, vocabulary = SHAPES[shape]
    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers or own_layers, num_attention_heads=heads,
        num_key_value_heads=key_heads, intermediate_size=intermediate, max_position_embeddings=2 * CUT,
        tie_word_embeddings=False,
    )  # fmt: skip


def sampled(count: int, scale: int, vocabulary: int, seed: int) -> list[TrainingSequence]:
    """Traces with lengths as in the paper, divided by ``scale``; prompts have a fortieth of the median."""
    rng = np.random.default_rng(seed)
    sigma = np.log(PERCENTILE_95 / MEDIAN) / 1.645
    prompt = max(1, MEDIAN // scale // 40)
    prompts = [rng.integers(0, vocabulary, prompt).tolist() for _ in range(-(-count // GROUP))]
    drawn = np.minimum(np.exp(np.log(MEDIAN) + sigma * rng.normal(size=count)), CUT) / scale
    lengths = np.maximum(drawn.astype(int), prompt + BOUNDARIES + 2).tolist()
    return [trained(prompts[n // GROUP], length - prompt, vocabulary, rng) for n, length in enumerate(lengths)]


def branched(traces: Sequence[TrainingSequence], scale: int, vocabulary: int, seed: int) -> list[TrainingSequence]:
    """The traces, and branches at even boundaries of each."""
    rng = np.random.default_rng(seed)
    found = list(traces)
    for s in traces:
        for boundary in range(1, BOUNDARIES + 1):
            kept = len(s.token_ids) * boundary // (BOUNDARIES + 1)
            context = [*s.prompt_ids, *s.token_ids[:kept]]
            tokens = max(2, BRANCH_TOKENS // scale)
            found += [trained(context, tokens, vocabulary, rng) for _ in range(BRANCHES)]
    return found


def trained(context: list[int], tokens: int, vocabulary: int, rng: np.random.Generator) -> TrainingSequence:
    """A sequence of random tokens."""
    return with_advantages(context, rng.integers(0, vocabulary, tokens).tolist(), rng)


def with_advantages(context: list[int], tokens: list[int], rng: np.random.Generator) -> TrainingSequence:
    """A sequence whose tokens are all trained, with random advantages."""
    advantages = rng.normal(size=len(tokens)).astype(np.float32)
    return TrainingSequence(
        context, tokens, advantages, np.full(len(tokens), -1, np.float32), np.ones(len(tokens), bool)
    )


def batches_of(sequences: Sequence[TrainingSequence], batching: Batching, max_tokens: int) -> list[MicroBatch]:
    """The micro-batches of one update."""
    steps = arrange(batching, sequences, 1, max_tokens).steps
    return [lay_out(batching, [sequences[i] for i in share]) for (share,) in steps]


def flops(config: Qwen2Config, sequences: Sequence[TrainingSequence], batches: Sequence[MicroBatch]) -> float:
    """The FLOPs of one update by the formula above; the batches are needed where they share prefixes."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layers = sum(p.numel() for p in model.base_model.layers.parameters())
    parts = [part for b in batches for part in _shared_parts(b)] or [(0, s.width) for s in sequences]
    positions = sum(end - start for start, end in parts)
    squares = sum(end**2 - start**2 for start, end in parts)
    trained = sum(s.trained_tokens for s in sequences)
    attention = config.num_hidden_layers * config.hidden_size * squares
    return 6.0 * (positions * layers + trained * config.vocab_size * config.hidden_size + attention)


def _shared_parts(batch: MicroBatch) -> list[tuple[int, int]]:
    """Where each part of a shared batch starts and ends in its own sequence; none of other batches."""
    return [(len(path) - own, len(path)) for own, path in zip(batch.lengths or (), batch.paths or (), strict=False)]
