"""Reads the events of a run as they are written.

Each call returns those that are new, of whole lines only, with the process that wrote them. A run of thousands of tasks
has thousands of files, which are read once this way.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from mrt_hpc.run.events import PROGRESS, SUBMISSION, EventKind, event_of
from mrt_hpc.run.retries import retry_action


def outcomes(directory: Path, job: str, index: int, attempt: str) -> set[str]:
    """The outcomes that the ranks of an attempt recorded."""
    events = _events_in(directory, f"{job}.{index:05d}.*.{attempt}.jsonl")
    return {str(event.get("outcome")) for event in events if event["kind"] == EventKind.TASK_ENDED}


def has_progressed(directory: Path, job: str, index: int, attempt: str) -> bool:
    """Whether any process of an attempt recorded a result that stays."""
    return any(event["kind"] in PROGRESS for event in _events_in(directory, f"{job}.{index:05d}.*.{attempt}.jsonl"))


def finished_parts(directory: Path, jobs: Sequence[str]) -> int:
    """The number of results that stay of these jobs' tasks; it never decreases."""
    return sum(event["kind"] in PROGRESS for job in jobs for event in _events_in(directory, f"{job}.*.jsonl"))


def _events_in(directory: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """The events in all files whose names match, by time."""
    return (recorded.event for recorded in EventStream(directory, pattern=pattern).new())


AT_ONCE = 16 * 2**20
"""Bytes of a file that are read at once; longer than any event."""
LONGEST_EVENT = 64 * 1024
"""Bytes at the end of a file in which its last event is looked for."""
_FILE = re.compile(r"(?P<job>.+?)\.(?P<index>\d{5})\.(?P<rank>\d+)\.(?P<attempt>.+)\.jsonl")


@dataclass(frozen=True)
class Process:
    job: str
    index: int
    rank: int
    attempt: str


class ProcessEvent(NamedTuple):
    """An event and the process that wrote it; None for a submission."""

    process: Process | None
    event: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.event["kind"])

    @property
    def time(self) -> float:
        """Seconds since the epoch, by the clock of its node."""
        return float(self.event["time"])


@dataclass
class EventStream:
    """The events of a run directory. A file whose process has ended is not read again."""

    directory: Path
    wanted: Callable[[bytes], bool] = lambda _: True
    """Whether a line is decoded; the last new one of a file always is. Most events of a large run are of one or two
    kinds that few readers need one by one.
    """
    pattern: str = "*.jsonl"
    _faults: dict[str, str] = field(default_factory=dict, init=False)
    """What is wrong with each file, by its name."""
    _read: dict[str, int] = field(default_factory=dict, init=False)
    """Bytes read, by file name."""
    _ended: set[str] = field(default_factory=set, init=False)
    """Files that end with the end of an attempt."""

    def new(self) -> list[ProcessEvent]:
        """The events since the last call, by time."""
        return sorted(chain.from_iterable(self.new_by_process()), key=lambda event: event.time)

    def new_by_process(self) -> list[list[ProcessEvent]]:
        """The events since the last call by process, each in the order in which it wrote them."""
        return [events for name in self._grown_files() if (events := list(self._new_of(name)))]

    @property
    def faults(self) -> list[str]:
        """A line for each file that is no log, or that holds a damaged event."""
        return [f"{fault} ({self.directory / name})" for name, fault in sorted(self._faults.items())]

    def processes(self) -> list[Process]:
        return [process for name in self._read if (process := process_of(name)) is not None]

    def _grown_files(self) -> Iterator[str]:
        """The names of files that may have new lines."""
        try:
            logs = retry_action(lambda: _logs(self.directory, self.pattern), "listing the events")
        except FileNotFoundError:
            return
        for name in sorted(logs.keys() - self._ended):
            if logs[name]:
                yield name
            else:
                self._faults[name] = "the events of a process cannot be read: it is no file"

    def _new_of(self, name: str) -> Iterator[ProcessEvent]:
        begin, more = self._read.get(name, 0), True
        while more:
            text = retry_action(lambda: _part(os.path.join(self.directory, name), begin), "reading events")  # noqa: PTH118, B023
            whole = text[: text.rfind(b"\n") + 1]
            self._read[name] = begin = begin + len(whole)
            yield from self._events_of(name, whole)
            more = len(text) == AT_ONCE and bool(whole)
        if len(text) == AT_ONCE:
            self._faults[name] = f"a line of events has {AT_ONCE:,} bytes or more: no event behind it is read"
            self._ended.add(name)

    def _events_of(self, name: str, whole: bytes) -> Iterator[ProcessEvent]:
        process = process_of(name)
        lines = whole.splitlines()
        faults: list[str] = []
        for line in [*filter(self.wanted, lines[:-1]), *lines[-1:]]:
            if (event := _event(line, faults)) is not None:
                if event["kind"] == EventKind.TASK_ENDED:
                    self._ended.add(name)
                yield ProcessEvent(process, event)
        if faults:
            self._faults.setdefault(name, f"an event is damaged, and is not counted: {faults[0]}")


def _logs(directory: Path, pattern: str) -> dict[str, bool]:
    """Whether each matching entry of the folder is a file of events."""
    with os.scandir(directory) as entries:
        return {entry.name: is_log(entry) for entry in entries if fnmatchcase(entry.name, pattern)}


def is_log(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a regular file; pipes and circular links are not."""
    try:
        return entry.name.endswith(".jsonl") and entry.is_file()
    except OSError:
        return False


def last_event(path: Path) -> ProcessEvent | None:
    """The last whole event of a file; None where it has none."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - LONGEST_EVENT))
        lines = stream.read().splitlines()
    events = (event for line in reversed(lines) if (event := _event(line, [])) is not None)
    return next((ProcessEvent(process_of(path.name), event) for event in events), None)


def process_of(name: str) -> Process | None:
    """The process that writes this event file; None for a file of no task."""
    match = _FILE.fullmatch(name)
    if match is None or match["job"] == SUBMISSION:
        return None
    return Process(match["job"], int(match["index"]), int(match["rank"]), match["attempt"])


def _part(path: str, begin: int) -> bytes:
    with open(path, "rb") as stream:
        stream.seek(begin)
        return stream.read(AT_ONCE)


def _event(line: bytes, faults: list[str]) -> dict[str, Any] | None:
    """The event of a line; None for an incomplete or damaged one. Damage is added to the faults."""
    try:
        return event_of(line)
    except ValueError as error:
        faults.append(str(error))
        return None
