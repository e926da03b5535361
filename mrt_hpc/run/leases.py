"""Heartbeats, and the leases that expire with them: which of several tasks samples a group of an iteration, or a
problem of an evaluation.

A lease is a file created exclusively, one a generation: ``00007.000`` is the first on group 7, ``00007.001`` the one
after its holder was lost. It expires with its holder's heart and is never renewed or removed by hand, so the filesystem
alone decides between two tasks that want the same group. The heart lies where all can read it that see the lease. A
lease only saves work: what is committed is decided by the commit, where the first wins.
"""

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.atomic import create_text, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import UnreadableError, file_bytes, read_typed, typed

# Heartbeats: they show other tasks that a task is alive, on a filesystem whose clocks and locks cannot be trusted.
#
# A heart is a small file with the attempt's name and a counter. It counts as alive while the counter changes, measured
# by the observer's own monotonic clock: times of other hosts and modification times are never compared.


log = logging.getLogger(__name__)
T = TypeVar("T")

BEATS_A_LIMIT = 5
"""The number of missed beats after which a heart counts as dead."""


class Heart:
    """Beats in a thread during its block; the heart is removed at the end, so that others notice at once."""

    def __init__(self, path: Path, attempt: str, limit_s: float) -> None:
        self.path, self.attempt = path, attempt
        self._limit_s = limit_s
        self._beats, self._missed = 0, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if read_beat(self.path).attempt == self.attempt:  # a later attempt may have replaced it
            self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._end.wait(self._limit_s / BEATS_A_LIMIT):
            self.beat()

    def beat(self) -> bool:
        """One beat, and whether it was written; one that cannot be (a full disk, a lost server) is missed, and the next
        is tried. Of missed beats in a row the first is logged, the second, the fourth, and so on.
        """
        self._beats += 1
        try:
            write_json(self.path, {"attempt": self.attempt, "beat": self._beats}, durable=False)
        except (OSError, UserError) as error:
            self._missed += 1
            if self._missed.bit_count() == 1:
                log.warning("%d heartbeat(s) in a row could not be written: %s", self._missed, error)
            return False
        self._missed = 0
        return True

    def beat_and(self, look: Callable[[], T]) -> T:
        """Beat, and return what ``look`` gives: another process that comes after this look sees this beat. Both are
        done again where the beat was not written, and where they took half of the limit: the process has stood still,
        and may have been taken for dead.

        Raises:
            UserError: so it was each time, for as many times as a heart may miss beats.
        """
        for _ in range(BEATS_A_LIMIT):
            began = time.monotonic()
            written, seen = self.beat(), look()
            if written and time.monotonic() - began < self._limit_s / 2:
                return seen
            if not written:
                time.sleep(self._limit_s / BEATS_A_LIMIT)
        raise UserError(
            "the heartbeat cannot be written in time",
            where=self.path,
            expected=f"a beat and a look at the claims within {self._limit_s / 2:g} s",
            advice="df -h, and df -i, show whether the disk is full; a slow filesystem needs more "
            "resilience.heartbeat_limit_s; then type the same command again",
            exit_code=ExitCode.RETRYABLE,
        )


@dataclass(frozen=True)
class Beat:
    """The content of a heart's file."""

    attempt: str
    """The name of the attempt; empty if there is no heart."""
    beat: int


NO_BEAT = Beat("", 0)
NO_NEWS = Beat("", -1)
"""A heart that cannot be read at this moment: a network filesystem may report this of a file that is being replaced."""


def read_beat(path: Path) -> Beat:
    """The latest beat; NO_BEAT where there is none, NO_NEWS where it cannot be read."""
    try:
        return typed(file_bytes(path), Beat)
    except FileNotFoundError:
        return NO_BEAT
    except (OSError, ValueError):
        return NO_NEWS


def last_beat(path: Path) -> tuple[str, float] | None:
    """The attempt of a heart's file and the time of its last beat, by the filesystem's clock: an attempt that ended
    by itself leaves none. For the reckoning of hours only; an :class:`Observer` decides whether an attempt lives.
    """
    try:
        beat, modified = read_beat(path), path.stat().st_mtime
    except OSError:
        return None
    return (beat.attempt, modified) if beat.attempt else None


@dataclass
class Observer:
    """Decides by its own clock whether hearts beat. A heart has ``limit_s`` from the moment at which it is first read,
    so a new observer may count a dead heart as alive, but never a live one as dead.
    """

    limit_s: float
    clock: Callable[[], float] = time.monotonic
    _seen: dict[Path, tuple[Beat, float]] = field(default_factory=dict, init=False)

    def living(self, path: Path) -> str | None:
        """The attempt whose heart beats there; None for a heart that has stopped or does not exist."""
        beat, now = read_beat(path), self.clock()
        before, since = self._seen.get(path, (NO_BEAT, now))
        beat = before if beat == NO_NEWS else beat
        if beat == NO_BEAT:
            return None
        if beat != before:
            self._seen[path] = (beat, now)
            return beat.attempt
        return beat.attempt if now - since < self.limit_s else None


_NAME = re.compile(r"(\d{5,})\.(\d{3,})")


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
