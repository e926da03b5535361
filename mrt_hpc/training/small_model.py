"""A small random model, by which a configuration is checked before a GPU is asked for."""

import math
import re
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

SMALL_VOCABULARY = 512
HEADS = r"(^|_)n(um)?_(\w+_)?heads?$"
"""Names of configuration fields that are numbers of heads."""
MOST_LAYERS = 12


def make_small(config: PretrainedConfig, directory: Path) -> None:
    """Weights are so large that faults show. May raise anything: the model's class may not take small sizes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cast("PreTrainedModel", AutoModelForCausalLM.from_config(_small(config), dtype=torch.float32))
        for matrix in (p for p in model.parameters() if p.ndim > 1):
            nn.init.normal_(matrix, std=1.5 / math.sqrt(matrix.shape[-1]))
        model.save_pretrained(directory)


def _small(config: PretrainedConfig) -> PretrainedConfig:
    """One factor divides all numbers of heads and all widths: a width stays heads times their size, on which rotary
    embeddings depend.
    """
    text = config.get_text_config()
    fields = text.to_dict()
    depth = int(text.num_hidden_layers)
    kept = min(depth, MOST_LAYERS, max(2, *(_layers_of_all_kinds(n, v, depth) for n, v in fields.items())))
    factor = _factor(fields, int(text.hidden_size))
    small = {name: _smaller(name, value, factor, depth, kept) for name, value in fields.items()}
    return cast("PretrainedConfig", type(text).from_dict(small))


def _factor(fields: dict[str, Any], width: int) -> int:
    """Leaves two heads where their number allows it, and a width of whole vectors."""
    counts = [v for n, v in fields.items() if re.search(HEADS, n) and not re.search("kv|key_value", n) and v]
    heads = math.gcd(*counts)
    left = [n for n in (*range(2, 17), 1) if heads % n == 0 and width * n // max(heads, 1) % 8 == 0]
    return heads // left[0] if heads and left else 1 if heads else 8


def _layers_of_all_kinds(name: str, value: Any, depth: int) -> int:
    if isinstance(value, list | str) and len(value) == depth > 1:
        return max(value.index(kind) + 1 for kind in value)
    if isinstance(value, int) and re.search("period|interval|freq$|_step$|sliding_window_pattern", name):
        return int(value)
    return 0


def _smaller(name: str, value: Any, factor: int, depth: int, kept: int) -> Any:
    if isinstance(value, list | str) and len(value) == depth > 1:
        value = value[:kept]
    if isinstance(value, list):
        return [_smaller(name, part, factor, depth, kept) for part in value]
    if isinstance(value, dict):  # by number of the layer, in some
        return {key: part for key, part in value.items() if not str(key).isdigit() or int(key) < kept}
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    sizes = {
        "num_hidden_layers|^n_?layers?$|^num_layers$|max_window_layers": min(value, kept),
        "first_k_dense|num_dense_layers": min(value, 1),
        "vocab": min(value, SMALL_VOCABULARY),
        "token_id$": value % SMALL_VOCABULARY,
        "^n_group$|topk_group": 1,
        "per_tok|top_k|^moe_(topk|k)$": min(value, 2),
        "^(n|num|moe)_.*experts$": min(value, 4),
        HEADS: max(1, value // factor),
        "intermediate|ffn|n_inner": -(-value // (8 * factor)) * 8,
        "hidden_size|n_embd|d_model|n_groups|d_ssm": max(1, value // factor),
    }
    return next((size for pattern, size in sizes.items() if re.search(pattern, name)), value)
