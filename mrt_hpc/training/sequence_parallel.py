"""Rows that several ranks share (sequence parallelism after DeepSpeed-Ulysses, Jacobs et al. 2023).

Each of n ranks holds W / n consecutive positions of a row of W. Every layer but attention works on each position alone.
Before attention each rank sends every other rank its share of the heads: a rank then has all positions of H / n heads,
attends as if the row were its own, and the result goes the same way back. A parameter's gradient is the sum over ranks
of what each has computed, as it is without shared rows.

DeepSpeed's own wrapper of attention is not used: it knows where sequences begin by their positions alone, so it has no
shared prefixes, and it takes four exchanges where one carries queries, keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from mrt_hpc.training.attention import Segments
    from mrt_hpc.training.rendezvous import Ranks


@dataclass(frozen=True)
class RowRanks:
    """The ranks that share each row with this one."""

    parts: int = 1
    """The number of ranks that share a row, n; 1 where each rank has rows of its own."""
    row: int = 0
    """Which of a micro-step's rows this rank works on."""
    part: int = 0
    """Which of its n parts this rank holds."""
    group: ProcessGroup | None = None
    """These ranks as a group of their own; None where n is 1."""

    @staticmethod
    def of(ranks: Ranks, parts: int) -> RowRanks:
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
    def forward(ctx: Any, tensor: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _exchange(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _exchange(gradient, ctx.group), None


def _exchange(tensor: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    sent = tensor.contiguous()
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=group)
    return received
