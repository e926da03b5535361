"""The event log of a run: each process has its own file, with one line of JSON for each event. No two processes share a
file, so no lock is needed; a reader takes all files together and sorts by time. The reader skips a line that a lost
node or a full disk has left incomplete.
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
from mrt_hpc.run.retries import RetryPolicy, retrying
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.typed_file import Moment, Whole

# -- uses --------------------------------------------------------------------------------------------------------------
# The uses of the time of a task, as its events record them.


class Use(StrEnum):
    """What the time of a task is used for. The values are the words of tables and events."""

    STARTING = "starting"
    """The time from the start of the job to the first work: imports, the vLLM server, the model and its optimiser."""
    PREPARING = "preparing"
    """The checks of the first job, and weights version 0."""
    LOADING = "loading"
    """Loading weights into the server, or rollouts into the trainer."""
    GENERATING = "generating"
    """Sampling traces, and grading them."""
    BRANCHING = "branching"
    """Sampling the prover's branches. They share the server with the traces, so the time of both is divided by the
    tokens that were sampled for each.
    """
    TRAINING = "training"
    """Forward, backward and update."""
    SAVING = "saving"
    """Writing weights versions and checkpoints."""
    REPORTING = "reporting"
    """Writing the report."""
    WAITING = "waiting for a peer"
    """Waiting for another task: for a weights version, for rollouts, or for samples."""
    ENDING = "ending"
    """The time from the last work to the end of the job."""
    LOST = "lost to preemption or failure"
    """Work of an attempt that did not end well, since its last result that stays."""
    UNACCOUNTED = "unaccounted"
    """Time of which nothing is known."""


class EventKind(StrEnum):
    """What happened."""

    TASK_STARTED = "task_started"
    """An attempt at an array task began."""
    TASK_ENDED = "task_ended"
    """An attempt ended with ``outcome``."""
    PART_COMMITTED = "part_committed"
    """A problem of an evaluation's shard."""
    GROUP_COMMITTED = "group_committed"
    """A group of an iteration is complete."""
    GROUP_DISCARDED = "group_discarded"
    """A group came second and was dropped."""
    SHARD_COMMITTED = "shard_committed"
    """A shard of an evaluation is complete."""
    SHARD_DISCARDED = "shard_discarded"
    """A shard of an evaluation, or a part of it, came second and was dropped."""
    WEIGHTS_LOADED = "weights_loaded"
    """A server took a weights version in place."""
    STEP = "step"
    """An update of one iteration was computed."""
    STEP_SKIPPED = "step_skipped"
    """An optimiser step was not taken, as its loss or gradient was not finite; ``file`` holds its sequences."""
    CHECKPOINT = "checkpoint"
    """A checkpoint is complete."""
    RESUMED = "resumed"
    """The trainer continued from a checkpoint."""
    PUBLISHED = "published"
    """A weights version is complete."""
    SET_ASIDE = "set_aside"
    """Files that lie after the checkpoint resumed from were moved away; ``reason`` says why."""
    SERVER_STARTED = "server_started"
    """A vLLM server answers, ``seconds`` after it was given the model, or first asked."""
    FIRST_TOKEN = "first_token"
    """The first token of an attempt was sampled, ``seconds`` after the attempt began."""
    SERVER_RESTARTED = "server_restarted"
    """A vLLM server had died and answers again."""
    RECIPE_CHANGED = "recipe_changed"
    """A submission changed fields of the run's recipe; ``changes`` names them with their old and new values."""
    GRADING = "grading"
    """Answers that hung or could not be read."""
    USE = "use"
    """The time of the task is used for ``use`` from now on; an attempt begins with starting."""
    ALLOCATION_ENDED = "allocation_ended"
    """The job script of ``attempt`` ends; it writes this itself."""


class _Earlier(TypedDict):
    """The last sign of life of the attempt before."""

    attempt: str
    until: Moment


class _Known(TypedDict, total=False):
    """The fields of events that readers know; an event may have more."""

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
    rollout_tokens: Whole
    branch_tokens: Whole


_NEEDED = {
    EventKind.TASK_STARTED: ("job", "task", "rank", "attempt"),
    EventKind.TASK_ENDED: ("outcome",),
    EventKind.ALLOCATION_ENDED: ("attempt",),
    EventKind.USE: ("use",),
    EventKind.PUBLISHED: ("version",),
}
"""The fields without which an event of a kind says nothing."""
PROGRESS = frozenset(
    {EventKind.GROUP_COMMITTED, EventKind.PART_COMMITTED, EventKind.SHARD_COMMITTED, EventKind.CHECKPOINT}
)
"""The events whose results stay when the attempt is lost; a weights version newer than its checkpoint does not stay."""


@dataclass
class EventLog:
    """The events of one process. Open once, emit often; every line reaches the file at once."""

    path: Path
    patience: RetryPolicy = field(default_factory=RetryPolicy)
    """How long the task waits for a full disk, as its recipe allows."""
    _descriptor: int | None = field(default=None, init=False, repr=False)
    _torn: bool = field(default=False, init=False, repr=False)
    """Whether a full disk has left part of a line."""
    _use: Use = field(default=Use.STARTING, init=False, repr=False)
    _emitted: set[EventKind] = field(default_factory=set, init=False, repr=False)

    def has_emitted(self, kind: EventKind) -> bool:
        """Whether this process has emitted an event of a kind."""
        return kind in self._emitted

    def spend(self, use: Use) -> None:
        """Record that the time is used for something else from now on; the same use again writes nothing.

        Raises:
            UserError: the disk stayed full.
        """
        if use is not self._use:
            self._use = use
            self.emit(EventKind.USE, use=use.value)

    def emit(self, kind: EventKind, **fields: Any) -> None:
        """Append one event with the time of this node's clock; on a full disk, wait for room.

        Raises:
            UserError: the disk stayed full.
            ValueError: a field would hide when or by whom it was emitted.
        """
        emitter = {"time": time.time(), "kind": kind.value, "host": socket.gethostname(), "pid": os.getpid()}
        if taken := emitter.keys() & fields.keys():
            raise ValueError(f"event {kind.value}: {sorted(taken)} describe its emitter")
        line = {**emitter, **fields}
        text = json.dumps(line).encode() + b"\n"
        self._emitted.add(kind)
        retrying(lambda: self._append(text), "an event", self.patience)

    def _append(self, text: bytes) -> None:
        """Write a line; after an incomplete line that a full disk has left, begin a new line first."""
        if self._descriptor is None:
            make_folder(self.path.parent)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        text = b"\n" + text if self._torn else text
        self._torn = os.write(self._descriptor, text) < len(text)
        if self._torn:
            raise OSError(errno.ENOSPC, "an event was cut short")


SUBMISSION = "submit"
"""Stands in the place of the job in the name of a file in which a submission writes its events."""


def event_file(directory: Path, job: str, index: int, rank: int, attempt: str) -> Path:
    """The file in which one process of an attempt writes its events."""
    return directory / f"{job}.{index:05d}.{rank}.{attempt}.jsonl"


def outcomes(directory: Path, job: str, index: int, attempt: str) -> set[str]:
    """The outcomes that the ranks of an attempt recorded."""
    events = _events_in(directory, f"{job}.{index:05d}.*.{attempt}.jsonl")
    return {str(event.get("outcome")) for event in events if event["kind"] == EventKind.TASK_ENDED}


def has_progressed(directory: Path, job: str, index: int, attempt: str) -> bool:
    """Whether an attempt has produced a result that stays, by the events of all its processes."""
    return any(event["kind"] in PROGRESS for event in _events_in(directory, f"{job}.{index:05d}.*.{attempt}.jsonl"))


def finished_parts(directory: Path, jobs: Sequence[str]) -> int:
    """The number of results that stay which the tasks of these jobs have produced; it never becomes smaller."""
    return sum(event["kind"] in PROGRESS for job in jobs for event in _events_in(directory, f"{job}.*.jsonl"))


def _events_in(directory: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """The events in all files whose names match a pattern, by time."""
    return (recorded.event for recorded in EventStream(directory, pattern=pattern).new())


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for one that a lost node or a full disk has left incomplete.

    Raises:
        ValueError: it is an event, and lacks a field of its kind, or has one of another type: it was damaged.
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


@dataclass
class EventStream:
    """The events of a run directory. A file whose process has ended is not looked at again."""

    directory: Path
    wanted: Callable[[bytes], bool] = lambda _: True
    """Whether a line is decoded; the last new one of a file always is. Of a run of thousands of tasks nearly all events
    are of one or two kinds, which few readers need one by one.
    """
    pattern: str = "*.jsonl"
    """The names of the files that are read."""
    _faults: dict[str, str] = field(default_factory=dict, init=False)
    """What is wrong with a file, or with its first damaged event, by its name."""
    _read: dict[str, int] = field(default_factory=dict, init=False)
    """Bytes read of each file, by its name."""
    _ended: set[str] = field(default_factory=set, init=False)
    """The names of the files that end with the end of an attempt."""

    def new(self) -> list[ProcessEvent]:
        """The events since the last call, by time.

        Raises:
            OSError: the folder or a file cannot be read, and it is not a temporary error.
        """
        return sorted(chain.from_iterable(self.new_by_process()), key=lambda event: event.time)

    def new_by_process(self) -> list[list[ProcessEvent]]:
        """The events since the last call of each process that has written some, in the order in which it wrote them.

        Raises:
            OSError: as for ``new``.
        """
        return [events for name in self._grown() if (events := list(self._new_of(name)))]

    @property
    def faults(self) -> list[str]:
        """A line for each file that is none, or that holds an event that was damaged."""
        return [f"{fault} ({self.directory / name})" for name, fault in sorted(self._faults.items())]

    def processes(self) -> list[Process]:
        """The processes whose events have been read."""
        return [process for name in self._read if (process := process_of(name)) is not None]

    def _grown(self) -> Iterator[str]:
        """The names of the files that may have new lines."""
        try:
            logs = retrying(lambda: _logs(self.directory, self.pattern), "listing the events")
        except FileNotFoundError:
            return
        for name in sorted(logs.keys() - self._ended):
            if logs[name]:
                yield name
            else:
                self._faults[name] = "the events of a process cannot be read: it is no file"

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
            self._faults.setdefault(name, f"an event is damaged, and is not counted: {faults[0]}")


def _logs(directory: Path, pattern: str) -> dict[str, bool]:
    """Whether each entry of the folder whose name matches is a file of events."""
    with os.scandir(directory) as entries:
        return {entry.name: is_log(entry) for entry in entries if fnmatchcase(entry.name, pattern)}


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
    events = (event for line in reversed(lines) if (event := _event(line, [])) is not None)
    return next((ProcessEvent(process_of(path.name), event) for event in events), None)


def process_of(name: str) -> Process | None:
    """The process that writes the event file of this name; None for one that is of no task."""
    match = _FILE.fullmatch(name)
    if match is None or match["job"] == SUBMISSION:
        return None
    return Process(match["job"], int(match["index"]), int(match["rank"]), match["attempt"])


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
