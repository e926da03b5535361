"""The vLLM servers of inference and evaluation tasks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mrt_hpc.recipe.base import Cores, Count, Gib, Line, NumberFormat, PathText, Seconds, Section


class ServerAttachment(Section):
    """A vLLM server that `mrt-hpc serve` has started, for one inference task at a time."""

    address: Line
    """The address where the server listens: ``http://HOST:PORT``, or ``unix:PATH`` of a socket on the node of the task.
    """
    key_file: PathText
    """The file that holds the server's key; `mrt-hpc serve` writes it. A relative path starts at the recipe's folder.
    """


class Serving(Section):
    """The vLLM servers of inference and evaluation tasks."""

    dtype: NumberFormat = "bfloat16"
    """The number format of weights and activations."""
    kv_cache_gib: Gib = 1.0
    """The size of the key-value cache of a server on CPU, GiB."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The share of the GPU's memory that vLLM takes."""
    tensor_parallel: Cores | None = None
    """The number of GPUs that one server divides each layer of the model over, for a model that does not fit one GPU.
    It must divide the model's attention heads. null is 1, or, where servers is stated, divides the task's GPUs evenly
    among them. Without GPUs, null is 1, and a server of more computes in as many processes. In a task of several nodes,
    null takes the GPUs of one node, and the layers are divided into as many stages as there are GPUs for.
    """
    servers: Cores | None = None
    """The number of servers side by side in one task; each has tensor_parallel GPUs of its own, and a group of rollouts
    stays on one of them. null takes as many as the task has GPUs for: with tensor_parallel null too, one on each GPU.
    Without GPUs, null is 1, and the servers share the task's cores.
    """
    max_concurrent_sequences: Count = 256
    """The maximum number of sequences in one batch of a server."""
    enforce_eager: bool = False
    """Whether to skip compilation and CUDA graphs. The server is then slower on a GPU, and starts faster."""
    attach: ServerAttachment | None = None
    """A vLLM server that runs already and that the inference task uses in place of one of its own; null starts one.
    Servers of evaluations, and of a prover with a model of its own, are started in any case.
    """
    start_limit_s: Seconds = 900.0
    """The maximum number of seconds until a server must answer after its start."""
    stall_limit_s: Seconds = 300.0
    """The number of seconds without a token, while there are requests, after which a server counts as hung and is
    started again.
    """
