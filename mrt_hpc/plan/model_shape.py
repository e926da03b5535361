"""The numbers of a model that decide how much memory it takes, from its config.json alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrt_hpc.recipe.model_files import text_config
from mrt_hpc.run.typed_file import file_bytes

if TYPE_CHECKING:
    from pathlib import Path

UNKNOWN_PARTS = (
    "num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank", "mamba_d_state", "ssm_cfg", "conv_L_cache",
    "linear_num_key_heads", "layers_block_type", "attn_layer_period",
)  # fmt: skip
"""Fields of config.json of models with experts, compressed keys or layers without attention: their memory follows other
rules than those here.
"""
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
BIASED = ("qwen2",)
"""Model types whose queries, keys and values have a bias that config.json does not name."""
NORMED = ("qwen3",)
"""Model types that normalise queries and keys."""


class UnknownShapeError(Exception):
    """The memory of a model cannot be told; the text gives the reason."""


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder with a gated feed-forward part."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """Whether the embedding is the output projection as well."""
    biased: bool = False
    normed: bool = False
    window: int | None = None
    """The number of tokens whose keys and values a layer with a sliding window keeps."""
    window_layers: int = 0
    """The number of layers with a sliding window."""

    @property
    def queries(self) -> int:
        """The numbers of all query heads of one token."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """The numbers of all key heads of one token; the values have as many."""
        return self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        """The parameters of the embedding, the largest matrix of a small model."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> int:
        """The parameters of one layer."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        biases = self.queries + 2 * self.keys if self.biased else 0
        norms = 2 * self.hidden + (2 * self.head_size if self.normed else 0)
        return attention + biases + norms + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """All parameters, tied ones counted once."""
        embeddings = self.embedding * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    @property
    def largest(self) -> int:
        """The parameters of the largest matrix."""
        return max(self.embedding, self.hidden * self.intermediate)

    def cache_numbers(self, tokens: float) -> float:
        """The numbers that the KV cache keeps of one sequence of so many tokens."""
        windowed = self.window_layers * min(tokens, self.window or tokens)
        return 2 * self.keys * ((self.layers - self.window_layers) * tokens + windowed)


SMALL_WORLD = ModelShape(128, 384, 2, 4, 4, 32, 394, tied=False, normed=True)
"""The shape of the embedded small model."""


def shape_in(directory: Path) -> ModelShape:
    """The shape of a model directory.

    Raises:
        UnknownShapeError: the directory has no readable config.json, or the model is of another kind.
    """
    try:
        config = json.loads(file_bytes(directory / "config.json"))
        return shape_of(config)
    except (OSError, ValueError, RecursionError, TypeError, AttributeError, ArithmeticError) as error:
        if isinstance(error, UnknownShapeError):
            raise
        raise UnknownShapeError(f"{directory / 'config.json'} cannot be read") from error


def shape_of(config: dict[str, Any]) -> ModelShape:
    """The shape of a configuration.

    Raises:
        UnknownShapeError: it lacks a number, or the model is no dense decoder.
    """
    text = text_config(config)
    strange = [name for name in UNKNOWN_PARTS if text.get(name)]
    missing = [name for name in NEEDED if not isinstance(text.get(name), int)]
    if strange or missing:
        reason = f"it has {strange[0]}" if strange else f"its config.json lacks {missing[0]}"
        raise UnknownShapeError(f"the estimate knows dense decoders only, and {reason}")
    heads, kind = text["num_attention_heads"], text.get("model_type", "")
    window, window_layers = _sliding_window(text)
    return ModelShape(
        hidden=text["hidden_size"],
        intermediate=text["intermediate_size"],
        layers=text["num_hidden_layers"],
        heads=heads,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_size=text.get("head_dim") or text["hidden_size"] // heads,
        vocabulary=text["vocab_size"],
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        biased=kind in BIASED or bool(text.get("attention_bias")),
        normed=kind in NORMED,
        window=window,
        window_layers=window_layers,
    )


def _sliding_window(text: dict[str, Any]) -> tuple[int | None, int]:
    """The length of the window, and the number of layers that have one."""
    window = text.get("sliding_window")
    if not isinstance(window, int) or text.get("use_sliding_window") is False:
        return None, 0
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return window, kinds.count("sliding_attention")
    return window, max(0, text["num_hidden_layers"] - int(text.get("max_window_layers", 0)))
