"""The settings with which a vLLM server is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.inference.server_control import Address


@dataclass(frozen=True)
class ServerSettings:
    """The settings with which a server is started."""

    model_dir: Path
    """The Hugging Face directory with configuration, tokenizer and weights."""
    max_model_len: int
    dtype: str = "auto"
    """``auto`` follows the configuration, but fp32 becomes bf16."""
    max_num_seqs: int = 256
    """The maximum number of samples generated at once."""
    tensor_parallel: int = 1
    """The number of GPUs, or on CPU of processes, that each layer of the model is divided over."""
    stages: int = 1
    """The number of parts into which the layers are divided, one after the other, each on ``tensor_parallel`` GPUs."""
    over_ray: bool = False
    """Whether its GPUs are those of the Ray cluster that this process has joined, on several nodes."""
    gpus: tuple[str, ...] = ()
    """The GPUs that it may see, as CUDA names them; empty for those that this process may see."""
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: float | None = None
    """Memory of the key-value cache on CPU; on GPU it follows from ``gpu_memory_utilization``."""
    block_size: int | None = None
    """The tokens per block of the prefix cache; None for vLLM's default, or for 32 on CPU, where the default of 128
    misses most prefixes.
    """
    cpu_threads: int | None = None
    """The number of cores that each of its processes computes on, on CPU; None for all that this process may use."""
    seed: int = 0
    start_deadline_s: float = 900.0
    """The seconds until it must answer: a large model may be read from a busy shared filesystem."""
    pause_deadline_s: float = 300.0
    """The seconds in which it must finish running samples when new weights are to be loaded."""
    sleeps: bool = False
    """Whether it can free the memory of its GPUs for a while. vLLM then allocates that memory in another way."""
    noise_by_request: bool = False
    """Whether the random numbers of a sample are those of its seed from its first token on, whatever the position
    of that token. The newer of vLLM's GPU runners draws them by absolute position.
    """
    listen: Address | None = None
    """The address to listen at; None for a Unix socket of its own that only this user may open."""
    compiled_code: Path | None = None
    """The folder on the shared filesystem that keeps what it compiles; None to keep it on the node alone."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of vLLM's API server."""
