"""The memory that one rank of the trainer takes at its peak.

Four moments can be the peak: the end of the forward pass, when the logits are there; the backward pass, when a layer is
computed again; the exchange of gradients, in buckets; and the optimiser's step. The bytes a parameter of each were
measured with DeepSpeed 0.19 on one and on two ranks (``tests/benchmarks/bench_memory.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import ceil, lcm
from typing import TYPE_CHECKING

from mrt_hpc.plan.throughput import BYTES
from mrt_hpc.recipe.batching import Precision

if TYPE_CHECKING:
    from mrt_hpc.plan.model_shape import ModelShape
    from mrt_hpc.recipe.sections.training import Training

BUCKET = 500_000_000
"""The largest number of gradients that are exchanged at once (``mrt_hpc.training.engine.LARGEST_BUCKET``, and
DeepSpeed's own number for stages 0 and 1).
"""
LIVE = 1_000_000_000
"""The number of whole parameters that stage 3 keeps gathered, and the number of which it takes a step at a time."""
LOGITS_AT_ONCE = 1 << 28
"""The number of logits that are there at once (``mrt_hpc.training.projection.LOGIT_ELEMENTS``)."""
CHUNKED_LOGIT = 20
"""Bytes for each logit where the projection is in pieces: the logits in 16 and in 32 bits, those divided by the
temperature, their log-softmax and their gradients.
"""
FUSED_LOGIT = 10
"""Bytes for each logit of a piece where the projection is fused: in 16 and in 32 bits, and one array of 32 bits."""


@dataclass(frozen=True)
class TrainerSetting:
    """What the memory of a rank depends on."""

    training: Training
    shape: ModelShape
    ranks: int
    longest: int
    """Tokens of the longest sequence that is learnt."""
    on_gpu: bool = True

    @property
    def tokens(self) -> int:
        """The tokens of the largest micro-batch, or of a rank's part of it. A longer sequence than the limit has one
        of its own.
        """
        return ceil(max(self.longest, self.training.max_tokens_per_micro_batch) / self.training.sequence_parallel)

    @property
    def width(self) -> int:
        """Bytes of a weight that the forward pass reads."""
        return 2 if self.training.precision is Precision.BF16 else 4

    @property
    def stage(self) -> int:
        """The ZeRO stage that is used: with weights in 16 bits the optimiser is partitioned in any case."""
        least = 1 if self.training.precision is Precision.BF16 else 0
        return max(least, self.training.zero_stage)

    @property
    def bucket(self) -> float:
        """The gradients of a bucket, as a share of all."""
        return min(BUCKET, self.shape.parameters) / self.shape.parameters

    @property
    def live(self) -> float:
        """The parameters that stage 3 keeps whole, as a share of all."""
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
    """Buckets of gradients, and gathered weights of stage 3."""
    activations: float = 0.0
    logits: float = 0.0
    host: float = 0.0
    """In the memory of the node, where the optimiser is offloaded from a GPU."""

    @property
    def whole(self) -> float:
        """The sum, without what is in the memory of the node."""
        return sum(getattr(self, field.name) for field in fields(self) if field.name != "host")


def trainer_memory(setting: TrainerSetting) -> TrainerMemory:
    """The bytes of a rank at the moment that takes the most."""
    states = _states(setting)
    moments = (
        _scoring(setting, states),
        _recomputing(setting, states),
        _reduction(setting, states),
        _step(setting, states),
    )
    return max(moments, key=lambda moment: moment.whole)


def last_published_bytes(setting: TrainerSetting) -> float:
    """Bytes of the weights that rank 0 published last. It keeps them in the memory of its node where versions are
    published as deltas.
    """
    if setting.training.full_weights_every == 1:
        return 0.0
    return BYTES[setting.training.weights_dtype] * setting.shape.parameters


def _states(setting: TrainerSetting) -> TrainerMemory:
    """What is there all the time."""
    count, ranks, stage, width = setting.shape.parameters, setting.ranks, setting.stage, setting.width
    weights = width / ranks if stage == 3 else width
    reference = width if setting.training.kl_coefficient > 0 else 0
    optimizer = 8.0 if stage == 0 else 12 / ranks
    gradients = _gradients(setting)
    states = TrainerMemory((weights + reference) * count, optimizer * count, gradients * count)
    if not setting.training.offload_optimizer:
        return states
    return _offloaded(states, setting)


def _gradients(setting: TrainerSetting) -> float:
    """Bytes of gradients for each parameter. Weights in 16 bits have gradients of their own in stage 1, beside those in
    32 bits that are summed up.
    """
    if setting.stage >= 2:
        return 4 / setting.ranks
    return 6.0 if setting.training.precision is Precision.BF16 else 4.0


def _offloaded(states: TrainerMemory, setting: TrainerSetting) -> TrainerMemory:
    """The optimiser's states, and from stage 2 on the gradients, lie in the memory of the node; without a GPU this is
    the same memory, with a copy of the gradients more.
    """
    copied = 4 / setting.ranks * setting.shape.parameters
    if not setting.on_gpu:
        return replace(states, gradients=states.gradients + copied)
    gradients = 0.0 if setting.stage >= 2 else states.gradients
    return replace(states, optimizer=0.0, gradients=gradients, host=states.optimizer + copied)


def _scoring(setting: TrainerSetting, states: TrainerMemory) -> TrainerMemory:
    """At the end of the forward pass, when the logits are there."""
    casts = 2 * setting.shape.parameters if setting.training.precision is Precision.BF16_AUTOCAST else 0.0
    exchange = _around_layers(setting) * setting.shape.parameters + casts
    return replace(states, exchange=exchange, activations=kept_bytes(setting), logits=logit_bytes(setting))


def _recomputing(setting: TrainerSetting, states: TrainerMemory) -> TrainerMemory:
    """At the beginning of the backward pass through the layers, when the logits are gone."""
    exchange = _around_layers(setting) * setting.shape.parameters
    return replace(states, exchange=exchange, activations=activation_bytes(setting))


def _around_layers(setting: TrainerSetting) -> float:
    """Bytes for each parameter of what stage 3 has beside the states: its bucket, and gathered weights."""
    return 4 * setting.bucket + _gathered(setting) if setting.stage == 3 else 0.0


def _reduction(setting: TrainerSetting, states: TrainerMemory) -> TrainerMemory:
    """When a bucket of gradients is full: what the layers below it need is still there."""
    count, bucket = setting.shape.parameters, setting.bucket
    beside = 6 * setting.shape.largest / count * (1 - bucket) if setting.stage >= 2 else 0.0
    exchange = _reduction_bytes(setting) * bucket + beside + (_half_of_the_live(setting) if setting.stage == 3 else 0.0)
    return replace(states, exchange=exchange * count, activations=activation_bytes(setting) * (1 - bucket))


def _reduction_bytes(setting: TrainerSetting) -> int:
    """Bytes for each gradient of a bucket: in the bucket, as it is sent, and as it is received."""
    if setting.stage < 2:
        return 4
    if setting.stage == 3:
        return 12
    if setting.width == 2:
        return 8
    return 4 if setting.ranks == 1 else 6


def _half_of_the_live(setting: TrainerSetting) -> float:
    """Bytes of the weights that stage 3 has not yet given up, for each parameter."""
    return setting.width * setting.live / 2


def _step(setting: TrainerSetting, states: TrainerMemory) -> TrainerMemory:
    """While the optimiser takes its step, with a copy of the gradients of its part."""
    count = setting.shape.parameters
    if setting.stage == 0 or (setting.stage == 1 and setting.width == 2):
        return states
    part = min(4 / setting.ranks, 4 * LIVE / count) if setting.stage == 3 else 4 / setting.ranks
    copied = 0.0 if setting.training.offload_optimizer else part
    return replace(states, exchange=(copied + _around_layers(setting)) * count)


def _gathered(setting: TrainerSetting) -> float:
    """Bytes of whole weights in stage 3, for each parameter; between processes without a GPU they are copied."""
    copies = 1.5 if setting.ranks > 1 and not setting.on_gpu else 1.0
    return copies * setting.width * setting.live


def logit_bytes(setting: TrainerSetting) -> float:
    """Bytes of logits and what is computed of them."""
    shape, at_once = setting.shape, LOGITS_AT_ONCE
    if setting.training.projection == "chunked":
        return CHUNKED_LOGIT * min(setting.tokens * shape.vocabulary, at_once)
    logits = min(setting.tokens, max(1, at_once // shape.vocabulary)) * shape.vocabulary
    return FUSED_LOGIT * logits + 4 * shape.embedding


def kept_bytes(setting: TrainerSetting) -> float:
    """Bytes of the activations that the forward pass keeps: of every layer its input, or all; and both ends."""
    shape, stream = setting.shape, setting.width
    recomputed = setting.training.gradient_checkpointing
    layer = stream * shape.hidden if recomputed else layer_bytes(setting)
    return setting.tokens * (shape.layers * layer + 3 * stream * shape.hidden)


def activation_bytes(setting: TrainerSetting) -> float:
    """Bytes of activations while the backward pass goes through a layer: with those of this layer that are computed
    again, and their gradients.
    """
    layer = layer_bytes(setting) if setting.training.gradient_checkpointing else 0.0
    passing = 3 * _inner_width(setting) * setting.shape.intermediate
    return kept_bytes(setting) + setting.tokens * (layer + passing)


def layer_bytes(setting: TrainerSetting) -> float:
    """Bytes of one token that the backward pass of one layer needs.

    Each of two norms keeps its input in 32 bits, and its output before and after the scale; attention keeps queries,
    keys, values and its output; the feed-forward part keeps four arrays of its inner size.
    """
    shape, inner, stream = setting.shape, _inner_width(setting), setting.width
    norms = 2 * (4 + 2 * stream if stream == 2 else 8) * shape.hidden
    casts = 2 * 2 * shape.hidden if setting.training.precision is Precision.BF16_AUTOCAST else 0
    attention = inner * (2 * shape.queries + 2 * shape.keys) + 4 * shape.heads + _exchanged_bytes(setting)
    return norms + casts + stream * shape.hidden + attention + 4 * inner * shape.intermediate


def _exchanged_bytes(setting: TrainerSetting) -> int:
    """Bytes of one token that attention takes besides where ranks share rows: its output after the exchange; queries,
    keys and values as they are sent; and copies of keys and values where there are fewer heads of these than ranks.
    """
    shape, parts = setting.shape, setting.training.sequence_parallel
    if parts == 1:
        return 0
    sent_keys = lcm(shape.kv_heads, parts) * shape.head_size
    return _inner_width(setting) * (2 * shape.queries + 2 * sent_keys + 2 * (sent_keys - shape.keys))


def _inner_width(setting: TrainerSetting) -> int:
    """Bytes of the result of a matrix product."""
    return 4 if setting.training.precision is Precision.FP32 else 2
