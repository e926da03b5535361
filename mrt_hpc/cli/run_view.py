"""Shows a run on the terminal: one picture of it, a live display of pictures, or a line for each change."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mrt_hpc.backends.backend import QueueState
from mrt_hpc.backends.queued_jobs import QueueLook
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_look import ENDED, NO_QUEUES, RunState
from mrt_hpc.view.snapshot import Evaluated, JobView, Measured, Snapshot, TaskView
from mrt_hpc.view.snapshot_reader import SnapshotReader

COLOURS = {
    RunState.RUNNING: "green",
    RunState.QUEUED: "yellow",
    RunState.WAITING: "yellow",
    RunState.FINISHED: "bold green",
    RunState.FAILED: "bold red",
    RunState.STOPPED: "red",
}
TASK_COLOURS = {
    TaskState.RUNNING: "green",
    TaskState.FAILED: "bold red",
    TaskState.RETRYING: "red",
    TaskState.STOPPED: "yellow",
    TaskState.GAVE_BACK: "yellow",
}
SHOWN_BY_RECORDS = frozenset({QueueState.RUNNING, QueueState.COMPLETED, QueueState.UNKNOWN})
"""The states in the queue that the records of the tasks show as well, or that say nothing."""
LOST = "lost"
"""The word for tasks whose record says that they run, and of which no attempt does."""
FAULTS, RESULTS, NEXT, NODES, JOBS, WHYS = 5, 4, 6, 3, 10, 3
"""How many faults, versions of a benchmark, coming events, nodes of a job, jobs and reasons are shown."""
LABELS, NUMBERS = 13, 25
"""The widths of the columns beside bars and sparklines."""
BLOCKS = "▁▂▃▄▅▆▇█"
"""The marks of a sparkline."""
NARROW = 80
"""The number of columns below which what is only nice to know is left out."""


def view(run: Snapshot, width: int, *, everything: bool = False) -> RenderableType:
    """A run as the terminal shows it, no wider than the terminal.

    Args:
        run: at this moment.
        width: of the terminal, columns.
        everything: whether all jobs are shown, with their ids, and reasons in full: a live view has few lines.
    """
    parts: list[RenderableType] = [_head(run), _progress(run, width)]
    for title, part in (
        ("jobs", _jobs(run, width, everything=everything)),
        ("next", _next(run)),
        ("evaluations", _results(run)),
        ("faults and resumes", _faults(run)),
    ):
        if part is not None:
            parts += [Rule(title, align="left", style="dim"), part]
    return Group(*parts)


def _head(run: Snapshot) -> RenderableType:
    line = Text.assemble((run.name, "bold"), f" ({run.kind})  ", (run.state.value, COLOURS[run.state]))
    here = "" if run.process is None else f"  process {run.process} of this machine"
    line.append(f"  {run.run}  {moment(run.time, run.time)}{here}", style="dim")
    for name, why in run.unreached.items():
        line.append(f"\nthe queue was not reached ({name}: {why}): all else is from the run's files", style="yellow")
    for sentence in (*run.unreadable, *(f"warning: {warning}" for warning in run.warnings)):
        line.append(f"\n{sentence}", style="yellow")
    return line


def _progress(run: Snapshot, width: int) -> RenderableType:
    """Bars, sparklines and throughput, a line each."""
    room = max(10, width - LABELS - NUMBERS)
    grid = Table.grid()
    grid.add_column(no_wrap=True, width=LABELS)
    grid.add_column(no_wrap=True, width=room)
    grid.add_column(no_wrap=True, width=NUMBERS)
    done = run.iterations
    if done.planned:
        each = "" if done.seconds is None else f", {duration(done.seconds)} each"
        bar = ProgressBar(done.planned, done.done, width=room - 2)
        grid.add_row("iterations", bar, f"{done.done}/{done.planned}{each}")
    if done.groups_done is not None and done.groups_planned is not None:
        bar = ProgressBar(done.groups_planned, done.groups_done, width=room - 2)
        grid.add_row("groups", bar, f"{done.groups_done}/{done.groups_planned}")
    elif done.groups_done is not None:
        grid.add_row("collection", "", f"{done.groups_done} groups")
    if run.evaluations.planned:
        bar = ProgressBar(run.evaluations.planned, run.evaluations.done, width=room - 2)
        grid.add_row("evaluations", bar, f"{run.evaluations.done}/{run.evaluations.planned} tasks")
    for name in ("reward", "progress"):
        if series := _series(run.measured, name):
            values = f"{series[-1]:.3f} ({min(series):.3f} to {max(series):.3f})"  # the last, and the extremes of all
            grid.add_row(name, Text(sparkline(series, room - 2), style="cyan"), values)
    rates = Text(f"{'tokens/s':{LABELS}}{tokens}") if (tokens := _rates(run)) else None
    return grid if rates is None else Group(grid, rates)


def _series(measured: Iterable[Measured], name: str) -> list[float]:
    return [value for iteration in measured if (value := getattr(iteration, name)) is not None]


def _rates(run: Snapshot) -> str:
    rates = run.throughput
    named = {
        "sampling": rates.sampling,
        "waits included": rates.whole,
        "training": rates.training,
        "evaluation": rates.evaluation,
    }
    return ", ".join(f"{name} {rate:,.0f}" for name, rate in named.items() if rate is not None)


def _jobs(run: Snapshot, width: int, *, everything: bool) -> RenderableType:
    """What runs, is queued, was stopped or has failed of each job; the other jobs are counted, or shown as well."""
    tasks: dict[str, list[TaskView]] = {}
    for task in run.tasks:
        tasks.setdefault(task.job, []).append(task)
    busy = [job for job in run.jobs if everything or job.name in tasks or _waits(job)]
    shown = [(job, tasks.get(job.name, [])) for job in (busy if everything else busy[:JOBS])]
    parts: list[RenderableType] = []
    if shown:
        parts.append(_job_table(run, shown, ids=everything) if width >= NARROW else _job_lines(shown))
    rest = "" if everything else _others(run.jobs, busy)
    return Group(*parts, *_whys(run, everything=everything), *([Text(rest, style="dim")] if rest else []))


def _job_table(run: Snapshot, jobs: Sequence[tuple[JobView, list[TaskView]]], *, ids: bool) -> Table:
    """A line for each job."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("job", no_wrap=True)
    for column in ("tasks", "weights", "nodes"):
        table.add_column(column, overflow="fold")
    left = {job.name: _left(run, mine) for job, mine in jobs}
    limited, ids = any(left.values()), ids and any(job.ids for job, _ in jobs)
    if limited:
        table.add_column("time left", justify="right", no_wrap=True)
    if ids:
        table.add_column("job ids", overflow="fold")
    for job, mine in jobs:
        cells: list[RenderableType] = [job.name, _states(job, mine), _versions(mine), _nodes(mine)]
        table.add_row(*cells, *([left[job.name]] if limited else []), *([", ".join(job.ids)] if ids else []))
    return table


def _job_lines(jobs: Sequence[tuple[JobView, list[TaskView]]]) -> Group:
    """Two lines for each job, for a narrow terminal."""
    lines: list[Text] = []
    for job, mine in jobs:
        places = "  ".join(filter(None, (_versions(mine), _nodes(mine))))
        lines += [Text(f"{job.name}  {places}".rstrip()), Text.assemble("  ", _states(job, mine))]
    return Group(*lines)


def _whys(run: Snapshot, *, everything: bool) -> list[Text]:
    """Why tasks wait for room on the disk or have failed, the latest last, once for all tasks of a job: the first lines
    of the last few reasons. With ``everything``, all reasons in full, and those of tasks that were stopped as well.
    """
    shown = {TaskState.FAILED, TaskState.RETRYING, *((TaskState.STOPPED, TaskState.GAVE_BACK) if everything else ())}
    reasons: dict[tuple[str, str, str], list[TaskView]] = {}
    for task in sorted(run.tasks, key=lambda task: task.since):
        state, why = ("paused", task.paused) if task.paused else (_word(task), task.reason.strip())
        if task.paused or (why and task.state in shown):
            reasons.setdefault((task.job, state, why if everything else why.partition("\n")[0]), []).append(task)
    lines = []
    for (job, state, why), tasks in list(reasons.items())[0 if everything else -WHYS :]:
        which = f"[{tasks[0].index}]" if len(tasks) == 1 else f" ({len(tasks)} tasks)"
        times = max(task.failures for task in tasks)
        tries = f", {times} failure(s)" if times and everything else ""
        line = Text.assemble((f"{job}{which} {state}{tries}: ", _colour(tasks[0])), why)
        if not everything:
            line.truncate(160, overflow="ellipsis")
        lines.append(line)
    return lines


def _word(task: TaskView) -> str:
    """The state of a task; the record of a lost one says forever that it runs."""
    return LOST if task.state is TaskState.RUNNING and not task.alive else task.state.value


def _colour(task: TaskView) -> str:
    return "red" if _word(task) == LOST else TASK_COLOURS.get(task.state, "")


def _waits(job: JobView) -> bool:
    return any(part.state in ("pending", "running") for part in job.queue)


def _states(job: JobView, tasks: Sequence[TaskView]) -> Text:
    """The states of a job's tasks, those of the run's records first, and then what the queue says of the others."""
    words = Counter((_word(task), _colour(task)) for task in tasks)
    words["done", "dim"] += job.states.get(TaskState.DONE, 0)
    for part in job.queue:
        if part.state == QueueState.PENDING:
            words[f"queued ({part.reason})" if part.reason else "queued", "yellow"] += part.tasks
        elif part.state not in SHOWN_BY_RECORDS:
            words[f"{part.state} in the queue", "red"] += part.tasks
    if all(part.state != QueueState.PENDING for part in job.queue):
        words["waiting", "dim"] += job.states.get(TaskState.WAITING, 0)
    return Text(", ").join(Text(f"{count} {word}", style=colour) for (word, colour), count in words.items() if count)


def _versions(tasks: Sequence[TaskView]) -> str:
    """The weights versions of running tasks."""
    versions = sorted({task.weights_version for task in tasks if task.alive and task.weights_version is not None})
    if not versions:
        return ""
    return f"v{versions[0]}" if len(versions) == 1 else f"v{versions[0]}..v{versions[-1]}"


def _nodes(tasks: Sequence[TaskView]) -> str:
    """The nodes of running tasks, the first few of them."""
    nodes = list(dict.fromkeys(task.node for task in tasks if task.alive and task.node))
    more = f" +{len(nodes) - NODES}" if len(nodes) > NODES else ""
    return ", ".join(nodes[:NODES]) + more


def _left(run: Snapshot, tasks: Sequence[TaskView]) -> str:
    """The time to the first time limit of running tasks."""
    ends = [task.ends_at for task in tasks if task.ends_at is not None]
    return duration(max(0.0, min(ends) - run.time)) if ends else ""


def _others(jobs: Sequence[JobView], busy: Sequence[JobView]) -> str:
    """How many of the other jobs are done, and how many wait."""
    shown = {job.name for job in busy}
    others = [job for job in jobs if job.name not in shown]
    done = sum(set(job.states) == {TaskState.DONE} for job in others)
    waiting = len(others) - done
    parts = [f"{len(busy) - JOBS} more job(s) like these"] if len(busy) > JOBS else []
    if done:
        parts.append(f"{done} job(s) done")
    if waiting:
        parts.append(f"{waiting} job(s) not begun")
    return ", ".join(parts)


def _pairs(style: str = "") -> Table:
    """A grid of two columns, a word or a time beside a text."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style=style)
    grid.add_column(overflow="fold")
    return grid


def _results(run: Snapshot) -> RenderableType | None:
    """The accuracy of each benchmark: of the first version that was evaluated, and the last few."""
    by_benchmark: dict[str, list[Evaluated]] = {}
    for result in run.evaluations.results:
        by_benchmark.setdefault(result.benchmark, []).append(result)
    if not by_benchmark:
        return None
    grid = _pairs()
    for benchmark, results in by_benchmark.items():
        shown = results if len(results) <= RESULTS else [results[0], *results[1 - RESULTS :]]
        grid.add_row(benchmark, Text(", ").join(map(_result, shown)))
    return grid


def _result(result: Evaluated) -> Text:
    half = 100 * (result.high - result.low) / 2
    return Text.assemble((f"v{result.version} ", "dim"), f"{100 * result.accuracy:.1f} %", (f" ±{half:.1f}", "dim"))


def _faults(run: Snapshot) -> RenderableType | None:
    if not run.faults:
        return None
    grid = _pairs(style="dim")
    for fault in run.faults[-FAULTS:]:
        detail = f"  {fault.detail}" if fault.detail else ""
        text = Text.assemble(fault.what, (f"  {fault.task}", "cyan"), (detail, "dim"))
        text.truncate(160, overflow="ellipsis")
        grid.add_row(moment(fault.time, run.time), text)
    counts = ", ".join(f"{count} x {what}" for what, count in run.fault_counts.items())
    return Group(grid, Text(f"in all: {counts}", style="dim"))


def _next(run: Snapshot) -> RenderableType | None:
    grid = _pairs(style="dim")
    for event in run.upcoming[:NEXT]:
        grid.add_row("" if event.at is None else moment(event.at, run.time), event.what)
    if run.expected_end is not None:
        what = "training" if run.iterations.planned else "the evaluation"
        grid.add_row(moment(run.expected_end, run.time), f"{what} is expected to end, if nothing interrupts it")
    return grid if grid.row_count else None


# -- numbers and times as text


def sparkline(series: Sequence[float], width: int) -> str:
    """A block for each number, the lowest for the minimum and the highest for the maximum of the series. A series that
    is longer than the width is cut into as many parts, and each block shows the mean of its part.

    Args:
        series: finite numbers.
        width: the most columns.
    """
    means = _means(series, width)
    if not means:
        return ""
    low, high = min(means), max(means)
    if high == low:
        return BLOCKS[len(BLOCKS) // 2] * len(means)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in means)


def _means(series: Sequence[float], width: int) -> list[float]:
    """The means of equal parts of a series, no more than the width."""
    parts = min(len(series), width)
    bounds = [len(series) * part // parts for part in range(parts + 1)] if parts else []
    return [sum(series[a:b]) / (b - a) for a, b in pairwise(bounds)]


def duration(seconds: float) -> str:
    """A duration in words: ``45 s``, ``8:20 min``, ``2:05 h``, ``3.2 days``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    if seconds < 48 * 3600:
        return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d} h"
    return f"{seconds / 86400:.1f} days"


def moment(at: float, now: float) -> str:
    """A moment by the clock of this machine; with the day where it is not today."""
    there, here = time.localtime(at), time.localtime(now)
    same_day = there[:3] == here[:3]
    near = "%H:%M:%S" if abs(at - now) < 3600 else "%H:%M"
    return time.strftime(near if same_day else "%a %d %b %H:%M", there)


# -- display -----------------------------------------------------------------------------------------------------------
# Shows a run while it goes on, one snapshot after the other: ``status --watch``, and a run on this machine.


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._look()


class LiveDisplay(Display):
    """The view of the run, which a terminal shows in its place."""

    def __enter__(self) -> Self:
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

    def __enter__(self) -> Self:
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
