"""Finds ids and problems that repeat within a data file, and problems that stand in two of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from mrt_hpc.datasets.findings import Finding, FindingKind
from mrt_hpc.datasets.overlap import similar_pairs
from mrt_hpc.datasets.wording import words
from mrt_hpc.run.records import gold_text, golds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mrt_hpc.datasets.loaded import Entry, LoadedSet

Words = tuple[str, ...]


def repeated_ids(loaded: LoadedSet) -> Iterator[Finding]:
    """Each id that several lines of a file have."""
    by_id = sorted(loaded.entries, key=lambda entry: entry.problem.id)
    for _, group in groupby(by_id, key=lambda entry: entry.problem.id):
        entries = list(group)
        if len(entries) > 1:
            yield Finding(FindingKind.REPEATED_ID, tuple(entry.place for entry in entries))


@dataclass(frozen=True)
class ProblemIndex:
    """The problems of several files by their words."""

    sets: Sequence[LoadedSet]

    @cached_property
    def by_words(self) -> dict[Words, dict[str, list[Entry]]]:
        """For the words of each problem the lines that have them, by file."""
        found: dict[Words, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
        for loaded in self.sets:
            for entry in loaded.entries:
                found[words(entry.problem.problem)][loaded.file].append(entry)
        return found

    @cached_property
    def similar(self) -> list[tuple[dict[str, list[Entry]], dict[str, list[Entry]], float]]:
        """The lines of each two problems that are nearly the same, by file, and their overlap."""
        texts = list(self.by_words)
        pairs = similar_pairs(texts)
        return [(self.by_words[texts[p.first]], self.by_words[texts[p.second]], p.overlap) for p in pairs]

    def within(self, file: str) -> Iterator[Finding]:
        """Problems that a file holds twice, and then those that it holds in nearly the same words."""
        for lines in self.by_words.values():
            if len(entries := lines.get(file, [])) > 1:
                yield _finding(FindingKind.REPEATED_PROBLEM, entries)
        for first, second, overlap in self.similar:
            if file in first and file in second:
                entries = [first[file][0], second[file][0]]
                yield _finding(FindingKind.SIMILAR_PROBLEM, entries, overlap)

    def between(self, one: str, other: str) -> Iterator[Finding]:
        """Problems that stand in both of two files, and then those that do in nearly the same words."""
        for lines in self.by_words.values():
            if one in lines and other in lines:
                yield _finding(FindingKind.SHARED_PROBLEM, [*lines[one], *lines[other]])
        for pair in self.similar:
            for first, second in (pair[:2], pair[1::-1]):
                if one in first and other in second:
                    entries = [first[one][0], second[other][0]]
                    yield _finding(FindingKind.SHARED_SIMILAR_PROBLEM, entries, pair[2])


def _finding(kind: FindingKind, entries: list[Entry], overlap: float | None = None) -> Finding:
    """The finding on some lines; it tells where the gold answers differ, since one of them may be wrong."""
    golds = [golds_of(entry.problem.answer) for entry in reversed(entries)]
    answers = {frozenset(map(words, several)): gold_text(several) for several in golds}
    told = ", ".join(repr(answer) for answer in reversed(answers.values()))
    detail = f"the answers differ: {told}" if len(answers) > 1 else ""
    return Finding(kind, tuple(entry.place for entry in entries), detail, overlap)
