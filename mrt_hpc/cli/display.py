"""Shows a run while it goes on, one snapshot after the other: ``status --watch``, and a run on this machine."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live

from mrt_hpc.backends.queued_jobs import QueueLook
from mrt_hpc.cli.run_view import view
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_look import ENDED, NO_QUEUES, RunState
from mrt_hpc.view.snapshot import Snapshot
from mrt_hpc.view.snapshot_reader import SnapshotReader

LOOK_EVERY_S = 2.0
"""The seconds between two looks at the run directory."""
SHARE_OF_TIME = 0.05
"""The largest share of the time that looks may take: those at a run of thousands of tasks are further apart."""


class Display(ABC):
    """Shows a run; use as a context manager, at whose end the run is shown once more."""

    def __init__(self, layout: RunLayout, queues: Callable[[], QueueLook] = lambda: NO_QUEUES) -> None:
        self.reader = SnapshotReader.of(layout, read_plan(layout.plan))
        self.queues = queues
        self.state = RunState.RUNNING
        self._next_look = 0.0

    def look(self) -> None:
        """Show the run as it is now, unless that was just done."""
        if time.monotonic() >= self._next_look:
            self._look()

    def has_ended(self) -> bool:
        """Show the run as ``look`` does, and return whether it has ended."""
        self.look()
        return self.state in ENDED

    def _look(self) -> None:
        began = time.monotonic()
        snapshot = self.reader.read(self.queues())
        self.show(snapshot)
        self.state = snapshot.state
        now = time.monotonic()
        self._next_look = now + max(LOOK_EVERY_S, (now - began) / SHARE_OF_TIME)

    @abstractmethod
    def show(self, run: Snapshot) -> None:
        """Show one snapshot."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._look()


class LiveDisplay(Display):
    """The view of the run, which a terminal shows in its place."""

    def __enter__(self) -> Display:
        self._live = Live(console=Console(), auto_refresh=False, vertical_overflow="ellipsis")
        self._live.start()
        return self

    def show(self, run: Snapshot) -> None:
        """Replace the frame on the terminal."""
        self._live.update(view(run, self._live.console.width), refresh=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            super().__exit__(kind, error, at)
        finally:
            self._live.stop()


class LineDisplay(Display):
    """A line for each change, with the time since the start."""

    def __enter__(self) -> Display:
        self._started, self._last = time.monotonic(), ""
        return self

    def show(self, run: Snapshot) -> None:
        """Print a line where tasks, iterations or evaluations have changed."""
        line = one_line(run)
        if line != self._last:
            self._last = line
            seconds = int(time.monotonic() - self._started)
            print(f"[{seconds // 60:3d}:{seconds % 60:02d}] {line}", flush=True)


def one_line(run: Snapshot) -> str:
    """The progress of a run, and the roles of its running tasks, in one line."""
    trained, evaluations = run.iterations, run.evaluations
    reward = run.measured[-1].reward if run.measured else None
    running = Counter(task.role for task in run.tasks if task.alive)
    failed = sum(job.states.get(TaskState.FAILED, 0) for job in run.jobs)
    parts = [
        f"iterations done {trained.done}/{trained.planned}" if trained.planned else "",
        "" if reward is None else f"reward {reward:.2f}",
        f"evaluations {evaluations.done}/{evaluations.planned}",
        "running " + ", ".join(f"{role} x{count}" if count > 1 else role for role, count in running.items())
        if running
        else "nothing runs",
        f"{failed} FAILED" if failed else "",
    ]
    return "; ".join(filter(None, parts))
