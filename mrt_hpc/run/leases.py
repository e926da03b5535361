"""Leases: which of several tasks samples a group of an iteration, or a problem of an evaluation.

A lease is a file created exclusively, one a generation: ``00007.000`` is the first on group 7, ``00007.001`` the one
after its holder was lost. It expires with its holder's heart and is never renewed or removed by hand, so the filesystem
alone decides between two tasks that want the same group. The heart lies where all can read it that see the lease. A
lease only saves work: what is committed is decided by the commit, where the first wins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mrt_hpc.run.atomic import create_text
from mrt_hpc.run.heartbeats import Observer
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import UnreadableError, read_typed

_NAME = re.compile(r"(\d{5})\.(\d{3,})")


@dataclass(frozen=True)
class Holder:
    """One attempt at one array task."""

    run: Path
    """The run directory. Not all that see the lease can see this directory."""
    job: str
    index: int
    attempt: str

    @property
    def task_digest(self) -> str:
        """A name of its task that no task of another run has; all attempts of the task share it."""
        return hashlib.sha256(f"{self.run}\n{self.job}\n{self.index}".encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, str | int]:
        """The content of its leases."""
        return {"run": str(self.run), "job": self.job, "index": self.index, "attempt": self.attempt}


@dataclass(frozen=True)
class Leases:
    """The leases in one folder, as one task sees them."""

    directory: Path
    mine: Holder
    observer: Observer
    is_complete: Callable[[int], bool]
    """Whether what a lease is on is there already: then no task takes the lease."""
    heart: Callable[[Holder], Path]
    """The file of a holder's heartbeat."""
    _holders: dict[Path, Holder] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The holders of the leases that were read. Where leases are released, another task may take one of the same name:
    each look then needs an object of its own.
    """

    def claim(self, position: int) -> bool:
        """Take the lease on a group, unless the group is complete or another live task holds it. A task may take again
        a lease that it holds. The folder is not listed: a claim costs the same however many groups there are.
        """
        if self.is_complete(position):
            return False
        generation = 0
        while (path := self._path(position, generation)).exists():
            if not self._expired(path, self.observer.living):
                return False
            generation += 1
        return self._create(path)

    def free(self, positions: list[int]) -> list[int]:
        """The groups whose lease :meth:`claim` would take at this moment. Each heart is read once, and a lease only
        where it is new.
        """
        newest, living = self._newest(), cache(self.observer.living)
        return [p for p in positions if p not in newest or self._expired(self._path(p, newest[p]), living)]

    def _newest(self) -> dict[int, int]:
        """The newest generation of each group that has a lease."""
        names = [_NAME.fullmatch(p.name) for p in list_directory(self.directory)]
        newest: dict[int, int] = {}
        for position, generation in ((int(m[1]), int(m[2])) for m in names if m):
            newest[position] = max(generation, newest.get(position, 0))
        return newest

    def _path(self, position: int, generation: int) -> Path:
        return self.directory / f"{position:05d}.{generation:03d}"

    def _expired(self, path: Path, living: Callable[[Path], str | None]) -> bool:
        """Whether no task holds a lease, or this one; ``living`` gives the attempt of a heart that beats."""
        holder = self._holders.get(path) or read_holder(path)
        if holder is None:
            return True
        self._holders[path] = holder
        return holder == self.mine or living(self.heart(holder)) != holder.attempt

    def _create(self, path: Path) -> bool:
        try:
            return create_text(path, json.dumps(self.mine.as_json()), durable=False)
        except FileNotFoundError:
            return False  # the folder was moved away meanwhile, as where all groups are there and are archived

    def release(self, position: int) -> None:
        """Remove the lease that this task holds on a group, where other tasks may want more of it at once."""
        newest = self._newest().get(position)
        if newest is not None and read_holder(path := self._path(position, newest)) == self.mine:
            path.unlink(missing_ok=True)


def read_holder(path: Path) -> Holder | None:
    """The holder of a lease; None for a lease that cannot be read, which no task can hold."""
    try:
        return read_typed(path, Holder, "a lease", advice="nothing: no task holds it")
    except (FileNotFoundError, UnreadableError):
        return None


def group_leases(layout: RunLayout, iteration: int, mine: Holder, observer: Observer) -> Leases:
    """The leases on the groups of an iteration."""
    return Leases(
        directory=layout.leases(iteration),
        mine=mine,
        observer=observer,
        is_complete=lambda position: layout.group(iteration, position).exists(),
        heart=lambda holder: layout.heart(holder.job, holder.index),
    )
