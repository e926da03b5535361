"""The prefixes that sequences share, found by their token ids. Pure arithmetic on token ids.

A hidden state depends only on the tokens up to its own: sequences that begin with the same tokens have the same hidden
states there. Sorted by their token ids, each sequence shares its longest prefix with its neighbours. A row of shared
prefixes therefore holds, of each sequence in this order, what it does not share with the one before: every prefix is
there once. (This is the trie of the sequences, laid out from its first leaf to its last.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

LEAST_GAIN = 1 / 16
"""Sequences are kept in one micro-batch where parting them would add at least this share to their positions."""


@dataclass(frozen=True)
class SortedSequences:
    """Sequences in the order of their token ids."""

    order: tuple[int, ...]
    """[n] the indices of the sequences."""
    widths: NDArray[np.int64]
    """[n] the numbers of their tokens, in this order."""
    common: NDArray[np.int64]
    """[n] how many first tokens each shares with the one before it in this order; 0 for the first."""

    @staticmethod
    def of(ids: Sequence[NDArray[np.int64]]) -> SortedSequences:
        """Sort sequences by their token ids; equal ones keep their order."""
        keys = [tokens.astype(">u4").tobytes() for tokens in ids]  # bytes compare as the numbers do, and much faster
        order = sorted(range(len(ids)), key=lambda i: keys[i])
        common = [0, *(_common(ids[a], ids[b]) for a, b in pairwise(order))][: len(order)]
        widths = [len(ids[i]) for i in order]
        return SortedSequences(tuple(order), np.array(widths, np.int64), np.array(common, np.int64))

    def units(self, budget: int) -> list[slice]:
        """Cut the sorted sequences into runs that are best kept together, as they share much.

        A run has at most ``budget`` positions, or as many as its longest sequence. One that has more is cut in halves,
        where the fewest tokens are shared.
        """
        units, left = [], [slice(0, len(self.order))] if self.order else []
        while left:
            run = left.pop()
            cuts = self._cuts(run, budget)
            if not cuts:
                units.append(run)
            left += [slice(a, b) for a, b in pairwise([run.start, *cuts, run.stop])] if cuts else []
        return sorted(units, key=lambda unit: int(unit.start))

    def places(self, indices: Iterable[int]) -> list[int]:
        """Return the places in the order of these sequences, ascending."""
        return sorted(self._place_of[i] for i in indices)

    def positions(self, places: Sequence[int]) -> int:
        """Return the number of positions of a row that holds the sequences of these places in the order, ascending."""
        shared = sum(int(self.common[a + 1 : b + 1].min()) for a, b in pairwise(places))
        return int(self.widths[list(places)].sum()) - shared

    def run_positions(self, run: slice) -> int:
        """Return the same for a run."""
        return int(self._ends[run.stop] - self._ends[run.start] + self.common[run.start])

    @cached_property
    def _place_of(self) -> dict[int, int]:
        return {index: place for place, index in enumerate(self.order)}

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.widths - self.common)])

    def _cuts(self, run: slice, budget: int) -> list[int]:
        """Return where to cut a run; nowhere if it is best kept whole."""
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
    """One row in which sequences lie whose shared prefixes are there once: N positions."""

    order: tuple[int, ...]
    """The indices of the sequences, in the order in which they lie in the row."""
    ids: NDArray[np.int64]
    """[N] the token ids."""
    places: NDArray[np.int64]
    """[N] the place of each token in its sequences."""
    paths: tuple[NDArray[np.int64], ...]
    """The positions in the row of each sequence's tokens, [width], in this order."""
    own: tuple[int, ...]
    """The number of each sequence's last tokens, in this order, that no sequence before it has; they lie end to end
    in the row.
    """

    @staticmethod
    def of(ids: Sequence[NDArray[np.int64]]) -> SharedRow:
        """Lay out at least one sequence."""
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


def flattened(runs: Iterable[slice]) -> list[int]:
    """Return the places of runs, ascending."""
    return sorted(place for run in runs for place in range(run.start, run.stop))


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return how many first tokens two sequences share."""
    shorter = min(len(a), len(b))
    other = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(other[0]) if len(other) else shorter
