"""Tensors of a GPU in the memory of the host: copies, and the whole state of an idle trainer, so that a vLLM server can
use the GPU.

Copies go through two pinned pieces: with an H100 and 16 cores 13 times as fast as into unpinned memory, and 4 times on
the way back (``benchmarks/results/README.md``). torch rounds pinned memory up to a power of two and keeps it: pinning
all could take twice the trainer's state.
"""

import gc
from dataclasses import dataclass

import torch

from mrt_hpc.training.accelerator import synchronize

PIECE = 64 * 2**20


def copy_to_host(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy in the memory of the host, in the tensor's dtype by default."""
    tensor = tensor.detach()
    if not tensor.is_cuda or tensor.numel() < 2:  # one number may keep strides with which it has no view of bytes
        return tensor.to("cpu", dtype or tensor.dtype, copy=True)
    source = tensor.to(dtype or tensor.dtype).contiguous()
    copy = torch.empty(source.shape, dtype=source.dtype)
    _copy_out(source.view(-1).view(torch.uint8), copy.view(-1).view(torch.uint8))
    return copy


# What moves is the memory below the tensors of an idle trainer, so views of one buffer stay views of it: this
# works in the same way for every stage of ZeRO and every optimiser. DeepSpeed's own ``offload_states`` accepts, at
# stage 3, only its own fused Adam, which has to be compiled on the node.


@dataclass(frozen=True)
class Parked:
    storage: torch.UntypedStorage
    """The device's memory, now of no bytes."""
    content: torch.Tensor
    """Its copy in the memory of the host, uint8 [bytes]."""


def park(device_type: str) -> list[Parked]:
    """Move the memory of all this process's tensors on a device to the host. No such tensor may be used until
    :func:`unpark`; values do not change.
    """
    synchronize()  # work of other streams may still write
    parked = []
    for storage in _storages(device_type):
        parked.append(Parked(storage, copy_to_host(_bytes_of(storage))))
        storage.resize_(0)
    if device_type == "cuda":
        # cuBLAS works in 64 MiB of torch's memory that Python does not see. They lie among what is freed here, and
        # kept some 4 GiB of it on the GPU.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    return parked


def unpark(parked: list[Parked]) -> None:
    """Afterwards the list is empty."""
    while parked:
        moved = parked.pop()
        moved.storage.resize_(moved.content.nbytes)
        _copy_in(moved.content, _bytes_of(moved.storage))
    synchronize()  # streams of ZeRO 3 read without waiting for the one that copies


def _storages(device_type: str) -> list[torch.UntypedStorage]:
    """The memory of all tensors on a device that Python can see, each once."""
    tensors = [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor)]
    here = [t for t in tensors if t.device.type == device_type and t.layout is torch.strided]
    storages = {storage._cdata: storage for storage in (t.untyped_storage() for t in here)}
    return [storage for storage in storages.values() if storage.resizable() and storage.nbytes()]


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _copy_out(source: torch.Tensor, target: torch.Tensor) -> None:
    pieces, events = _pinned_pieces(source.nbytes), (torch.cuda.Event(), torch.cuda.Event())
    parts = list(zip(source.split(PIECE), target.split(PIECE), strict=True))
    for number in range(len(parts) + 1):
        if number < len(parts):
            part = parts[number][0]
            pieces[number % 2][: len(part)].copy_(part, non_blocking=True)
            events[number % 2].record()
        if number:  # the part before this one leaves its piece while the GPU fills the other one
            part = parts[number - 1][1]
            events[(number - 1) % 2].synchronize()
            part.copy_(pieces[(number - 1) % 2][: len(part)])


def _copy_in(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy from the host to any device."""
    if not target.is_cuda:
        target.copy_(source)
        return
    pieces, events = _pinned_pieces(source.nbytes), (torch.cuda.Event(), torch.cuda.Event())
    for number, (part, place) in enumerate(zip(source.split(PIECE), target.split(PIECE), strict=True)):
        piece, event = pieces[number % 2][: len(part)], events[number % 2]
        event.synchronize()  # the GPU has read what lay in this piece
        piece.copy_(part)
        place.copy_(piece, non_blocking=True)
        event.record()


def _pinned_pieces(size: int) -> list[torch.Tensor]:
    """Two pieces, of which small copies need only a part; torch keeps their memory for the next copies."""
    return [torch.empty(min(PIECE, size), dtype=torch.uint8, pin_memory=True) for _ in range(2)]
