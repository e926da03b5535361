"""Packing of sequences into micro-batches and onto ranks. Pure arithmetic on lengths.

Padded: sequences of similar length share a right-padded micro-batch.

Packed: sequences lie end to end in one row, and only the sum of their lengths counts.

Shared: as packed, and common beginnings of sequences count once (``SharedRow``).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# The prefixes that sequences share, found by their token ids. Pure arithmetic on token ids.
#
# A hidden state depends only on the tokens up to its own: sequences that begin with the same tokens have the same
# hidden states there. Sorted by their token ids, each sequence shares its longest prefix with its neighbours. A row of
# shared prefixes therefore holds, of each sequence in this order, what it does not share with the one before: every
# prefix is there once. (This is the trie of the sequences, laid out from its first leaf to its last.)


LEAST_GAIN = 1 / 16
"""Sequences stay in one micro-batch where parting them would add at least this share of positions."""


@dataclass(frozen=True)
class SortedSequences:
    order: tuple[int, ...]
    """[n] indices of the sequences."""
    widths: NDArray[np.int64]
    """[n] lengths in tokens, in this order."""
    common: NDArray[np.int64]
    """[n] length of the prefix shared with the sequence before, in this order; 0 for the first."""

    @staticmethod
    def of(ids: Sequence[NDArray[np.int64]]) -> "SortedSequences":
        """Equal sequences keep their order."""
        keys = [tokens.astype(">u4").tobytes() for tokens in ids]  # bytes compare as the numbers do, and much faster
        order = sorted(range(len(ids)), key=lambda i: keys[i])
        common = [0, *(_common(ids[a], ids[b]) for a, b in pairwise(order))][: len(order)]
        widths = [len(ids[i]) for i in order]
        return SortedSequences(tuple(order), np.array(widths, np.int64), np.array(common, np.int64))

    def units(self, budget: int) -> list[slice]:
        """Cut the sorted sequences into runs that share much.

        A run has at most ``budget`` positions, or as many as its longest sequence. A larger one is cut in halves, where
        the fewest tokens are shared.
        """
        units, left = [], [slice(0, len(self.order))] if self.order else []
        while left:
            run = left.pop()
            if cuts := self._cuts(run, budget):
                left += [slice(a, b) for a, b in pairwise([run.start, *cuts, run.stop])]
            else:
                units.append(run)
        return sorted(units, key=lambda unit: int(unit.start))

    def places(self, indices: Iterable[int]) -> list[int]:
        """Places in the order, ascending."""
        return sorted(self._place_of[i] for i in indices)

    def positions(self, places: Sequence[int]) -> int:
        """The positions of a row with the sequences of these ascending places."""
        shared = sum(int(self.common[a + 1 : b + 1].min()) for a, b in pairwise(places))
        return int(self.widths[list(places)].sum()) - shared

    def run_positions(self, run: slice) -> int:
        return int(self._ends[run.stop] - self._ends[run.start] + self.common[run.start])

    @cached_property
    def _place_of(self) -> dict[int, int]:
        return {index: place for place, index in enumerate(self.order)}

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.widths - self.common)])

    def _cuts(self, run: slice, budget: int) -> list[int]:
        """Empty if the run is best kept whole."""
        inner = self.common[run.start + 1 : run.stop]
        if not len(inner):
            return []
        least = inner.min()
        lowest = run.start + 1 + np.flatnonzero(inner == least)
        if least * len(lowest) < LEAST_GAIN * self.run_positions(run):
            return [int(cut) for cut in lowest]
        if self.run_positions(run) <= max(budget, self.widths[run].max()):
            return []
        return [int(lowest[np.abs(2 * lowest - run.start - run.stop).argmin()])]


@dataclass(frozen=True)
class SharedRow:
    """One row of N positions, in which shared prefixes are there once."""

    order: tuple[int, ...]
    """Indices of the sequences, as they lie in the row."""
    ids: NDArray[np.int64]
    """[N] token ids."""
    places: NDArray[np.int64]
    """[N] the place of each token in its sequences."""
    paths: tuple[NDArray[np.int64], ...]
    """[width] positions in the row of each sequence's tokens."""
    own: tuple[int, ...]
    """The number of last tokens that each sequence adds to those before it; they lie end to end."""

    @staticmethod
    def of(ids: Sequence[NDArray[np.int64]]) -> "SharedRow":
        """Takes at least one sequence."""
        ordered = SortedSequences.of(ids)
        paths: list[NDArray[np.int64]] = []
        end = 0
        for width, shared in zip(ordered.widths.tolist(), ordered.common.tolist(), strict=True):
            before = paths[-1][:shared] if paths else np.zeros(0, np.int64)
            paths.append(np.concatenate([before, np.arange(end, end + width - shared)]))
            end += width - shared
        starts = [*zip(ordered.order, ordered.common.tolist(), strict=True)]
        return SharedRow(
            ordered.order,
            np.concatenate([ids[i][start:] for i, start in starts]),
            np.concatenate([np.arange(start, len(ids[i])) for i, start in starts]),
            tuple(paths),
            tuple((ordered.widths - ordered.common).tolist()),
        )


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    shorter = min(len(a), len(b))
    other = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(other[0]) if len(other) else shorter


MicroStep = tuple[tuple[int, ...], ...]
"""Each rank's sequences; () is a filler, one weightless token, as ZeRO-3 needs all ranks in step."""

BUDGETS_TRIED = 6
"""Budgets for shared prefixes, of which the best is taken."""


def pack(lengths: Sequence[int], world_size: int, max_tokens: int) -> list[MicroStep]:
    """Micro-steps of one padded micro-batch per rank, with every index exactly once.

    A micro-batch has at most ``max_tokens`` tokens, padding included, unless it is one longer sequence alone.
    Micro-batches of a step are of similar size, as the ranks wait for each other.
    """
    descending = _descending_order(lengths)
    sorted_lengths = [int(lengths[i]) for i in descending]
    fill = partial(_fill, sorted_lengths)
    batches = [tuple(descending[a:b]) for a, b in fill(_balanced_budget(fill, world_size, max_tokens))]
    return _group_steps(batches, world_size)


def pack_end_to_end(lengths: Sequence[int], world_size: int, max_tokens: int) -> list[MicroStep]:
    """Micro-steps of one unpadded micro-batch per rank, first fit by descending length. Limits as in ``pack``. There
    are no more micro-steps than ``max_tokens`` needs, and within that the fullest micro-batch is small.
    """
    descending = _descending_order(lengths)
    fill = partial(_first_fit, descending, lengths)
    batches = fill(_balanced_budget(fill, world_size, max_tokens))
    fullest_first = sorted(batches, key=lambda batch: -sum(lengths[i] for i in batch))
    return _group_steps([tuple(sorted(batch)) for batch in fullest_first], world_size)


def pack_shared(sequences: SortedSequences, world_size: int, max_tokens: int) -> list[MicroStep]:
    """Micro-steps of one micro-batch per rank in which shared prefixes count once.

    A micro-batch has at most ``max_tokens`` positions, or as many as its longest sequence. A small budget is even over
    the ranks, a large one shares more: of several, the one with the fewest positions in sequence (those of each
    micro-step's fullest rank) is taken.
    """

    def fill(budget: int) -> list[list[int]]:
        units = sequences.units(budget)
        sizes = [sequences.run_positions(unit) for unit in units]
        batches = _first_fit(_descending_order(sizes), sizes, budget)
        return [sorted(p for i in batch for p in range(units[i].start, units[i].stop)) for batch in batches]

    least = _balanced_budget(fill, world_size, max_tokens)
    plans = []
    for budget in np.linspace(least, max_tokens, BUDGETS_TRIED).astype(int).tolist():
        fullest_first = sorted(fill(budget), key=lambda places: -sequences.positions(places))
        plans.append(_group_steps([tuple(places) for places in fullest_first], world_size))
    best = min(plans, key=lambda plan: sum(max(map(sequences.positions, step)) for step in plan))
    return [tuple(tuple(sorted(sequences.order[p] for p in share)) for share in step) for step in best]


def blocks_of(lengths: Sequence[int], fullness: float) -> list[list[int]]:
    """Blocks of indices, the longest first; the shortest sequence of each is at least the share ``fullness`` of its
    longest.
    """
    blocks: list[list[int]] = []
    for index in _descending_order(lengths):
        if blocks and lengths[index] >= fullness * lengths[blocks[-1][0]]:
            blocks[-1].append(index)
        else:
            blocks.append([index])
    return blocks


def padded_tokens(lengths: Sequence[int], batch: Sequence[int]) -> int:
    return len(batch) * max((lengths[i] for i in batch), default=0)


def split_by_group(groups: Sequence[str], sizes: Sequence[int], parts: int) -> list[list[int]]:
    """At most ``parts`` mini-batches of similar size that never divide a group (an empty name is a group of its own).
    Depends only on the arguments; indices within a part ascend.
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


def _descending_order(lengths: Sequence[int]) -> list[int]:
    return [int(i) for i in np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")]


def _fill(descending_lengths: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Cut a descending list into runs whose first length times their number stays within the budget."""
    cuts = []
    start = 0
    while start < len(descending_lengths):
        rows = max(1, budget // max(1, descending_lengths[start]))
        cuts.append((start, min(start + rows, len(descending_lengths))))
        start += rows
    return cuts


def _first_fit(descending: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Put each sequence into the first micro-batch with room for it."""
    batches: list[list[int]] = []
    room = np.zeros(len(descending) + 1, dtype=np.int64)
    for index in descending:
        fits = room[: len(batches)] >= lengths[index]
        place = int(fits.argmax()) if fits.any() else len(batches)
        if place == len(batches):
            batches.append([])
            room[place] = budget
        batches[place].append(index)
        room[place] -= lengths[index]
    return batches


def _balanced_budget(fill: Callable[[int], Sequence[object]], world_size: int, max_tokens: int) -> int:
    """The smallest budget with no more micro-steps of ``world_size`` micro-batches than ``max_tokens`` needs."""

    def steps(budget: int) -> int:
        return -(-len(fill(budget)) // world_size)

    fewest = steps(max_tokens)
    low, high = 1, max_tokens
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if steps(middle) <= fewest else (middle + 1, high)
    return high


def _group_steps(batches: Sequence[tuple[int, ...]], world_size: int) -> list[MicroStep]:
    spare = ((),) * (-len(batches) % world_size)
    whole = (*batches, *spare)
    return [whole[i : i + world_size] for i in range(0, len(whole), world_size)]
