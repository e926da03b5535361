"""The event log of a run: one file of JSON lines for each process, so that no lock is needed. A reader skips a line
that a lost node or a full disk has left incomplete.
"""

import errno
import json
import os
import socket
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Required, TypedDict

import msgspec

from mrt_hpc.run.atomic import make_folder
from mrt_hpc.run.retries import RetryPolicy, retry_action
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.typed_file import Moment, Whole


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
    THROWN = "groups thrown away"
    """Sampling groups in whose place other problems were sampled; divided by tokens, as branches are."""
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
    thrown_groups: Whole
    thrown_tokens: Whole


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
