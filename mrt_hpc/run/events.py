"""The event log: what each process of a run did, a line of JSON an event, a file a process.

Nobody shares a file, so nothing needs a lock; a reader takes all files together and sorts by time. A line cut short by
a lost node is the last of its file and is passed over by the reader.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class EventKind(StrEnum):
    """What happened."""

    TASK_STARTED = "task_started"
    """An attempt at an array task began."""
    TASK_ENDED = "task_ended"
    """An attempt ended; ``outcome`` says how."""
    SHARD_COMMITTED = "shard_committed"
    """A shard of rollouts or of an evaluation is complete."""
    SHARD_DISCARDED = "shard_discarded"
    """A shard came second and was dropped."""
    WEIGHTS_LOADED = "weights_loaded"
    """A server took a weights version in place."""
    STEP = "step"
    """An update of one iteration was computed."""
    CHECKPOINT = "checkpoint"
    """A checkpoint is complete."""
    RESUMED = "resumed"
    """The trainer went on from a checkpoint."""
    PUBLISHED = "published"
    """A weights version is complete."""
    SET_ASIDE = "set_aside"
    """Files that lie after the checkpoint resumed from were moved away; ``reason`` says why."""
    SERVER_STARTED = "server_started"
    """A vLLM server answers."""
    SERVER_RESTARTED = "server_restarted"
    """A vLLM server had died and answers again."""
    GRADING = "grading"
    """Answers that hung or could not be read."""


PROGRESS = frozenset({EventKind.SHARD_COMMITTED, EventKind.CHECKPOINT, EventKind.PUBLISHED})
"""What stays when the attempt that did it is lost."""


@dataclass
class EventLog:
    """The events of one process. Open once, emit often; every line reaches the file at once."""

    path: Path
    progressed: bool = field(default=False, init=False)
    """Whether something was done that stays."""
    _stream: IO[str] | None = field(default=None, repr=False)

    def emit(self, kind: EventKind, **fields: Any) -> None:
        """Append one event with the time of this node's clock."""
        self.progressed = self.progressed or kind in PROGRESS
        if self._stream is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self.path.open("a", encoding="utf-8")
        line = {"time": time.time(), "kind": kind.value, "host": socket.gethostname(), "pid": os.getpid(), **fields}
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def event_file(directory: Path, job: str, index: int, rank: int, attempt: str) -> Path:
    """Where one process of an attempt at a task writes its events."""
    return directory / f"{job}.{index:05d}.{rank}.{attempt}.jsonl"


def has_progressed(path: Path) -> bool:
    """Whether the process that wrote these events had done something that stays."""
    return any(event["kind"] in PROGRESS for event in _events(path))


def read_events(directory: Path, kind: EventKind | None = None) -> list[dict[str, Any]]:
    """All events of a run (of one kind), by time."""
    paths = sorted(directory.glob("*.jsonl")) if directory.is_dir() else []
    wanted = [e for path in paths for e in _events(path) if kind is None or e["kind"] == kind]
    return sorted(wanted, key=lambda e: e["time"])


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of one process; a line without its end was being written when the node was lost."""
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)
