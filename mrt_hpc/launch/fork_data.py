"""Whether the data files of a run still hold what it was trained and evaluated on: a fork reads them again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.recipe.sections.data import Conversations, JsonlProblems, Suffixes
from mrt_hpc.run.data import left_out, problem_lines, read_problems
from mrt_hpc.run.fork_record import ForkedData
from mrt_hpc.training.supervised import read_conversations, read_suffixes, sample_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.layout import RunLayout

FileSource = JsonlProblems | Conversations | Suffixes
"""The kinds of data that are read from a file."""


def forked_data(layout: RunLayout, before: Recipe, wanted: Recipe) -> tuple[ForkedData, ...]:
    """Compare the data files that a run and its fork both name with the run's own copies.

    Args:
        layout: of the run.
        before: its recipe.
        wanted: the recipe of the fork.

    Raises:
        UserError: a data file, or a copy, is wrong.
    """
    earlier = {one.field: one for one in _named(layout, before)}
    return tuple(
        ForkedData(one.field, one.source.path, one.digest_of_copy(), one.digest())
        for one in _named(layout, wanted)
        if one.field in earlier and earlier[one.field].source == one.source and one.can_be_compared
    )


@dataclass(frozen=True)
class _Named:
    """A data file that a recipe names, and the run's copy of its content."""

    field: str
    source: FileSource
    copy: Path

    @property
    def can_be_compared(self) -> bool:
        """Whether both are there: a file that is not is refused when the new run is made."""
        return self.copy.is_file() and Path(self.source.path).is_file()

    def digest(self) -> str:
        """SHA-256 of what a run takes from the file now, without what was left out of the copy."""
        return _digest(_content(self.source, Path(self.source.path), self.source.limit, set(left_out(self.copy))))

    def digest_of_copy(self) -> str:
        """The same of the copy."""
        return _digest(_content(self.source, self.copy, None, set()))


def _named(layout: RunLayout, recipe: Recipe) -> Iterator[_Named]:
    if isinstance(recipe.data, FileSource):
        yield _Named("data", recipe.data, layout.train_data)
    for benchmark in recipe.evaluation.benchmarks:
        if isinstance(benchmark.problems, JsonlProblems):
            yield _Named(f"benchmark {benchmark.name}", benchmark.problems, layout.benchmark_data(benchmark.name))


def _content(source: FileSource, path: Path, limit: int | None, without: set[str]) -> str:
    """The items of a file as a run writes them, without those of some ids."""
    if isinstance(source, Conversations):
        return sample_lines(read_conversations(path, limit))
    if isinstance(source, Suffixes):
        return sample_lines(read_suffixes(path, limit))
    return problem_lines([problem for problem in read_problems(path, limit) if problem.id not in without])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
