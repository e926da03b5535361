"""Attention as the trainer computes it: the functions that transformers calls by the names registered here.

In a packed row every sequence attends to its own positions alone. Where sequences share prefixes, each has a part of
the row, and attends to its path: the positions of the prefix, wherever they are in the row, and then its own. Two ways
compute it:

- On a GPU in 16 bits, torch's flash attention for sequences of different lengths (torch 2.11 or newer). The keys of all
  paths are gathered end to end; a part has fewer queries than keys, and its last query is at its last key.
- Elsewhere, blocks: sequences of similar length are gathered into rows that are padded for the attention alone, and the
  padding is left out of the result. A part that is at least half of its path is computed with the queries of its whole
  path, of which the others are left out too: causal attention takes half the time of attention with a mask.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import lcm
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mrt_hpc.errors import UserError
from mrt_hpc.training.packing import blocks_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from mrt_hpc.training.rendezvous import Ranks

Places = NDArray[np.int64]
Paths = Sequence[Places]


CPU_ATTENTION = "sdpa_in_32_bits"
"""The name under which attention of padded rows on a CPU is registered in transformers."""

PACKED_ATTENTION = "packed_row"
"""The name under which attention of packed rows is registered in transformers."""

BLOCK_FULLNESS = 0.75
"""The shortest sequence of a block is at least this share of its longest: few blocks, and little padding in each."""

FLASH_CAPABILITY = (8, 0)
"""The oldest GPUs for which torch has flash attention."""

CAUSAL = (-1, 0)
"""The window of a position: all that is before it, and nothing behind it."""


def _variable_length_attention() -> Callable[..., Any] | None:
    """Return torch's flash attention for sequences of different lengths; None where this version of torch has none that
    takes a window.
    """
    with suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        known = inspect.signature(varlen_attn).parameters
        # torch 2.11 shares key heads among query heads by itself, later versions when they are asked to
        options: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}
        return partial(varlen_attn, **options) if "window_size" in known else None
    return None


VARIABLE_LENGTH_ATTENTION = _variable_length_attention()
"""Torch's flash attention for sequences of different lengths, or None."""


class Segments(Protocol):
    """Which positions of a packed row attend to which, in the form that one way of attention takes."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Return the [N, H, D] attention of [N, H, D] queries to [N, K, D] keys and values."""


@dataclass(frozen=True)
class VariableLengths:
    """What flash attention is given: where each part ends, and where its keys are."""

    ends: torch.Tensor
    """[S + 1] int32, from 0 to N."""
    longest: int
    path_ends: torch.Tensor
    """[S + 1] int32, from 0 to the number of positions of all paths."""
    longest_path: int
    paths: torch.Tensor | None
    """The positions of all paths, end to end; None where every part attends to itself alone."""

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device, paths: Paths | None = None) -> "VariableLengths":
        """Return the form of parts that lie end to end."""
        ends, longest = _ends(lengths, device), max(lengths)
        if paths is None:
            return VariableLengths(ends, longest, ends, longest, None)
        widths = [len(path) for path in paths]
        places = torch.from_numpy(np.concatenate(paths)).to(device)
        return VariableLengths(ends, longest, _ends(widths, device), max(widths), places)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Return the [N, H, D] attention."""
        assert VARIABLE_LENGTH_ATTENTION is not None  # see has_flash_attention
        if self.paths is not None:
            key, value = (take_rows(t, self.paths, repeated=True) for t in (key, value))
        output = VARIABLE_LENGTH_ATTENTION(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            self.ends,
            self.path_ends,
            self.longest,
            self.longest_path,
            scale=scale,
            window_size=CAUSAL,
        )
        assert isinstance(output, torch.Tensor)  # it is a pair only where the sum of the weights is asked for
        return output


@dataclass(frozen=True)
class Block:
    """Some parts of similar length, filled up on the right with place 0: B parts, Q queries, K keys."""

    queries: torch.Tensor
    """[B, Q] the places in the row of the queries."""
    keys: torch.Tensor
    """[B, K] those of the keys; the queries' where ``seen`` is None."""
    seen: torch.Tensor | None
    """[B, 1, Q, K] which keys a query attends to; None for causal attention."""


@dataclass(frozen=True)
class Blocks:
    """What attention of padded rows is given: blocks of parts of similar length."""

    blocks: tuple[Block, ...]
    found: torch.Tensor
    """[N] where in the queries of all blocks, laid end to end, each position of the row is."""

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device, paths: Paths | None = None) -> "Blocks":
        """Return the form of parts that lie end to end."""
        paths = paths or np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
        blocks = [
            *(_causal_block(*parts) for parts in _alike(lengths, paths, mostly_own=True)),
            *(_late_block(*parts) for parts in _alike(lengths, paths, mostly_own=False)),
        ]
        block_of = np.zeros(sum(lengths), np.int64)
        before = 0
        for block, rows in blocks:
            for number, (places, skipped) in enumerate(rows):
                block_of[places] = before + number * block.queries.shape[1] + skipped + np.arange(len(places))
            before += block.queries.numel()
        moved = tuple(Block(b.queries.to(device), b.keys.to(device), _moved(b.seen, device)) for b, _ in blocks)
        return Blocks(moved, torch.from_numpy(block_of).to(device))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Return the [N, H, D] attention."""
        shared = query.shape[1] != key.shape[1]
        flat = [t.flatten(1) for t in (query, key, value)]  # selecting rows of a matrix is the fastest
        outputs = []
        for block in self.blocks:
            q, k, v = (
                t.index_select(0, places.flatten()).view(*places.shape, -1, query.shape[-1]).transpose(1, 2)
                for t, places in zip(flat, (block.queries, block.keys, block.keys), strict=True)
            )
            output = F.scaled_dot_product_attention(
                q, k, v, block.seen, is_causal=block.seen is None, scale=scale, enable_gqa=shared
            )
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).flatten(1).index_select(0, self.found).view_as(query)


def _ends(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)


def _moved(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


def _alike(lengths: Sequence[int], paths: Paths, mostly_own: bool) -> Iterator[tuple[list[int], list[Places]]]:
    """Yield blocks of parts, with the length and the path of each: of those that are at least half of their path, or of
    the others.
    """
    chosen = [i for i, own in enumerate(lengths) if (2 * own >= len(paths[i])) == mostly_own]
    for members in blocks_of([len(paths[i]) for i in chosen], BLOCK_FULLNESS):
        block = [chosen[m] for m in members]
        own = [lengths[i] for i in block]
        for part in [range(len(block))] if mostly_own else blocks_of(own, BLOCK_FULLNESS):
            yield [own[p] for p in part], [paths[block[p]] for p in part]


def _causal_block(lengths: list[int], paths: list[Places]) -> tuple[Block, list[tuple[Places, int]]]:
    """Return a block whose queries are those of whole paths, and the places of each part with the number of queries
    before them.
    """
    places = _filled(paths)
    own = [(path[len(path) - n :], len(path) - n) for n, path in zip(lengths, paths, strict=True)]
    return Block(places, places, None), own


def _late_block(lengths: list[int], paths: list[Places]) -> tuple[Block, list[tuple[Places, int]]]:
    """Return a block whose queries are those of the parts alone, and the places of each part."""
    own = [path[len(path) - n :] for n, path in zip(lengths, paths, strict=True)]
    queries, keys = _filled(own), _filled(paths)
    starts = torch.tensor([len(path) - n for n, path in zip(lengths, paths, strict=True)])
    last_seen = starts[:, None] + torch.arange(queries.shape[1])
    seen = torch.arange(keys.shape[1]) <= last_seen[:, None, :, None]
    return Block(queries, keys, seen), [(places, 0) for places in own]


def _filled(rows: list[Places]) -> torch.Tensor:
    """Return [B, longest] rows that are filled up on the right with 0."""
    filled = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return torch.from_numpy(filled)


def take_rows(tensor: torch.Tensor, places: torch.Tensor, repeated: bool) -> torch.Tensor:
    """Return some rows of a tensor. Where rows are taken repeatedly, the gradients of one are summed in 32 bits."""
    if repeated and tensor.dtype.itemsize == 2:
        return cast("torch.Tensor", _RepeatedRows.apply(tensor, places))  # type: ignore[no-untyped-call]
    return tensor.index_select(0, places)


class _RepeatedRows(torch.autograd.Function):
    """Rows of a tensor of 16 bits: a sum of many gradients in 16 bits would lose most of the small ones."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.shape = tensor.shape
        return tensor.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (places,) = ctx.saved_tensors
        total = torch.zeros(ctx.shape, dtype=torch.float32, device=gradient.device)
        return total.index_add_(0, places, gradient.float()).to(gradient.dtype), None


def segments_of(
    lengths: Sequence[int], device: torch.device, dtype: torch.dtype, head_size: int, paths: Paths | None = None
) -> Segments:
    """Return parts that lie end to end, in the form of the fastest attention for this device, number format and size of
    heads.

    Args:
        lengths: of the parts.
        device: where attention is computed.
        dtype: its number format.
        head_size: the size of a head.
        paths: for each part the positions that it attends to, its own last; None where these are all.
    """
    if has_flash_attention(device, dtype, head_size):
        return VariableLengths.of(lengths, device, paths)
    return Blocks.of(lengths, device, paths)


def has_flash_attention(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Return whether torch's flash attention computes heads of this size, in this number format, on this device."""
    return (
        VARIABLE_LENGTH_ATTENTION is not None
        and device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(device) >= FLASH_CAPABILITY
        and head_size % 8 == 0
        and head_size <= 256
    )


def _attention_in_32_bits(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Compute attention in 32 bits on a CPU: the backward pass of its bfloat16 kernel takes 3.5 times as long."""
    with torch.autocast("cpu", enabled=False):
        wide = [t.float() for t in (query, key, value)]
        output, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, *wide, *rest, **options)
    return output.to(torch.bfloat16), None


def _attention_of_a_packed_row(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    segments: Segments | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of one row: [1, H, N, D] queries, [1, K, N, D] keys and values.

    Raises:
        UserError: the model asks for a window, or does not hand on what it is given. Whatever else it asks for changes
            log-probabilities of short sequences too, and is found there (see ``agreement``).
    """
    if segments is None or attention_mask is not None or sliding_window is not None:
        raise UserError(
            "the attention of this model does not work on packed rows",
            value=type(module).__name__ if sliding_window is None else f"sliding_window={sliding_window}",
            where="training.batching",
            advice="--set training.batching=padded",
        )
    device, dtype = query.device.type, value.dtype
    inner = torch.float32 if device == "cpu" and dtype == torch.bfloat16 else dtype  # see _attention_in_32_bits
    with torch.autocast(device, enabled=False):
        rows = [t[0].transpose(0, 1).to(inner) for t in (query, key, value)]
        output = segments.attend(rows[0], rows[1], rows[2], scaling)
    return output[None].to(dtype), None


def _mask_of_a_packed_row(*_: Any, local_size: int | None = None, **__: Any) -> torch.Tensor | None:
    """Return no mask, as ``segments`` say which positions attend to which; for attention in windows or chunks, which no
    short sequence would show, a mask without data, so that a layer that uses it is refused.
    """
    return None if local_size is None else torch.empty(0, 0, 0, 0)


AttentionInterface.register(CPU_ATTENTION, _attention_in_32_bits)
AttentionMaskInterface.register(CPU_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
AttentionInterface.register(PACKED_ATTENTION, _attention_of_a_packed_row)
AttentionMaskInterface.register(PACKED_ATTENTION, _mask_of_a_packed_row)


# Rows that several ranks share (sequence parallelism after DeepSpeed-Ulysses, Jacobs et al. 2023).
#
# Each of n ranks holds W / n consecutive positions of a row of W. Every layer but attention works on each position
# alone. Before attention each rank sends every other rank its share of the heads: a rank then has all positions of H /
# n heads, attends as if the row were its own, and the result goes the same way back. A parameter's gradient is the sum
# over ranks of what each has computed, as it is without shared rows.
#
# DeepSpeed's own wrapper of attention is not used: it knows where sequences begin by their positions alone, so it has
# no shared prefixes, and it takes four exchanges where one carries queries, keys and values.


@dataclass(frozen=True)
class RowRanks:
    """The ranks that share each row with this one."""

    parts: int = 1
    """The number of ranks that share a row, n; 1 where each rank has rows of its own."""
    row: int = 0
    """Which of a micro-step's rows this rank works on."""
    part: int = 0
    """Which of its n parts this rank holds."""
    group: "ProcessGroup | None" = None
    """These ranks as a group of their own; None where n is 1."""

    @staticmethod
    def of(ranks: "Ranks", parts: int) -> "RowRanks":
        """Let each ``parts`` consecutive ranks share rows; their number must divide that of all ranks. Collective."""
        group = distributed.new_subgroups(parts)[0] if parts > 1 else None
        return RowRanks(parts, ranks.rank // parts, ranks.rank % parts, group)


OWN_ROWS = RowRanks()
"""Each rank has rows of its own."""


@dataclass(frozen=True)
class SharedRowSegments:
    """Attention of a row of which this rank holds L = W / n positions."""

    whole: Segments
    """Which of the row's W positions attend to which."""
    ranks: RowRanks

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Return the [L, H, D] attention of this rank's [L, H, D] queries to the whole row; [L, K, D] keys and values
        are this rank's.
        """
        parts = self.ranks.parts
        split = [t.unflatten(1, (parts, -1)) for t in (query, repeated(key, parts), repeated(value, parts))]
        sent = torch.cat(split, 2).transpose(0, 1)
        received = self._exchanged(sent).flatten(0, 1)
        own_query, own_key, own_value = received.split([t.shape[2] for t in split], 1)
        output = self.whole.attend(own_query, own_key, own_value, scale)
        return self._exchanged(output.unflatten(0, (parts, -1))).transpose(0, 1).flatten(1, 2)

    def _exchanged(self, tensor: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", _Exchange.apply(tensor, self.ranks.group))  # type: ignore[no-untyped-call]


def repeated(heads: torch.Tensor, parts: int) -> torch.Tensor:
    """Repeat each of the K heads of a [L, K, D] tensor as often as is needed to give ``parts`` ranks equally many.

    A query head keeps its head of keys: its rank has a copy of it, at the place where grouped attention looks for it.
    """
    times = lcm(heads.shape[1], parts) // heads.shape[1]
    return heads.unsqueeze(2).expand(-1, -1, times, -1).flatten(1, 2)


class _Exchange(torch.autograd.Function):
    """Send slice i of an [n, ...] tensor to rank i of a group, and receive its slice for this rank as slice i."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: "ProcessGroup") -> torch.Tensor:
        ctx.group = group
        return _exchange(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _exchange(gradient, ctx.group), None


def _exchange(tensor: torch.Tensor, group: "ProcessGroup") -> torch.Tensor:
    sent = tensor.contiguous()
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=group)
    return received
