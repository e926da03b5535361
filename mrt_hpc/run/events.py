"""The event log of a run: one file of JSON lines for each process, so that no lock is needed. A reader sorts all files
by time, and skips a line that a lost node or a full disk has left incomplete.
"""

import errno
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict

import msgspec

from mrt_hpc.run.atomic import make_folder
from mrt_hpc.run.retries import RetryPolicy, retry_action
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.typed_file import Moment, Whole

# -- uses --------------------------------------------------------------------------------------------------------------
# The uses of the time of a task, as its events record them.


class Use(StrEnum):
    """What a task's time is used for; the values are the words of tables and events."""

    STARTING = "starting"
    """From the start of the job to the first work: imports, the vLLM server, the model and its optimiser."""
    PREPARING = "preparing"
    """The checks of the first job, and weights version 0."""
    LOADING = "loading"
    """Loading weights into the server, or rollouts into the trainer."""
    GENERATING = "generating"
    """Sampling traces, and grading them."""
    BRANCHING = "branching"
    """Sampling the prover's branches. They share the server with the traces: the time is divided by tokens."""
    TRAINING = "training"
    """Forward, backward and update."""
    SAVING = "saving"
    REPORTING = "reporting"
    WAITING = "waiting for a peer"
    """Waiting for weights, rollouts or samples of another task."""
    ENDING = "ending"
    """From the last work to the end of the job."""
    LOST = "lost to preemption or failure"
    """Work of an attempt that did not end well, since its last result that stays."""
    UNACCOUNTED = "unaccounted"


class EventKind(StrEnum):
    TASK_STARTED = "task_started"
    TASK_ENDED = "task_ended"
    """An attempt ended with ``outcome``."""
    PART_COMMITTED = "part_committed"
    """A problem of an evaluation's shard is complete."""
    GROUP_COMMITTED = "group_committed"
    """A group of an iteration is complete."""
    GROUP_DISCARDED = "group_discarded"
    """A group came second and was dropped."""
    SHARD_COMMITTED = "shard_committed"
    SHARD_DISCARDED = "shard_discarded"
    """A shard, or a part of it, came second and was dropped."""
    WEIGHTS_LOADED = "weights_loaded"
    """A server took a weights version in place."""
    STEP = "step"
    """An update of one iteration was computed."""
    STEP_SKIPPED = "step_skipped"
    """An optimiser step was left out, as its loss or gradient was not finite; ``file`` holds its sequences."""
    CHECKPOINT = "checkpoint"
    RESUMED = "resumed"
    """The trainer continued from a checkpoint."""
    PUBLISHED = "published"
    """A weights version is complete."""
    SET_ASIDE = "set_aside"
    """Files newer than the checkpoint resumed from were moved away, for ``reason``."""
    SERVER_STARTED = "server_started"
    """A vLLM server answers, ``seconds`` after it was given the model, or first asked."""
    FIRST_TOKEN = "first_token"
    """``seconds`` from the start of the attempt to its first sampled token."""
    SERVER_RESTARTED = "server_restarted"
    """A vLLM server had died and answers again."""
    RECIPE_CHANGED = "recipe_changed"
    """A submission changed fields of the recipe; ``changes`` has their old and new values."""
    GRADING = "grading"
    """Answers hung or could not be read."""
    USE = "use"
    """The task's time is used for ``use`` from now on."""
    SCRIPT = "script"
    """The job script of ``attempt`` reached a ``stage``; the script writes this before Python begins."""
    ALLOCATION_ENDED = "allocation_ended"
    """The job script of ``attempt`` ends, after srun ended with ``code``."""


class _Earlier(TypedDict):
    """The last sign of life of the attempt before."""

    attempt: str
    until: Moment


class _Known(TypedDict, total=False):
    """The fields that readers know; an event may have more."""

    time: Required[Moment]
    kind: Required[str]
    host: str
    pid: Whole
    job: str
    task: Whole
    rank: Whole
    world_size: Whole
    attempt: str
    began: Moment | None
    earlier: _Earlier | None
    outcome: TaskState
    use: Use
    version: Whole | None
    benchmark: str
    shard: Whole
    stage: str
    code: Whole
    line: str
    rollout_tokens: Whole
    branch_tokens: Whole


_NEEDED = {
    EventKind.TASK_STARTED: ("job", "task", "rank", "attempt"),
    EventKind.TASK_ENDED: ("outcome",),
    EventKind.SCRIPT: ("job", "task", "attempt", "stage"),
    EventKind.ALLOCATION_ENDED: ("attempt",),
    EventKind.USE: ("use",),
    EventKind.PUBLISHED: ("version",),
}
"""The fields without which an event of a kind says nothing."""
PROGRESS = frozenset(
    {EventKind.GROUP_COMMITTED, EventKind.PART_COMMITTED, EventKind.SHARD_COMMITTED, EventKind.CHECKPOINT}
)
"""Events whose results stay when the attempt is lost; a weights version newer than its checkpoint does not stay."""


@dataclass
class EventLog:
    """The events of one process; every line reaches the file at once."""

    path: Path
    patience: RetryPolicy = field(default_factory=RetryPolicy)
    """How long to wait for a full disk."""
    _descriptor: int | None = field(default=None, init=False, repr=False)
    _torn: bool = field(default=False, init=False, repr=False)
    _use: Use = field(default=Use.STARTING, init=False, repr=False)
    _emitted: set[EventKind] = field(default_factory=set, init=False, repr=False)

    def has_emitted(self, kind: EventKind) -> bool:
        return kind in self._emitted

    def spend(self, use: Use) -> None:
        """Record a new use of the time; the same use again writes nothing."""
        if use is not self._use:
            self._use = use
            self.emit(EventKind.USE, use=use.value)

    def emit(self, kind: EventKind, **fields: Any) -> None:
        """Append one event with the time of this node's clock; on a full disk, wait for room.

        Raises:
            ValueError: a field would hide when or by whom it was emitted.
        """
        emitter = {"time": time.time(), "kind": kind.value, "host": socket.gethostname(), "pid": os.getpid()}
        if taken := emitter.keys() & fields.keys():
            raise ValueError(f"event {kind.value}: {sorted(taken)} describe its emitter")
        text = json.dumps({**emitter, **fields}).encode() + b"\n"
        self._emitted.add(kind)
        retry_action(lambda: self._append(text), "an event", self.patience)

    def _append(self, text: bytes) -> None:
        """Begins a new line first where a full disk has left a part of one."""
        if self._descriptor is None:
            make_folder(self.path.parent)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        text = b"\n" + text if self._torn else text
        self._torn = os.write(self._descriptor, text) < len(text)
        if self._torn:
            raise OSError(errno.ENOSPC, "an event was cut short")


SUBMISSION = "submit"
"""Stands for the job in the name of a submission's event file."""


def event_file(directory: Path, job: str, index: int, rank: int, attempt: str) -> Path:
    return directory / f"{job}.{index:05d}.{rank}.{attempt}.jsonl"


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


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for an incomplete one.

    Raises:
        ValueError: the event is damaged: it lacks a field of its kind, or has one of another type.
    """
    try:
        event = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(event, dict) or not {"time", "kind"} <= event.keys():
        return None
    try:
        msgspec.convert(event, _Known)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    needed = _NEEDED.get(event["kind"], ()) if event.get("what") != "evaluation" else ("version", "benchmark", "shard")
    if missing := [name for name in needed if event.get(name) is None]:
        raise ValueError(f"{event['kind']} without {', '.join(missing)}")
    return event


# -- event stream ------------------------------------------------------------------------------------------------------
# Reads the events of a run as they are written: each call returns those that are new, of whole lines only, with the
# process that wrote them. A run of thousands of tasks has thousands of files, which are read once this way.


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
