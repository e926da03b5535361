"""Packing of sequences into micro-batches and onto ranks. Pure arithmetic on lengths.

Sequences of similar length share a right-padded micro-batch, so that little of it is padding. With causal attention,
no real token attends to padding on its right; nothing has to be masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MicroStep = tuple[tuple[int, ...], ...]
"""The indices of each rank's sequences; () is a filler, one weightless token, as ZeRO-3 needs all ranks in step."""


def pack(lengths: Sequence[int], world_size: int, max_tokens: int) -> list[MicroStep]:
    """Split sequences into micro-steps of one micro-batch per rank.

    Every index appears exactly once. A micro-batch has at most ``max_tokens`` tokens, padding included, unless it is
    one longer sequence alone. Micro-batches of one step are of similar size, as the ranks wait for each other.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    descending = [int(i) for i in order]
    sorted_lengths = [int(lengths[i]) for i in descending]
    budget = _balanced_budget(sorted_lengths, world_size, max_tokens)
    batches = [tuple(descending[a:b]) for a, b in _fill(sorted_lengths, budget)]
    return [_one_step(batches[i : i + world_size], world_size) for i in range(0, len(batches), world_size)]


def padded_tokens(lengths: Sequence[int], batch: Sequence[int]) -> int:
    """Return the number of tokens of one micro-batch with its padding."""
    return len(batch) * max((lengths[i] for i in batch), default=0)


def split_by_group(groups: Sequence[str], sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Split sequences into at most ``parts`` mini-batches of similar size that never divide a group.

    Args:
        groups: the group of each sequence; an empty name is a group of its own.
        sizes: tokens of each sequence.
        parts: how many mini-batches (fewer when there are fewer groups).

    The outcome depends only on the arguments; indices within a part ascend.
    """
    members: dict[str | int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group or index, []).append(index)
    largest_first = sorted(members.values(), key=lambda indices: -sum(sizes[i] for i in indices))
    chosen: list[list[int]] = [[] for _ in range(min(parts, len(members)))]
    load = [0] * len(chosen)
    for indices in largest_first:
        least = load.index(min(load))
        chosen[least].extend(indices)
        load[least] += sum(sizes[i] for i in indices)
    return [sorted(part) for part in chosen]


def _fill(descending_lengths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Cut a descending list into runs whose first length times their number stays within the budget."""
    cuts = []
    start = 0
    while start < len(descending_lengths):
        rows = max(1, budget // max(1, descending_lengths[start]))
        cuts.append((start, min(start + rows, len(descending_lengths))))
        start += rows
    return cuts


def _balanced_budget(descending_lengths: Sequence[int], world_size: int, max_tokens: int) -> int:
    """Return the smallest budget with no more micro-steps than ``max_tokens`` needs, for an even share per rank."""

    def steps(budget: int) -> int:
        return -(-len(_fill(descending_lengths, budget)) // world_size)

    fewest = steps(max_tokens)
    low, high = 1, max_tokens
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if steps(middle) <= fewest else (middle + 1, high)
    return high


def _one_step(batches: Sequence[tuple[int, ...]], world_size: int) -> MicroStep:
    return tuple(batches) + ((),) * (world_size - len(batches))
