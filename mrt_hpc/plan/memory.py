"""Memory of one GPU, and what a trainer rank and a vLLM server take of it for a model of known shape."""

import json
import re
from dataclasses import dataclass, fields, replace
from math import ceil, lcm
from pathlib import Path
from typing import Any

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Precision
from mrt_hpc.recipe.model_files import config_number, text_config
from mrt_hpc.recipe.ownership import file_bytes
from mrt_hpc.recipe.sections import Training
from mrt_hpc.recipe.site import SiteSettings

GIB = 2**30


# -- GPU ---------------------------------------------------------------------------------------------------------------


USABLE = {
    "b200": 178.0, "h200": 139.0, "gh200": 94.0, "h100": 79.0, "h800": 79.0, "a100": 79.0, "a800": 79.0,
    "l40": 44.0, "a40": 44.0, "a6000": 47.0, "a30": 23.5, "a10": 22.0, "l4": 22.0, "t4": 14.5,
    "5090": 31.0, "4090": 23.5, "3090": 23.5, "2080ti": 10.5,
}  # fmt: skip
"""Usable GiB by a word of the GPU's name; the largest of several sizes."""
PLAIN = 0.98
"""Usable share of the memory in a name such as a100_40gb."""
ASSUMED_GIB = 79.0
"""An 80 GB GPU, where neither profile nor name says more."""


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU."""

    gib: float
    source: str
    """Of the number, in words."""
    known: bool = True
    """Whether the site states it; an assumption refuses nothing."""


def gpu_memory(site: SiteSettings) -> GpuMemory:
    if site.gpu_memory_gib is not None:
        return GpuMemory(site.gpu_memory_gib, f"gpu_memory_gib of site profile {site.name}")
    name = site.gpu_name.lower()
    if (stated := re.search(r"(\d+)\s*gi?b", name)) is not None:
        return GpuMemory(int(stated[1]) * PLAIN, f"the name of the GPU, {site.gpu_name}")
    words = set(re.split(r"[^a-z0-9]+", name))
    for gpu, gib in USABLE.items():
        if any(re.fullmatch(rf"{gpu}[a-z]*", word) for word in words):
            less = f"state gpu_memory_gib in site profile {site.name} where it has less"
            return GpuMemory(gib, f"{site.gpu_name}; {less}")
    return GpuMemory(ASSUMED_GIB, f"assumed: state gpu_memory_gib in site profile {site.name}", known=False)


# -- shape of a model, from its config.json ----------------------------------------------------------------------------


UNKNOWN_PARTS = (
    "num_experts", "num_local_experts", "n_routed_experts", "kv_lora_rank", "mamba_d_state", "ssm_cfg", "conv_L_cache",
    "linear_num_key_heads", "layers_block_type", "attn_layer_period",
)  # fmt: skip
"""config.json fields of models with experts, compressed keys or layers without attention, whose memory follows other
rules.
"""
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
BIASED = ("qwen2",)
"""Model types with a bias for queries, keys and values that config.json does not name."""
NORMED = ("qwen3",)
"""Model types that normalise queries and keys."""


class UnknownShapeError(Exception):
    """A model's memory is unknown; the text says why."""


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder with gated feed-forward layers."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """The embedding is also the output projection."""
    biased: bool = False
    normed: bool = False
    window: int | None = None
    """Tokens whose keys and values a sliding-window layer keeps."""
    window_layers: int = 0
    """Layers with a sliding window."""

    @property
    def queries(self) -> int:
        """Numbers in all query heads of a token."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Numbers in all key heads of a token; values have as many."""
        return self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        """The largest matrix of a small model."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * (self.queries + self.keys)
        biases = self.queries + 2 * self.keys if self.biased else 0
        norms = 2 * self.hidden + (2 * self.head_size if self.normed else 0)
        return attention + biases + norms + 3 * self.hidden * self.intermediate

    @property
    def parameters(self) -> int:
        """Tied ones counted once."""
        embeddings = self.embedding * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    @property
    def largest(self) -> int:
        """Parameters of the largest matrix."""
        return max(self.embedding, self.hidden * self.intermediate)

    def cache_numbers(self, tokens: float) -> float:
        """Numbers in the KV cache of a sequence of so many tokens."""
        windowed = self.window_layers * min(tokens, self.window or tokens)
        return 2 * self.keys * ((self.layers - self.window_layers) * tokens + windowed)


SMALL_WORLD = ModelShape(128, 384, 2, 4, 4, 32, 394, tied=False, normed=True)
"""Of the embedded small model."""


def shape_in(directory: Path) -> ModelShape:
    """The shape of a model directory.

    Raises:
        UnknownShapeError: no readable config.json, or another kind of model.
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
        UnknownShapeError: a number is missing, or the model is no dense decoder.
    """
    text = text_config(config)
    strange = [name for name in UNKNOWN_PARTS if text.get(name)]
    missing = [name for name in NEEDED if text.get(name) is None]
    if strange or missing:
        reason = f"it has {strange[0]}" if strange else f"its config.json lacks {missing[0]}"
        raise UnknownShapeError(f"the estimate knows dense decoders only, and {reason}")
    hidden, intermediate, layers, heads, vocabulary = (_whole(text, name, 0) for name in NEEDED)
    kind = text.get("model_type", "")
    window, window_layers = _sliding_window(text)
    return ModelShape(
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=_whole(text, "num_key_value_heads", heads),
        head_size=_whole(text, "head_dim", hidden // heads),
        vocabulary=vocabulary,
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        biased=kind in BIASED or bool(text.get("attention_bias")),
        normed=kind in NORMED,
        window=window,
        window_layers=window_layers,
    )


def _whole(text: dict[str, Any], name: str, otherwise: int) -> int:
    """Above 0; ``otherwise`` where unsaid."""
    try:
        number = config_number(text, name)
    except UserError as error:
        raise UnknownShapeError(error.evidence) from error
    if isinstance(number, float):
        raise UnknownShapeError(f"{name} of its config.json is no whole number: {number}")
    return otherwise if number is None else number


def _sliding_window(text: dict[str, Any]) -> tuple[int | None, int]:
    """Window length, and layers with one. Where no field names the layers, none counts: that is the most memory."""
    if text.get("use_sliding_window") is False or (window := _whole(text, "sliding_window", 0)) == 0:
        return None, 0
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return window, kinds.count("sliding_attention")
    layers = text["num_hidden_layers"]
    if pattern := _whole(text, "sliding_window_pattern", 0):
        return window, layers - layers // pattern
    first = text.get("max_window_layers")
    return window, max(0, layers - first) if isinstance(first, int) else 0


# -- trainer -----------------------------------------------------------------------------------------------------------
# Four moments can be the peak: the end of the forward pass, when the logits are there; the backward pass, when a layer
# is computed again; the exchange of gradients, in buckets; and the optimiser's step. The bytes a parameter of each were
# measured with DeepSpeed 0.19 on one and on two ranks (``benchmarks/bench_memory.py``).


BUCKET = 500_000_000
"""Gradients exchanged at once, at most (``mrt_hpc.training.engine.LARGEST_BUCKET``, and DeepSpeed's own number for
stages 0 and 1).
"""
LIVE = 1_000_000_000
"""Whole parameters that stage 3 keeps gathered, and takes a step of at a time."""
LOGITS_AT_ONCE = 1 << 28
"""Logits at once (``mrt_hpc.training.fused_projection.LOGIT_ELEMENTS``)."""
CHUNKED_LOGIT = 20
"""Bytes a logit of a projection in pieces: logits in 16 and 32 bits, divided by temperature, log-softmax, and
gradients.
"""
FUSED_LOGIT = 10
"""Bytes a logit of a fused projection's piece: in 16 and 32 bits, and one 32-bit array."""


@dataclass(frozen=True)
class TrainerSetting:
    """What a rank's memory depends on."""

    training: Training
    shape: ModelShape
    ranks: int
    longest: int
    """Tokens of the longest learnt sequence."""
    on_gpu: bool = True

    @property
    def tokens(self) -> int:
        """Tokens of the largest micro-batch, or of a rank's part. Sequences above the limit have one of their own."""
        return ceil(max(self.longest, self.training.max_tokens_per_micro_batch) / self.training.sequence_parallel)

    @property
    def width(self) -> int:
        """Bytes of a weight in the forward pass."""
        return 2 if self.training.precision is Precision.BF16 else 4

    @property
    def stage(self) -> int:
        """The ZeRO stage used: with 16-bit weights the optimiser is always partitioned."""
        least = 1 if self.training.precision is Precision.BF16 else 0
        return max(least, self.training.zero_stage)

    @property
    def bucket(self) -> float:
        """Gradients of a bucket, as a share of all."""
        return min(BUCKET, self.shape.parameters) / self.shape.parameters

    @property
    def live(self) -> float:
        """Parameters that stage 3 keeps whole, as a share of all."""
        return min(LIVE, self.shape.parameters) / self.shape.parameters


@dataclass(frozen=True)
class TrainerMemory:
    """Bytes of one rank."""

    weights: float = 0.0
    """With the frozen reference of the KL term."""
    optimizer: float = 0.0
    """Weights in 32 bits, and both moments of AdamW."""
    gradients: float = 0.0
    exchange: float = 0.0
    """Gradient buckets, and gathered weights of stage 3."""
    activations: float = 0.0
    logits: float = 0.0
    host: float = 0.0
    """In node memory, where the optimiser is offloaded."""

    @property
    def whole(self) -> float:
        """The sum without node memory."""
        return sum(getattr(self, field.name) for field in fields(self) if field.name != "host")


def trainer_memory(setting: TrainerSetting) -> TrainerMemory:
    """The bytes of a rank at its peak."""
    states, moments = _states(setting), (_scoring_memory, _recomputing_memory, _reduction, _step)
    return max((moment(setting, states) for moment in moments), key=lambda memory: memory.whole)


def _states(setting: TrainerSetting) -> TrainerMemory:
    """What is always there."""
    count, ranks, stage, width = setting.shape.parameters, setting.ranks, setting.stage, setting.width
    weights = width / ranks if stage == 3 else width
    reference = width if setting.training.kl_coefficient > 0 else 0
    optimizer = 8.0 if stage == 0 else 12 / ranks
    # 16-bit weights in stage 1 have gradients of their own beside the 32-bit sums.
    alone = 6.0 if setting.training.precision is Precision.BF16 else 4.0
    gradients = 4 / ranks if stage >= 2 else alone
    states = TrainerMemory((weights + reference) * count, optimizer * count, gradients * count)
    return _offload(states, setting) if setting.training.offload_optimizer else states


def _offload(states: TrainerMemory, setting: TrainerSetting) -> TrainerMemory:
    """Optimiser states and the step's gradients in node memory. DeepSpeed sums gradients on the GPU for 16-bit weights
    up to stage 2, and in stage 1; otherwise on the node. Up to stage 2 a buffer of the largest parameter is on the
    GPU, and a copy of the weights on the node. Without a GPU all is one memory.
    """
    count, ranks, width = setting.shape.parameters, setting.ranks, setting.width
    of_the_step = 4 / ranks * count
    if not setting.on_gpu:
        return replace(states, gradients=states.gradients + of_the_step)
    summed_on_gpu = setting.stage == 1 or (setting.stage == 2 and width == 2)
    buffer, copy = (width * setting.shape.largest, width / ranks * count) if setting.stage < 3 else (0.0, 0.0)
    host = states.optimizer + of_the_step + copy + (0.0 if summed_on_gpu else states.gradients)
    return replace(states, optimizer=0.0, gradients=buffer + (states.gradients if summed_on_gpu else 0.0), host=host)


def _scoring_memory(setting: TrainerSetting, states: TrainerMemory) -> TrainerMemory:
    """The memory at the forward pass's end, with the logits."""
    casts = 2 * setting.shape.parameters if setting.training.precision is Precision.BF16_AUTOCAST else 0.0
    exchange = _layer_extra_bytes(setting) * setting.shape.parameters + casts
    return replace(states, exchange=exchange, activations=kept_bytes(setting), logits=logit_bytes(setting))


def _recomputing_memory(setting: TrainerSetting, states: TrainerMemory) -> TrainerMemory:
    """The memory at the start of the backward pass through layers, without the logits."""
    exchange = _layer_extra_bytes(setting) * setting.shape.parameters
    return replace(states, exchange=exchange, activations=activation_bytes(setting))


def _layer_extra_bytes(setting: TrainerSetting) -> float:
    """Bytes a parameter that stage 3 adds to the states: bucket and gathered weights, which processes without a GPU
    copy.
    """
    copies = 1.5 if setting.ranks > 1 and not setting.on_gpu else 1.0
    return 4 * setting.bucket + copies * setting.width * setting.live if setting.stage == 3 else 0.0


def _reduction(setting: TrainerSetting, states: TrainerMemory) -> TrainerMemory:
    """The memory with a full gradient bucket: what lower layers need is still there."""
    count, bucket = setting.shape.parameters, setting.bucket
    beside = 6 * setting.shape.largest / count * (1 - bucket) if setting.stage >= 2 else 0.0
    live = setting.width * setting.live / 2 if setting.stage == 3 else 0.0  # weights that are not yet given up
    of_stage_2 = 8 if setting.width == 2 else 4 if setting.ranks == 1 else 6
    sent = {2: of_stage_2, 3: 12}.get(setting.stage, 4)  # bytes a gradient of a bucket: stored, sent and received
    exchange = sent * bucket + beside + live
    return replace(states, exchange=exchange * count, activations=activation_bytes(setting) * (1 - bucket))


def _step(setting: TrainerSetting, states: TrainerMemory) -> TrainerMemory:
    """The memory in the optimiser's step, with a copy of its part's gradients."""
    count = setting.shape.parameters
    if setting.stage == 0 or (setting.stage == 1 and setting.width == 2):
        return states
    part = min(4 / setting.ranks, 4 * LIVE / count) if setting.stage == 3 else 4 / setting.ranks
    copied = 0.0 if setting.training.offload_optimizer else part
    return replace(states, exchange=(copied + _layer_extra_bytes(setting)) * count)


def logit_bytes(setting: TrainerSetting) -> float:
    """Bytes of logits and what is computed of them."""
    shape, at_once = setting.shape, LOGITS_AT_ONCE
    if setting.training.projection == "chunked":
        return CHUNKED_LOGIT * min(setting.tokens * shape.vocabulary, at_once)
    logits = min(setting.tokens, max(1, at_once // shape.vocabulary)) * shape.vocabulary
    return FUSED_LOGIT * logits + 4 * shape.embedding


def kept_bytes(setting: TrainerSetting) -> float:
    """Activations kept by the forward pass: each layer's input, or all; and both ends."""
    shape, stream = setting.shape, setting.width
    recomputed = setting.training.gradient_checkpointing
    layer = stream * shape.hidden if recomputed else layer_bytes(setting)
    return setting.tokens * (shape.layers * layer + 3 * stream * shape.hidden)


def activation_bytes(setting: TrainerSetting) -> float:
    """Activations while the backward pass is in a layer: with that layer's recomputed ones and gradients."""
    layer = layer_bytes(setting) if setting.training.gradient_checkpointing else 0.0
    passing = 3 * _inner_width(setting) * setting.shape.intermediate
    return kept_bytes(setting) + setting.tokens * (layer + passing)


def layer_bytes(setting: TrainerSetting) -> float:
    """Bytes a token for one layer's backward pass.

    Each of two norms keeps its input in 32 bits, and its output before and after scaling; attention keeps queries,
    keys, values and output; the feed-forward part four arrays of its inner size.
    """
    shape, inner, stream = setting.shape, _inner_width(setting), setting.width
    norms = 2 * (4 + 2 * stream if stream == 2 else 8) * shape.hidden
    casts = 2 * 2 * shape.hidden if setting.training.precision is Precision.BF16_AUTOCAST else 0
    attention = inner * (2 * shape.queries + 2 * shape.keys) + 4 * shape.heads + _exchanged_bytes(setting)
    return norms + casts + stream * shape.hidden + attention + 4 * inner * shape.intermediate


def _exchanged_bytes(setting: TrainerSetting) -> int:
    """Bytes a token that attention adds where ranks share rows: exchanged output; sent queries, keys and values; and
    copies of keys and values with fewer heads than ranks.
    """
    shape, parts = setting.shape, setting.training.sequence_parallel
    if parts == 1:
        return 0
    sent_keys = lcm(shape.kv_heads, parts) * shape.head_size
    return _inner_width(setting) * (2 * shape.queries + 2 * sent_keys + 2 * (sent_keys - shape.keys))


def _inner_width(setting: TrainerSetting) -> int:
    """Bytes of a matrix product's result."""
    return 4 if setting.training.precision is Precision.FP32 else 2


# -- server ------------------------------------------------------------------------------------------------------------
# On a GPU vLLM takes a share of the memory, measures what the weights and a forward pass of its largest batch take, and
# gives the rest to the KV cache. Without a GPU the recipe states the size of the cache. The numbers of the forward pass
# are derived from vLLM 0.32, and were not measured on a GPU.


BATCH_TOKENS = 8192
"""Tokens of vLLM's largest forward pass on a GPU with much memory."""
SAMPLER_BYTES = 12
"""Bytes a logit of a batch: three 32-bit arrays."""
GPU_OVERHEAD_GIB = 1.5
"""CUDA, NCCL and the graphs recorded for batch sizes."""
CPU_OVERHEAD_GIB = 3.0
"""Server processes without a GPU, beside weights and cache."""


@dataclass(frozen=True)
class ServerSetting:
    """What a server's memory depends on."""

    shape: ModelShape
    width: int
    """Bytes of a weight or cached number."""
    longest: int
    """Tokens, prompt included."""
    mean: float
    """Tokens of a mean sequence."""
    batch: int
    """Sequences in one batch."""
    gpus: int
    """Over which each layer is divided; 0 without a GPU."""
    memory: float
    """Bytes allowed on each GPU; without a GPU, of the KV cache."""
    stages: int = 1
    """Parts that layers are divided into."""


@dataclass(frozen=True)
class ServerMemory:
    """Bytes on each GPU."""

    weights: float
    activations: float
    overhead: float
    cache: float
    """Left for the KV cache; negative where not even weights fit."""
    longest: float
    """Cache of a longest sequence."""
    mean: float
    """Cache of a mean sequence."""

    @property
    def least(self) -> float:
        """Bytes to hold one longest sequence, below which vLLM does not start."""
        return self.weights + self.activations + self.overhead + self.longest

    def capacity(self, sequence: float) -> int:
        """Sequences of so many bytes in the cache."""
        return max(0, int(self.cache // sequence))


def server_memory(setting: ServerSetting) -> ServerMemory:
    shape, width = setting.shape, max(1, setting.gpus)
    weights = setting.width * shape.parameters / (width * setting.stages)
    parts = min(width, shape.kv_heads) * setting.stages  # a head is copied where there are fewer of them than GPUs
    longest, mean = (setting.width * shape.cache_numbers(tokens) / parts for tokens in (setting.longest, setting.mean))
    if not setting.gpus:
        return ServerMemory(weights, 0.0, CPU_OVERHEAD_GIB * GIB, setting.memory, longest, mean)
    # The peak of the largest batch's forward pass, with its logits.
    inner = (2 * shape.intermediate + shape.queries + 2 * shape.keys) / setting.gpus
    passed = setting.width * max(BATCH_TOKENS, setting.batch) * (4 * shape.hidden + inner)
    activations = passed + SAMPLER_BYTES * setting.batch * shape.vocabulary
    cache = setting.memory - weights - activations - GPU_OVERHEAD_GIB * GIB
    return ServerMemory(weights, activations, GPU_OVERHEAD_GIB * GIB, cache, longest, mean)
