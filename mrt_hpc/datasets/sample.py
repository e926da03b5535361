"""Takes a part of a data set: the rows up to a value of a column, and a sample that a seed decides."""

from __future__ import annotations

import hashlib
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.datasets.columns import BadRowError, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from mrt_hpc.run.records import Problem


@dataclass(frozen=True)
class AtMost:
    """Keeps the rows with a number in a column that is no larger than a limit."""

    column: str
    limit: int

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is kept.

        Raises:
            BadRowError: the column holds no whole number.
        """
        value = value_of(row, self.column)
        try:
            return int(str(value)) <= self.limit
        except ValueError as error:
            raise BadRowError(f"{self.column} is no whole number: {value!r}") from error

    def __str__(self) -> str:
        return f"{self.column} at most {self.limit}"


@dataclass(frozen=True)
class Sample:
    """A sample of problems: those whose SHA-256 of the seed and the text of the problem is smallest.

    It depends on no random generator and on no order of rows. A smaller sample of the same seed is a part of a larger
    one, and no text is taken twice.
    """

    problems: int
    seed: int = 0

    def of(self, problems: Iterable[Problem]) -> list[Problem]:
        """The sample, in the order of the problems; all of them where there are too few."""
        heap: list[tuple[int, int, Problem]] = []
        taken: set[int] = set()
        for number, problem in enumerate(problems):
            key = self._key(problem)
            if key in taken or (len(heap) == self.problems and -heap[0][0] <= key):
                continue
            taken.add(key)
            heapq.heappush(heap, (-key, number, problem))
            if len(heap) > self.problems:
                taken.remove(-heapq.heappop(heap)[0])
        return [problem for _, _, problem in sorted(heap, key=lambda entry: entry[1])]

    def _key(self, problem: Problem) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed}\n{problem.problem}".encode()).digest())
