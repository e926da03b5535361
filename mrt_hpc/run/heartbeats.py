"""Heartbeats: they show other tasks that a task is alive, on a filesystem whose clocks and locks cannot be trusted.

A heart is a small file with the attempt's name and a counter. It counts as alive while the counter changes, measured by
the observer's own monotonic clock: times of other hosts and modification times are never compared.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.errors import UserError
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.typed_file import file_bytes, typed

log = logging.getLogger(__name__)

BEATS_A_LIMIT = 5
"""The number of missed beats after which a heart counts as dead."""


class Heart:
    """Beats in a thread during its block; the heart is removed at the end, so that others notice at once."""

    def __init__(self, path: Path, attempt: str, limit_s: float) -> None:
        self.path, self.attempt = path, attempt
        self._pause_s = limit_s / BEATS_A_LIMIT
        self._beats, self._missed = 0, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)

    def __enter__(self) -> Heart:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if read_beat(self.path).attempt == self.attempt:  # a later attempt may have replaced it
            self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._end.wait(self._pause_s):
            self._beat()

    def _beat(self) -> None:
        """One beat; one that cannot be written (a full disk, a lost server) is missed, and the next is tried. Of missed
        beats in a row the first is logged, the second, the fourth, and so on.
        """
        self._beats += 1
        try:
            write_json(self.path, {"attempt": self.attempt, "beat": self._beats}, durable=False)
        except (OSError, UserError) as error:
            self._missed += 1
            if self._missed.bit_count() == 1:
                log.warning("%d heartbeat(s) in a row could not be written: %s", self._missed, error)
        else:
            self._missed = 0


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
