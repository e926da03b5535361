"""Tensors of a GPU in the memory of the host: copies of them, and all those of an idle trainer, which leave the GPU
between two updates, so that a vLLM server can use that memory.

Copies go through two pinned pieces, one of which the GPU fills while the cores empty the other. With an H100 and 16
cores that was 13 times as fast as a copy into memory that is not pinned, and 4 times as fast on the way back
(``tests/benchmarks/results/README.md``). Pinned memory for all of it would be no help: torch rounds it up to a power
of two and keeps it, which could be twice the trainer's state.
"""

import gc
from dataclasses import dataclass

import torch

from mrt_hpc.training.accelerator import synchronize

PIECE = 64 * 2**20
"""Bytes of a pinned piece."""


def to_host(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a copy of a tensor in the memory of the host.

    Args:
        tensor: on any device.
        dtype: of the copy; that of the tensor where it is None.
    """
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
    """The content of some memory that was on a device."""

    storage: torch.UntypedStorage
    """The memory, now of no bytes."""
    content: torch.Tensor
    """A copy in the memory of the host, uint8 [bytes]."""


def park(device_type: str) -> list[Parked]:
    """Copy the memory of all tensors of this process that lie on a device to the host, and free it there. No tensor
    on the device may be used until :func:`unpark`; values do not change.

    Args:
        device_type: as in ``cuda``.
    """
    synchronize()  # work of other streams may still write
    parked = [_parked(storage) for storage in _storages(device_type)]
    if device_type == "cuda":
        # cuBLAS works in 64 MiB of torch's memory that Python does not see. They lie among what is freed here, and
        # kept some 4 GiB of it on the GPU.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    return parked


def unpark(parked: list[Parked]) -> None:
    """Bring everything back to its device, bit by bit as it was; afterwards the list is empty."""
    while parked:
        moved = parked.pop()
        moved.storage.resize_(moved.content.nbytes)
        _copy_in(moved.content, _bytes_of(moved.storage))
    synchronize()  # streams of ZeRO 3 read without waiting for the one that copies


def _parked(storage: torch.UntypedStorage) -> Parked:
    content = to_host(_bytes_of(storage))
    storage.resize_(0)
    return Parked(storage, content)


def _storages(device_type: str) -> list[torch.UntypedStorage]:
    """The memory of all tensors on a device that Python can see, each once."""
    tensors = [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor)]
    here = [t for t in tensors if t.device.type == device_type and t.layout is torch.strided]
    storages = {storage._cdata: storage for storage in (t.untyped_storage() for t in here)}
    return [storage for storage in storages.values() if storage.resizable() and storage.nbytes()]


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _copy_out(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy bytes from a GPU to the host."""
    pieces, events = _pinned(source.nbytes), (torch.cuda.Event(), torch.cuda.Event())
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
    """Copy bytes from the host to any device."""
    if not target.is_cuda:
        target.copy_(source)
        return
    pieces, events = _pinned(source.nbytes), (torch.cuda.Event(), torch.cuda.Event())
    for number, (part, place) in enumerate(zip(source.split(PIECE), target.split(PIECE), strict=True)):
        piece, event = pieces[number % 2][: len(part)], events[number % 2]
        event.synchronize()  # the GPU has read what lay in this piece
        piece.copy_(part)
        place.copy_(piece, non_blocking=True)
        event.record()


def _pinned(size: int) -> list[torch.Tensor]:
    """Return two pieces, of which small copies need only a part; torch keeps their memory for the next copies."""
    return [torch.empty(min(PIECE, size), dtype=torch.uint8, pin_memory=True) for _ in range(2)]
