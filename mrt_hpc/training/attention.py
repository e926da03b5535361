"""Attention as the trainer computes it: the functions that transformers calls by the names registered here.

In a packed row every sequence attends to its own positions alone. Two ways compute it:

- On a GPU in 16 bits, torch's flash attention for sequences of different lengths (torch 2.11 or newer).
- Elsewhere, blocks: sequences of similar length are gathered into rows that are padded for the attention alone, and the
  padding is left out of the result.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mrt_hpc.errors import UserError
from mrt_hpc.training.packing import blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

CPU_ATTENTION = "sdpa_in_32_bits"
"""The name under which attention of padded rows on a CPU is registered in transformers."""

PACKED_ATTENTION = "packed_row"
"""The name under which attention of packed rows is registered in transformers."""

BLOCK_FULLNESS = 0.75
"""The shortest sequence of a block is at least this share of its longest: few blocks, and little padding in each."""

FLASH_CAPABILITY = (8, 0)
"""The oldest GPUs for which torch has flash attention."""

UNKNOWN_OPTIONS = ("sliding_window", "softcap", "s_aux", "position_bias")
"""What a model may ask of its attention that packed rows do not know."""

CAUSAL = (-1, 0)
"""The window of a position: all that is before it, and nothing behind it."""


def _variable_length_attention() -> Callable[..., Any] | None:
    """Return torch's flash attention for sequences of different lengths; None where this version of torch has none that
    takes a window.
    """
    with suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        known = inspect.signature(varlen_attn).parameters
        # torch 2.11 shares key heads among query heads by itself, later versions when they are told
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
    """For flash attention: where each sequence ends."""

    ends: torch.Tensor
    """[S + 1] int32, from 0 to N."""
    longest: int

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device) -> VariableLengths:
        """Return the form of sequences that lie end to end."""
        return VariableLengths(torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device), max(lengths))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Return the [N, H, D] attention."""
        assert VARIABLE_LENGTH_ATTENTION is not None  # see has_flash_attention
        output = VARIABLE_LENGTH_ATTENTION(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            self.ends,
            self.ends,
            self.longest,
            self.longest,
            scale=scale,
            window_size=CAUSAL,
        )
        assert isinstance(output, torch.Tensor)  # it is a pair only where the sum of the weights is asked for
        return output


@dataclass(frozen=True)
class Blocks:
    """For attention of padded rows: blocks of sequences of similar length."""

    blocks: tuple[torch.Tensor, ...]
    """Each [B, W], the places in the row of each position of B sequences; padding on the right has place 0."""
    found: torch.Tensor
    """[N] where in the blocks, laid end to end, each position of the row is."""

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device) -> Blocks:
        """Return the form of sequences that lie end to end."""
        starts = np.cumsum([0, *lengths])
        found = np.zeros(starts[-1], np.int64)
        blocks, before = [], 0
        for members in blocks_of(lengths, BLOCK_FULLNESS):
            places = np.zeros((len(members), lengths[members[0]]), np.int64)
            for number, member in enumerate(members):
                own = np.arange(lengths[member])
                places[number, : len(own)] = starts[member] + own
                found[starts[member] + own] = before + number * places.shape[1] + own
            blocks.append(torch.from_numpy(places).to(device))
            before += places.size
        return Blocks(tuple(blocks), torch.from_numpy(found).to(device))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Return the [N, H, D] attention."""
        shared = query.shape[1] != key.shape[1]
        flat = [t.flatten(1) for t in (query, key, value)]  # selecting rows of a matrix is the fastest
        outputs = []
        for places in self.blocks:
            q, k, v = (
                t.index_select(0, places.flatten()).view(*places.shape, -1, query.shape[-1]).transpose(1, 2)
                for t in flat
            )
            output = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=shared)
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).flatten(1).index_select(0, self.found).view_as(query)


def segments_of(lengths: Sequence[int], device: torch.device, dtype: torch.dtype, head_size: int) -> Segments:
    """Return sequences that lie end to end, in the form of the fastest attention for this device, number format and
    size of heads.
    """
    if has_flash_attention(device, dtype, head_size):
        return VariableLengths.of(lengths, device)
    return Blocks.of(lengths, device)


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
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of one row: [1, H, N, D] queries, [1, K, N, D] keys and values.

    Raises:
        UserError: the model asks for more than causal attention, or does not hand on what it is given.
    """
    unknown = [name for name in UNKNOWN_OPTIONS if options.get(name) is not None]
    if segments is None or attention_mask is not None or unknown:
        raise UserError(
            "the attention of this model does not work on packed rows",
            value=unknown or type(module).__name__,
            where="training.batching",
            advice="--set training.batching=padded",
        )
    device, dtype = query.device.type, value.dtype
    inner = torch.float32 if device == "cpu" and dtype == torch.bfloat16 else dtype  # see _attention_in_32_bits
    with torch.autocast(device, enabled=False):
        rows = [t[0].transpose(0, 1).to(inner) for t in (query, key, value)]
        output = segments.attend(rows[0], rows[1], rows[2], scaling)
    return output[None].to(dtype), None


AttentionInterface.register(CPU_ATTENTION, _attention_in_32_bits)
AttentionMaskInterface.register(CPU_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
AttentionInterface.register(PACKED_ATTENTION, _attention_of_a_packed_row)
