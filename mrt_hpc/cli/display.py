"""Shows the progress of a local run: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from mrt_hpc.launch.run_progress import Progress, progress
from mrt_hpc.plan.jobs import Role

if TYPE_CHECKING:
    from types import TracebackType

    from mrt_hpc.launch.backend import RunningHere
    from mrt_hpc.run.layout import RunLayout

LOOK_EVERY_S = 0.5
"""The seconds between two checks of the run directory."""


class Display(ABC):
    """Shows a run's progress; use as a context manager."""

    def __init__(self, layout: RunLayout) -> None:
        self.layout = layout
        self._next_look = 0.0

    @staticmethod
    def of(terminal: bool, layout: RunLayout) -> Display:
        """Bars where there is a terminal, lines where there is none."""
        return BarDisplay(layout) if terminal else LineDisplay(layout)

    def show(self, run: RunningHere) -> None:
        """Read the progress once, unless it was just read and tasks still run."""
        if time.monotonic() < self._next_look and run.roles:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        self.update(progress(run.plan, self.layout), doing(run))

    @abstractmethod
    def update(self, now: Progress, doing: str) -> None:
        """Show the progress of one moment."""

    def __enter__(self) -> Display:
        return self

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the display."""


class LineDisplay(Display):
    """Prints a line for each change, with the time since the start."""

    def __init__(self, layout: RunLayout) -> None:
        super().__init__(layout)
        self._started = time.monotonic()
        self._last = ("", "", "")

    def update(self, now: Progress, doing: str) -> None:
        """Print a line where tasks, iterations or evaluations have changed."""
        said = (doing, iterations_text(now), evaluations_text(now))
        if said != self._last:
            self._last = said
            seconds = int(time.monotonic() - self._started)
            told = "; ".join(filter(None, (said[1], said[2], said[0])))
            print(f"[{seconds // 60:3d}:{seconds % 60:02d}] {told}", flush=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass  # lines need no end


class BarDisplay(Display):
    """Two bars, for iterations and evaluations."""

    def __init__(self, layout: RunLayout) -> None:
        super().__init__(layout)
        self._bars = Bars(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=Console(),
        )
        self._training = self._bars.add_task("iterations", total=None, note="")
        self._evaluating = self._bars.add_task("evaluations", total=None, note="")

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def update(self, now: Progress, doing: str) -> None:
        """Move the bars."""
        reward = "" if now.reward is None else f"reward {now.reward:.2f}; "
        note = collection_text(now) + reward + doing
        trains = now.iterations > 0
        self._bars.update(
            self._training, total=now.iterations, completed=now.iterations_done, note=note, visible=trains
        )
        note = "" if trains else doing
        self._bars.update(self._evaluating, total=now.evaluations, completed=now.evaluations_done, note=note)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()


def doing(run: RunningHere) -> str:
    """The roles that are running, and the number of tasks of each."""
    counts = {role: run.roles.count(role) for role in Role}
    busy = [f"{role} x{count}" if count > 1 else str(role) for role, count in counts.items() if count]
    return ("running " + ", ".join(busy) if busy else "nothing runs") + (f"; {run.failed} FAILED" if run.failed else "")


def iterations_text(now: Progress) -> str:
    """Iterations done, and the reward of the last; empty for an evaluation on its own, which has none."""
    if not now.iterations:
        return ""
    reward = "" if now.reward is None else f", reward {now.reward:.2f}"
    return f"iteration {now.iterations_done}/{now.iterations}{reward}"


def collection_text(now: Progress) -> str:
    """The progress of the collection before the next iteration; empty if there is none."""
    if now.groups_collected is None:
        return ""
    return f"{now.groups_collected} groups collected; "


def evaluations_text(now: Progress) -> str:
    """Evaluations done."""
    return f"evaluations {now.evaluations_done}/{now.evaluations}"
