"""The trainer's attention: the functions that transformers calls by the names registered here.

In a packed row every sequence attends to its own positions. Where sequences share prefixes, each has a part of the row,
and attends to its path: the positions of the prefix, then its own. Two ways compute it:

- On a GPU in 16 bits, torch's flash attention for sequences of different lengths (torch 2.11 or newer). The keys of all
paths lie end to end; the last query of a part is at its last key.
- Elsewhere, blocks: sequences of similar length become padded rows.
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

PACKED_ATTENTION = "packed_row"

BLOCK_FULLNESS = 0.75
"""The least ratio of the shortest sequence of a block to its longest: few blocks, and little padding."""

FLASH_CAPABILITY = (8, 0)
"""The oldest GPUs with flash attention."""

CAUSAL = (-1, 0)
"""A position's window: all before it."""


def _variable_length_attention() -> Callable[..., Any] | None:
    """None where torch has none that takes a window."""
    with suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        known = inspect.signature(varlen_attn).parameters
        # torch 2.11 shares key heads among query heads by itself, later versions when they are asked to
        options: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in known else {}
        return partial(varlen_attn, **options) if "window_size" in known else None
    return None


VARIABLE_LENGTH_ATTENTION = _variable_length_attention()


class Segments(Protocol):
    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """[N, H, D] attention of [N, H, D] queries to [N, K, D] keys and values."""


@dataclass(frozen=True)
class VariableLengths:
    """Arguments of flash attention: where each part ends, and where its keys are."""

    ends: torch.Tensor
    """[S + 1] int32, from 0 to N."""
    longest: int
    path_ends: torch.Tensor
    """[S + 1] int32, from 0 to the number of positions of all paths."""
    longest_path: int
    paths: torch.Tensor | None
    """Positions of all paths, end to end; None where every part attends to itself alone."""

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device, paths: Paths | None = None) -> "VariableLengths":
        ends, longest = _ends(lengths, device), max(lengths)
        if paths is None:
            return VariableLengths(ends, longest, ends, longest, None)
        widths = [len(path) for path in paths]
        places = torch.from_numpy(np.concatenate(paths)).to(device)
        return VariableLengths(ends, longest, _ends(widths, device), max(widths), places)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        assert VARIABLE_LENGTH_ATTENTION is not None  # see has_flash_attention
        if self.paths is not None:
            key, value = (take_rows(t, self.paths, repeated=True) for t in (key, value))
        tensors = [t.contiguous() for t in (query, key, value)]
        lengths = self.ends, self.path_ends, self.longest, self.longest_path
        output = VARIABLE_LENGTH_ATTENTION(*tensors, *lengths, scale=scale, window_size=CAUSAL)
        assert isinstance(output, torch.Tensor)  # it is a pair only where the sum of the weights is asked for
        return output


@dataclass(frozen=True)
class Block:
    """Parts of similar length, filled up on the right with place 0: B parts, Q queries, K keys."""

    queries: torch.Tensor
    """[B, Q] places in the row."""
    keys: torch.Tensor
    """[B, K] places in the row; the queries' where ``seen`` is None."""
    seen: torch.Tensor | None
    """[B, 1, Q, K] which keys a query attends to; None for causal attention."""


@dataclass(frozen=True)
class Blocks:
    blocks: tuple[Block, ...]
    found: torch.Tensor
    """[N] where each position of the row is among the queries of all blocks, end to end."""

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device, paths: Paths | None = None) -> "Blocks":
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
        moved = tuple(Block(b.queries.to(device), b.keys.to(device), _move_to(b.seen, device)) for b, _ in blocks)
        return Blocks(moved, torch.from_numpy(block_of).to(device))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
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


def _move_to(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


def _alike(lengths: Sequence[int], paths: Paths, mostly_own: bool) -> Iterator[tuple[list[int], list[Places]]]:
    """Blocks of the parts that are at least half of their path, or of the others: lengths and paths."""
    chosen = [i for i, own in enumerate(lengths) if (2 * own >= len(paths[i])) == mostly_own]
    for members in blocks_of([len(paths[i]) for i in chosen], BLOCK_FULLNESS):
        block = [chosen[m] for m in members]
        own = [lengths[i] for i in block]
        for part in [range(len(block))] if mostly_own else blocks_of(own, BLOCK_FULLNESS):
            yield [own[p] for p in part], [paths[block[p]] for p in part]


def _causal_block(lengths: list[int], paths: list[Places]) -> tuple[Block, list[tuple[Places, int]]]:
    """A block with queries of whole paths, and each part's places and number of earlier queries."""
    places = _fill_rows(paths)
    own = [(path[len(path) - n :], len(path) - n) for n, path in zip(lengths, paths, strict=True)]
    return Block(places, places, None), own


def _late_block(lengths: list[int], paths: list[Places]) -> tuple[Block, list[tuple[Places, int]]]:
    """A block with queries of the parts alone, and each part's places."""
    own = [path[len(path) - n :] for n, path in zip(lengths, paths, strict=True)]
    queries, keys = _fill_rows(own), _fill_rows(paths)
    starts = torch.tensor([len(path) - n for n, path in zip(lengths, paths, strict=True)])
    last_seen = starts[:, None] + torch.arange(queries.shape[1])
    seen = torch.arange(keys.shape[1]) <= last_seen[:, None, :, None]
    return Block(queries, keys, seen), [(places, 0) for places in own]


def _fill_rows(rows: list[Places]) -> torch.Tensor:
    """[B, longest], filled up on the right with 0."""
    filled = np.zeros((len(rows), max(len(row) for row in rows)), np.int64)
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return torch.from_numpy(filled)


def take_rows(tensor: torch.Tensor, places: torch.Tensor, repeated: bool) -> torch.Tensor:
    """Gradients of a row that is taken repeatedly are summed in 32 bits."""
    if repeated and tensor.dtype.itemsize == 2:
        return cast("torch.Tensor", _RepeatedRows.apply(tensor, places))  # type: ignore[no-untyped-call]
    return tensor.index_select(0, places)


class _RepeatedRows(torch.autograd.Function):
    """A sum of many gradients in 16 bits would lose most of the small ones."""

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
    """Parts that lie end to end, in the form of the fastest attention for this device, dtype and head size.

    Args:
        paths: for each part the positions that it attends to, its own last; None where these are all.
    """
    if has_flash_attention(device, dtype, head_size):
        return VariableLengths.of(lengths, device, paths)
    return Blocks.of(lengths, device, paths)


def has_flash_attention(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether torch's flash attention takes these heads on this device."""
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
    """The backward pass of the bfloat16 kernel on a CPU takes 3.5 times as long."""
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
    """One row of [1, H, N, D] queries, [1, K, N, D] keys and values. Refuses a window, or missing segments;
    ``agreement`` finds whatever else changes log-probabilities.
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
    """``segments`` takes the place of a mask. Short sequences would not show windows or chunks: these get a mask
    without data, so that a layer that uses it is refused.
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
    """n, the number of ranks that share a row."""
    row: int = 0
    """Index of this rank's row within a micro-step."""
    part: int = 0
    """Index of this rank's part of that row."""
    group: "ProcessGroup | None" = None
    """None where n is 1."""

    @staticmethod
    def of(ranks: "Ranks", parts: int) -> "RowRanks":
        """Let each ``parts`` consecutive ranks share rows. Collective."""
        group = distributed.new_subgroups(parts)[0] if parts > 1 else None
        return RowRanks(parts, ranks.rank // parts, ranks.rank % parts, group)


OWN_ROWS = RowRanks()


@dataclass(frozen=True)
class SharedRowSegments:
    """Attention of a row of which this rank holds L = W / n positions."""

    whole: Segments
    ranks: RowRanks

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """[L, H, D] attention of this rank's [L, H, D] queries to the whole row; [L, K, D] keys and values are this
        rank's.
        """
        parts = self.ranks.parts
        split = [t.unflatten(1, (parts, -1)) for t in (query, repeat_heads(key, parts), repeat_heads(value, parts))]
        sent = torch.cat(split, 2).transpose(0, 1)
        received = self._exchange_heads(sent).flatten(0, 1)
        own_query, own_key, own_value = received.split([t.shape[2] for t in split], 1)
        output = self.whole.attend(own_query, own_key, own_value, scale)
        return self._exchange_heads(output.unflatten(0, (parts, -1))).transpose(0, 1).flatten(1, 2)

    def _exchange_heads(self, tensor: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", _Exchange.apply(tensor, self.ranks.group))  # type: ignore[no-untyped-call]


def repeat_heads(heads: torch.Tensor, parts: int) -> torch.Tensor:
    """Repeat each of the K heads of a [L, K, D] tensor until ``parts`` ranks can have equally many, each where grouped
    attention looks for it.
    """
    times = lcm(heads.shape[1], parts) // heads.shape[1]
    return heads.unsqueeze(2).expand(-1, -1, times, -1).flatten(1, 2)


class _Exchange(torch.autograd.Function):
    """Send slice i of an [n, ...] tensor to rank i of a group, and receive that rank's slice as slice i."""

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
