"""The memory of a vLLM server: its weights, and what is left for the keys and values of sequences.

On a GPU vLLM takes a share of the memory, measures what the weights and a forward pass of its largest batch take, and
gives the rest to the KV cache. Without a GPU the recipe states the size of the cache. What is told of the forward pass
is derived from vLLM 0.32, and was not measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.plan.model_shape import ModelShape

GIB = 2**30
BATCH_TOKENS = 8192
"""The tokens of vLLM's largest forward pass on a GPU with much memory."""
SAMPLER_BYTES = 12
"""Bytes for each logit of a batch: three arrays in 32 bits."""
GPU_OVERHEAD_GIB = 1.5
"""CUDA, NCCL and the graphs that are recorded for batches of different sizes."""
CPU_OVERHEAD_GIB = 3.0
"""What the processes of a server without a GPU take beside weights and cache."""


@dataclass(frozen=True)
class ServerSetting:
    """What the memory of one server depends on."""

    shape: ModelShape
    width: int
    """Bytes of a weight, and of a number in the cache."""
    longest: int
    """Tokens of the longest sequence, prompt included."""
    mean: float
    """Tokens of a sequence of mean length."""
    batch: int
    """The largest number of sequences in one batch."""
    gpus: int
    """The GPUs that one server divides each layer over; 0 without a GPU."""
    memory: float
    """Bytes that the server may take on each GPU; without a GPU those of its KV cache."""
    stages: int = 1
    """The number of parts that the layers are divided into."""


@dataclass(frozen=True)
class ServerMemory:
    """Bytes of a server, on each of its GPUs."""

    weights: float
    activations: float
    overhead: float
    cache: float
    """What is left for the KV cache; negative where not even the weights fit."""
    longest: float
    """What one sequence of the longest length takes of the cache."""
    mean: float
    """What one sequence of mean length takes."""

    @property
    def least(self) -> float:
        """The bytes with which the server can hold one longest sequence, below which vLLM does not start."""
        return self.weights + self.activations + self.overhead + self.longest

    def at_once(self, sequence: float) -> int:
        """How many sequences of so many bytes the cache holds at once."""
        return max(0, int(self.cache // sequence))


def server_memory(setting: ServerSetting) -> ServerMemory:
    """The bytes of a server."""
    shape, width = setting.shape, max(1, setting.gpus)
    weights = setting.width * shape.parameters / (width * setting.stages)
    parts = min(width, shape.kv_heads) * setting.stages  # a head is copied where there are fewer of them than GPUs
    longest, mean = (setting.width * shape.cache_numbers(tokens) / parts for tokens in (setting.longest, setting.mean))
    if not setting.gpus:
        return ServerMemory(weights, 0.0, CPU_OVERHEAD_GIB * GIB, setting.memory, longest, mean)
    activations, overhead = _activations(setting), GPU_OVERHEAD_GIB * GIB
    return ServerMemory(
        weights, activations, overhead, setting.memory - weights - activations - overhead, longest, mean
    )


def _activations(setting: ServerSetting) -> float:
    """The peak of a forward pass of the largest batch, with the logits that are sampled from."""
    shape = setting.shape
    inner = (2 * shape.intermediate + shape.queries + 2 * shape.keys) / setting.gpus
    tokens = max(BATCH_TOKENS, setting.batch)
    return setting.width * tokens * (4 * shape.hidden + inner) + SAMPLER_BYTES * setting.batch * shape.vocabulary
