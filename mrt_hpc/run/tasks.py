"""The state of every array task, as a file of its own: what a peer, a backend and ``status`` look at.

A task writes its own file; a backend that sees a task die without a word writes ``failed`` for it. ``done`` is final: a
task that is done is never started again.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from mrt_hpc.run.atomic import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout


class TaskState(StrEnum):
    """Where an array task stands."""

    WAITING = "waiting"
    """Not started yet."""
    RUNNING = "running"
    """An attempt is under way, or was when its node was lost."""
    DONE = "done"
    """Nothing is left to do."""
    FAILED = "failed"
    """The last attempt ended with an error."""
    STOPPED = "stopped"
    """The last attempt was stopped from outside; running again goes on."""


@dataclass(frozen=True)
class TaskRecord:
    """The latest word on one array task."""

    state: TaskState
    attempt: str = ""
    message: str = ""
    """The error, where there was one."""
    time: float = 0.0
    """Seconds since the epoch, by the writer's clock."""


def task_file(layout: RunLayout, job: str, index: int) -> Path:
    """Where the state of one task stands."""
    return layout.root / "tasks" / job / f"{index:05d}.json"


def write_task(layout: RunLayout, job: str, index: int, state: TaskState, *, attempt: str, message: str = "") -> None:
    """Replace the state of one task."""
    record = TaskRecord(state, attempt, message, time.time())
    write_json(task_file(layout, job, index), asdict(record))


def read_task(layout: RunLayout, job: str, index: int) -> TaskRecord:
    """The state of one task; WAITING when nothing was written yet."""
    try:
        content = json.loads(task_file(layout, job, index).read_text())
    except FileNotFoundError:
        return TaskRecord(TaskState.WAITING)
    return TaskRecord(**{**content, "state": TaskState(content["state"])})
