"""DeepSpeed, imported for the hardware of this machine. Every other module imports it from here.

DeepSpeed looks for its accelerator when it is imported, and builds a shared-memory operation with a C++ compiler
(half a minute) when it joins a process group on CPU. That operation serves inference only: it is declared
unavailable, so no compiler is needed.
"""

from __future__ import annotations

import gc
import logging
import os
from dataclasses import dataclass

import deepspeed
import deepspeed.ops
import torch
from torch.utils import deterministic as torch_deterministic

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


ALLOCATOR, ALLOCATOR_BEFORE = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""The variable with the settings of torch's memory on a device, and its name in earlier versions of torch."""
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Two values of it make cuBLAS deterministic: :4096:8 (24 MiB a stream and faster) and :16:8."""

deepspeed.ops.__compatible_ops__ = {}  # DeepSpeed reads it at one place only, before it builds that operation
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)


def device() -> torch.device:
    """Return this process's device."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def backend() -> str:
    """Return the communication libraries of a process group: gloo for tensors of the CPU, and NCCL for those of GPUs.

    What ranks send each other is in the memory of the CPU, so a rank that waits for a message leaves its GPU idle:
    a kernel of NCCL that waits occupies the GPU, on which a server may be sampling.
    """
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def choose_kernels(deterministic: bool | None) -> None:
    """Select only deterministic kernels, or the fastest; call it before this process first uses its device.

    The memory of the device grows in place, as each micro-batch has another length and would leave gaps. cuBLAS reads
    its variable when it starts on a device. Values that the environment has set stay. If that of cuBLAS does not work,
    torch names it in the error of the first matrix product.

    Args:
        deterministic: an operation without a deterministic kernel is then an error; None: on CPU only.
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


def synchronize() -> None:
    """Wait for the device, so that a time measured next includes its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


__all__ = ["backend", "choose_kernels", "deepspeed", "device", "synchronize"]


# Memory of an idle trainer: its tensors leave the GPU between two updates, so that a vLLM server can use that memory.
#
# Not the tensors are moved but the memory below them, so views of one buffer stay views of it: this works in the same
# way for every stage of ZeRO and every optimiser. DeepSpeed's own ``offload_states`` accepts, at stage 3, only its own
# fused Adam, which has to be compiled on the node.


@dataclass(frozen=True)
class Parked:
    """The content of some memory that was on a device."""

    storage: torch.UntypedStorage
    """The memory, now of no bytes."""
    content: torch.UntypedStorage
    """A copy in the memory of the host."""


def park(device_type: str) -> list[Parked]:
    """Copy the memory of all tensors of this process that lie on a device to the host, and free it there. No tensor
    on the device may be used until :func:`unpark`; values do not change.

    Args:
        device_type: as in ``cuda``.
    """
    parked = [_parked(storage) for storage in _storages(device_type)]
    if device_type == "cuda":
        torch.cuda.empty_cache()
    return parked


def unpark(parked: list[Parked]) -> None:
    """Bring everything back to its device, bit by bit as it was; afterwards the list is empty."""
    while parked:
        moved = parked.pop()
        moved.storage.resize_(moved.content.nbytes())
        moved.storage.copy_(moved.content)


def _parked(storage: torch.UntypedStorage) -> Parked:
    # not pinned: torch rounds pinned memory up to a power of two and keeps it, which could be twice the trainer's state
    content = torch.UntypedStorage(storage.nbytes())
    content.copy_(storage)
    storage.resize_(0)
    return Parked(storage, content)


def _storages(device_type: str) -> list[torch.UntypedStorage]:
    """The memory of all tensors on a device that Python can see, each once."""
    tensors = [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor)]
    here = [t for t in tensors if t.device.type == device_type and t.layout is torch.strided]
    storages = {storage._cdata: storage for storage in (t.untyped_storage() for t in here)}
    return [storage for storage in storages.values() if storage.resizable() and storage.nbytes()]
