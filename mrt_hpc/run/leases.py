"""Leases: which inference task samples which group of an iteration.

A lease is a file created exclusively, one a generation: ``00007.000`` is the first on group 7, ``00007.001`` the one
after its holder was lost. It expires with its holder's heart and is never renewed or removed by hand, so the filesystem
alone decides between two tasks that want the same group. A lease only saves work: what is committed is decided by the
commit, where the first wins.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mrt_hpc.run.atomic import creating
from mrt_hpc.run.retries import list_directory, retrying

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.heartbeats import Observer
    from mrt_hpc.run.layout import RunLayout

_NAME = re.compile(r"(\d{5})\.(\d{3,})")


@dataclass(frozen=True)
class Holder:
    """One attempt at one array task."""

    job: str
    index: int
    attempt: str


@dataclass(frozen=True)
class Leases:
    """The leases on one iteration's groups, as one task sees them."""

    layout: RunLayout
    iteration: int
    mine: Holder
    observer: Observer

    def claim(self, position: int) -> bool:
        """Take the lease on a group, unless the group is complete or another live task holds it. A task may take again
        a lease that it holds.
        """
        if self.layout.group(self.iteration, position).exists():
            return False
        newest = self._newest().get(position)
        if newest is not None and not self._expired(self._path(position, newest)):
            return False
        return self._create(self._path(position, 0 if newest is None else newest + 1))

    def free(self, positions: list[int]) -> list[int]:
        """The groups whose lease :meth:`claim` would take at this moment."""
        newest = self._newest()
        return [p for p in positions if p not in newest or self._expired(self._path(p, newest[p]))]

    def _newest(self) -> dict[int, int]:
        """The newest generation of each group that has a lease."""
        names = [_NAME.fullmatch(p.name) for p in list_directory(self.layout.leases(self.iteration))]
        newest: dict[int, int] = {}
        for position, generation in ((int(m[1]), int(m[2])) for m in names if m):
            newest[position] = max(generation, newest.get(position, 0))
        return newest

    def _path(self, position: int, generation: int) -> Path:
        return self.layout.leases(self.iteration) / f"{position:05d}.{generation:03d}"

    def _expired(self, path: Path) -> bool:
        holder = read_holder(path)
        if holder is None or holder == self.mine:
            return True
        return self.observer.living(self.layout.heart(holder.job, holder.index)) != holder.attempt

    def _create(self, path: Path) -> bool:
        with creating(path, durable=False) as commit:
            commit.temporary.write_text(json.dumps(asdict(self.mine)))
        return commit.won


def read_holder(path: Path) -> Holder | None:
    """The holder of a lease; None for a lease that cannot be read, which no task can hold."""
    try:
        content = json.loads(retrying(path.read_text, "reading a lease"))
        return Holder(str(content["job"]), int(content["index"]), str(content["attempt"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
