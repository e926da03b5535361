"""Heartbeats and leases decide which task samples a group of an iteration, or a problem of an evaluation.

A lease is a file created exclusively, one a generation: ``00007.001`` on group 7 follows ``00007.000``, whose holder
was lost. It expires with its holder's heart, so the filesystem alone decides between two tasks. A lease only saves
work: of two commits the first wins.
"""

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

from mrt_hpc.errors import UserError, retryable_error
from mrt_hpc.recipe.ownership import file_bytes
from mrt_hpc.run.atomic import create_text, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import UnreadableError, decode_typed, read_typed

# Heartbeats: they show other tasks that a task is alive, on a filesystem whose clocks and locks cannot be trusted.
#
# A heart is a small file with the attempt's name and a counter. It counts as alive while the counter changes, measured
# by the observer's own monotonic clock: times of other hosts and modification times are never compared.


log = logging.getLogger(__name__)
T = TypeVar("T")

BEATS_A_LIMIT = 5
"""Missed beats after which a heart counts as dead."""


class Heart:
    """Beats in a thread during its block; removed at the end, so that others notice at once."""

    def __init__(self, path: Path, attempt: str, limit_s: float) -> None:
        self.path, self.attempt = path, attempt
        self._limit_s = limit_s
        self._beats, self._missed = 0, 0
        self._error: OSError | UserError | None = None
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
        """One beat; returns whether it was written. A missed beat (full disk, lost server) is tried again at the next;
        misses 1, 2, 4, 8 ... in a row are logged.
        """
        self._beats += 1
        try:
            beat = Beat(self.attempt, self._beats, self._limit_s / BEATS_A_LIMIT)
            write_json(self.path, asdict(beat), durable=False)
        except (OSError, UserError) as error:
            self._missed, self._error = self._missed + 1, error
            if self._missed.bit_count() == 1:
                log.warning("%d heartbeat(s) in a row could not be written: %s", self._missed, error)
            return False
        self._missed, self._error = 0, None
        return True

    def beat_and(self, look: Callable[[], T]) -> T:
        """Beat, and return ``look()``: a process that looks later sees this beat. Both are repeated where the beat
        failed or took half the limit: others may have taken this process for dead.
        """
        for _ in range(BEATS_A_LIMIT):
            began = time.monotonic()
            written, seen = self.beat(), look()
            if written and time.monotonic() - began < self._limit_s / 2:
                return seen
            if not written:
                time.sleep(self._limit_s / BEATS_A_LIMIT)
        if isinstance(self._error, UserError):  # it is no matter of time
            raise self._error
        raise retryable_error(
            "the heartbeat cannot be written in time",
            where=self.path,
            expected=f"a beat and a look at the claims within {self._limit_s / 2:g} s",
            advice="df -h, and df -i, show whether the disk is full; a slow filesystem needs more "
            "resilience.heartbeat_limit_s; then type the same command again",
        )


@dataclass(frozen=True)
class Beat:
    attempt: str
    """The attempt's name; empty if there is no heart."""
    beat: int
    every_s: float = 0.0
    """Seconds between beats; 0 where unknown."""


NO_BEAT = Beat("", 0)
NO_NEWS = Beat("", -1)
"""A heart that cannot be read now: network filesystems report this of a file being replaced."""


def read_beat(path: Path) -> Beat:
    """The latest beat; NO_BEAT where there is none, NO_NEWS where it cannot be read."""
    try:
        return decode_typed(file_bytes(path), Beat)
    except FileNotFoundError:
        return NO_BEAT
    except (OSError, ValueError):
        return NO_NEWS


def last_beat(path: Path) -> tuple[str, float] | None:
    """The attempt and time (filesystem's clock) of the last beat; None after an orderly end. Only for counting hours;
    an :class:`Observer` decides whether an attempt lives.
    """
    try:
        beat, modified = read_beat(path), path.stat().st_mtime
    except OSError:
        return None
    return (beat.attempt, modified) if beat.attempt else None


def standstill_s(path: Path) -> float | None:
    """Seconds since the last beat of a heart that missed one; else None. For display only: it compares two clocks."""
    if (last := last_beat(path)) is None or not (every_s := read_beat(path).every_s):
        return None
    age_s = time.time() - last[1]
    return age_s if age_s > 2 * every_s else None


@dataclass
class Observer:
    """Decides by its own clock whether hearts beat. ``limit_s`` counts from its first look, so it may take a dead heart
    for alive, but never a live one for dead.
    """

    limit_s: float
    clock: Callable[[], float] = time.monotonic
    _seen: dict[Path, tuple[Beat, float]] = field(default_factory=dict, init=False)

    def living_attempt(self, path: Path) -> str | None:
        """The attempt whose heart beats there; None for a stopped or missing heart."""
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
    run: Path
    """Not all that see the lease can see this directory."""
    job: str
    index: int
    attempt: str

    @property
    def task_digest(self) -> str:
        """A name of its task unique among runs and shared by all its attempts."""
        return hashlib.sha256(f"{self.run}\n{self.job}\n{self.index}".encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, str | int]:
        return {**asdict(self), "run": str(self.run)}


@dataclass(frozen=True)
class Leases:
    """The leases in one folder, as one task sees them."""

    directory: Path
    mine: Holder
    observer: Observer
    is_complete: Callable[[int], bool]
    """Whether the leased work is done already: then the lease is not taken."""
    heart: Callable[[Holder], Path]
    """The heartbeat file of a holder."""
    _holders: dict[Path, Holder] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Holders of leases read so far. A released lease's name may be used again, so each look then needs a new object.
    """

    def claim(self, position: int) -> bool:
        """Take the lease, unless the group is complete or another live task holds it; a task may retake its own. No
        folder is listed: the cost does not grow with the groups.
        """
        if self.is_complete(position):
            return False
        generation = 0
        while (path := self._path(position, generation)).exists():
            if not self._is_expired(path, self.observer.living_attempt):
                return False
            generation += 1
        return self._create(path)

    def free(self, positions: list[int]) -> list[int]:
        """The groups that :meth:`claim` would take now. Each heart is read once, and a lease only where it is new."""
        newest, living = self._newest(), cache(self.observer.living_attempt)
        return [p for p in positions if p not in newest or self._is_expired(self._path(p, newest[p]), living)]

    def _newest(self) -> dict[int, int]:
        names = [_NAME.fullmatch(p.name) for p in list_directory(self.directory)]
        newest: dict[int, int] = {}
        for position, generation in ((int(m[1]), int(m[2])) for m in names if m):
            newest[position] = max(generation, newest.get(position, 0))
        return newest

    def _path(self, position: int, generation: int) -> Path:
        return self.directory / f"{position:05d}.{generation:03d}"

    def _is_expired(self, path: Path, living: Callable[[Path], str | None]) -> bool:
        """Whether no other task holds a lease."""
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
        """Give up a lease that other tasks may want at once."""
        newest = self._newest().get(position)
        if newest is not None and read_holder(path := self._path(position, newest)) == self.mine:
            path.unlink(missing_ok=True)


def read_holder(path: Path) -> Holder | None:
    """The holder; None for an unreadable lease, which no task can hold."""
    try:
        return read_typed(path, Holder, "a lease", advice="nothing: no task holds it")
    except (FileNotFoundError, UnreadableError):
        return None


def group_leases(layout: RunLayout, iteration: int, mine: Holder, observer: Observer) -> Leases:
    return Leases(
        directory=layout.leases(iteration),
        mine=mine,
        observer=observer,
        is_complete=lambda position: layout.group(iteration, position).exists(),
        heart=lambda holder: layout.heart(holder.job, holder.index),
    )
