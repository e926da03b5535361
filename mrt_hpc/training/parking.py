"""Memory of an idle trainer: its tensors leave the GPU between two updates, so that a vLLM server can use that memory.

Not the tensors are moved but the memory below them, so views of one buffer stay views of it: this works in the same
way for every stage of ZeRO and every optimiser. DeepSpeed's own ``offload_states`` accepts, at stage 3, only its own
fused Adam, which has to be compiled on the node.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch


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
        one = parked.pop()
        one.storage.resize_(one.content.nbytes())
        one.storage.copy_(one.content)


def _parked(storage: torch.UntypedStorage) -> Parked:
    # not pinned: torch rounds pinned memory up to a power of two and keeps it, which could be twice the trainer's state
    content = torch.UntypedStorage(storage.nbytes())
    content.copy_(storage)
    storage.resize_(0)
    return Parked(storage, content)


def _storages(device_type: str) -> list[torch.UntypedStorage]:
    """The memory of all tensors on a device that Python can see, each once."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    here = [t for t in tensors if t.device.type == device_type and t.layout is torch.strided]
    storages = {storage._cdata: storage for storage in (t.untyped_storage() for t in here)}
    return [storage for storage in storages.values() if storage.resizable() and storage.nbytes()]
