"""Reads the events of a run as they are written: each call returns those that are new, of whole lines only, with the
process that wrote them. A run of thousands of tasks has thousands of files, which are read once this way.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from mrt_hpc.run.events import EventKind, event_of
from mrt_hpc.run.retries import retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LONGEST_EVENT = 64 * 1024
"""The bytes at the end of a file in which its last event is looked for."""
_FILE = re.compile(r"(?P<job>.+?)\.(?P<index>\d{5})\.(?P<rank>\d+)\.(?P<attempt>.+)\.jsonl")


@dataclass(frozen=True)
class Process:
    """One process of an attempt at a task."""

    job: str
    index: int
    rank: int
    attempt: str


class ProcessEvent(NamedTuple):
    """An event, and the process that wrote it; None where a submission wrote it."""

    process: Process | None
    event: dict[str, Any]

    @property
    def kind(self) -> str:
        """The kind of the event, as in :class:`EventKind`."""
        return str(self.event["kind"])

    @property
    def time(self) -> float:
        """When it happened, seconds since the epoch, by the clock of its node."""
        return float(self.event["time"])


def _every_line(_: bytes) -> bool:
    return True


@dataclass
class EventStream:
    """The events of a run directory. A file whose process has ended is not looked at again."""

    directory: Path
    wanted: Callable[[bytes], bool] = _every_line
    """Whether a line is decoded; the last new one of a file always is. Of a run of thousands of tasks nearly all events
    are of one or two kinds, which few readers need one by one.
    """
    faults: dict[str, str] = field(default_factory=dict, init=False)
    """What is wrong with the first damaged event of a file, by its name."""
    _read: dict[str, int] = field(default_factory=dict, init=False)
    """Bytes read of each file, by its name."""
    _ended: set[str] = field(default_factory=set, init=False)
    """The names of the files that end with the end of an attempt."""

    def new(self) -> list[ProcessEvent]:
        """The events since the last call, by time.

        Raises:
            OSError: the folder or a file cannot be read, and it is not a temporary error.
        """
        found = [event for name in sorted(self._grown()) for event in self._new_of(name)]
        return sorted(found, key=lambda event: event.time)

    def processes(self) -> list[Process]:
        """The processes whose events have been read."""
        return [process for name in self._read if (process := process_of(name)) is not None]

    def _grown(self) -> Iterator[str]:
        """The names of the files that may have new lines."""
        try:
            names = retrying(lambda: _names(self.directory), "listing the events")
        except FileNotFoundError:
            return
        yield from (name for name in names if name not in self._ended)

    def _new_of(self, name: str) -> Iterator[ProcessEvent]:
        begin = self._read.get(name, 0)
        text = retrying(lambda: _tail(os.path.join(self.directory, name), begin), "reading events")  # noqa: PTH118
        whole = text[: text.rfind(b"\n") + 1]
        self._read[name] = begin + len(whole)
        process = process_of(name)
        lines = whole.splitlines()
        faults: list[str] = []
        for line in [*filter(self.wanted, lines[:-1]), *lines[-1:]]:
            if (event := _event(line, faults)) is not None:
                if event["kind"] == EventKind.TASK_ENDED:
                    self._ended.add(name)
                yield ProcessEvent(process, event)
        if faults:
            self.faults[name] = faults[0]


def _names(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if is_log(entry)]


def is_log(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of the folder is a file of events: a pipe, or a link that leads in a circle, is none."""
    try:
        return entry.name.endswith(".jsonl") and entry.is_file()
    except OSError:
        return False


def last_event(path: Path) -> ProcessEvent | None:
    """The last whole event of a file; None where it has none."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - LONGEST_EVENT))
        lines = stream.read().splitlines()
    found = (event for line in reversed(lines) if (event := _event(line, [])) is not None)
    return next((ProcessEvent(process_of(path.name), event) for event in found), None)


def process_of(name: str) -> Process | None:
    """The process that writes the event file of this name; None for one that is of no task."""
    match = _FILE.fullmatch(name)
    return None if match is None else Process(match["job"], int(match["index"]), int(match["rank"]), match["attempt"])


def _tail(path: str, begin: int) -> bytes:
    """What a file holds from a byte on."""
    with open(path, "rb") as stream:
        stream.seek(begin)
        return stream.read()


def _event(line: bytes, faults: list[str]) -> dict[str, Any] | None:
    """The event of a line; None for one that is incomplete, or damaged, which is added to the faults."""
    try:
        return event_of(line)
    except ValueError as error:
        faults.append(str(error))
        return None
