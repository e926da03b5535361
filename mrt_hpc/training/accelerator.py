"""DeepSpeed, imported for the hardware of this machine; all modules import it from here.

Joining a process group on CPU, DeepSpeed builds a shared-memory operation with a C++ compiler (half a minute). That
serves inference only: it is declared unavailable, so no compiler is needed.
"""

import logging
import os
import random

import deepspeed
import deepspeed.ops
import numpy as np
import torch
from torch.utils import deterministic as torch_deterministic

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


ALLOCATOR, ALLOCATOR_BEFORE = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""Settings of torch's memory on a device, and their name in earlier versions."""
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Two values make cuBLAS deterministic: :4096:8 (24 MiB a stream and faster) and :16:8."""

deepspeed.ops.__compatible_ops__ = {}  # DeepSpeed reads it at one place only, before it builds that operation
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def backend() -> str:
    """gloo for tensors of the CPU, and NCCL for those of GPUs. Messages between ranks are in the memory of the CPU: a
    waiting NCCL kernel would occupy a GPU on which a server may be sampling.
    """
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def choose_kernels(deterministic: bool | None) -> None:
    """Select only deterministic kernels, or the fastest, before this process first uses its device. None is
    deterministic on CPU only; an operation without such a kernel is then an error.

    The device's memory grows in place, as each micro-batch has another length and would leave gaps. Values of the
    environment stay.
    """
    if ALLOCATOR_BEFORE not in os.environ:
        os.environ.setdefault(ALLOCATOR, "expandable_segments:True")
    wanted = device().type == "cpu" if deterministic is None else deterministic
    if wanted:
        os.environ.setdefault(CUBLAS_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.deterministic = wanted
    torch.backends.cudnn.benchmark = False  # lengths change constantly: a search for each would never pay off
    torch_deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing here reads such memory


def seed_generators(value: int) -> None:
    """All of this process, the device's included."""
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


def synchronize() -> None:
    """Wait for the device, so that a time measured next includes its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


__all__ = ["backend", "choose_kernels", "deepspeed", "device", "seed_generators", "synchronize"]
