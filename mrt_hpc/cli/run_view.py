"""Shows a run on the terminal: one picture of it, a live display, or a line for each change."""

import sys
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mrt_hpc.backends.backend import QueueState
from mrt_hpc.backends.queued_jobs import QueueLook
from mrt_hpc.cli.terminal import FittedTable, Terminal, echo, table_of
from mrt_hpc.errors import line_of
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
"""The tasks' records show these as well, or they say nothing."""
LOST = "lost"
"""Tasks whose record says that they run, and of which no attempt does."""
STARTING = "starting"
"""Tasks that the queue has started, and that have recorded nothing yet."""
FAULTS, RESULTS, NEXT, NODES, JOBS, WHYS = 5, 4, 6, 3, 10, 3
"""How many of each are shown; nodes are of a job."""
LABELS, NUMBERS, LEAST_BAR = 13, 25, 10
"""Columns beside bars and sparklines, and the least of theirs."""
BLOCKS, PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", "_.,-~=+#"
"""Also for a terminal that has ASCII alone."""


def view(run: Snapshot, width: int, *, everything: bool = False) -> RenderableType:
    """No wider than ``width`` columns. With ``everything``, all jobs with their ids, and reasons in full: a live view
    has few lines.
    """
    parts: list[RenderableType] = [_head(run), _progress(run, width)]
    for title, part in (
        ("jobs", _jobs(run, everything=everything)),
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
    line.append(f"  {line_of(run.run)}  {moment(run.time, run.time)}{here}", style="dim")
    for name, why in run.unreached.items():
        line.append(f"\nthe queue was not reached ({name}: {why}): all else is from the run's files", style="yellow")
    for sentence in (*run.unreadable, *(f"warning: {warning}" for warning in run.warnings)):
        line.append(f"\n{sentence}", style="yellow")
    return line


def _progress(run: Snapshot, width: int) -> RenderableType:
    """A narrow terminal has no room for bars."""
    room = width - LABELS - NUMBERS
    grid, bars = Table.grid(), room > LEAST_BAR
    for columns in (LABELS, *([room] if bars else []), NUMBERS):
        grid.add_column(width=columns)

    def add(name: str, bar: RenderableType, numbers: str) -> None:
        grid.add_row(name, *([bar] if bars else []), numbers)

    def add_share(name: str, done: int, planned: int, more: str = "") -> None:
        add(name, ProgressBar(planned, done, width=room - 2), f"{done}/{planned}{more}")

    done = run.iterations
    if done.planned:
        each = "" if done.seconds is None else f", {duration(done.seconds)} each"
        add_share("iterations", done.done, done.planned, each)
    if done.groups_done is not None and done.groups_planned is not None:
        add_share("groups", done.groups_done, done.groups_planned)
    elif done.groups_done is not None:
        add("collection", "", f"{done.groups_done} groups")
    if run.evaluations.planned:
        add_share("evaluations", run.evaluations.done, run.evaluations.planned, " tasks")
    for name in ("reward", "progress"):
        if series := _series(run.measured, name):
            values = f"{series[-1]:.3f} ({min(series):.3f} to {max(series):.3f})"  # the last, and the extremes of all
            add(name, Sparkline(series, room - 2), values)
    rates = Text(f"{'tokens/s':{LABELS}}{tokens}") if (tokens := _rates(run)) else None
    return grid if rates is None else Group(grid, rates)


def _series(measured: Iterable[Measured], name: str) -> list[float]:
    return [value for iteration in measured if (value := getattr(iteration, name)) is not None]


def _rates(run: Snapshot) -> str:
    words = {"sampling": "sampling", "whole": "waits included", "training": "training", "evaluation": "evaluation"}
    rates = ((word, getattr(run.throughput, name)) for name, word in words.items())
    return ", ".join(f"{word} {rate:,.0f}" for word, rate in rates if rate is not None)


def _jobs(run: Snapshot, *, everything: bool) -> RenderableType:
    """Jobs with tasks that run, are queued, were stopped or have failed; the others are counted, or shown as well."""
    tasks: dict[str, list[TaskView]] = {}
    for task in run.tasks:
        tasks.setdefault(task.job, []).append(task)
    busy = [job for job in run.jobs if everything or job.name in tasks or _waits(job)]
    shown = [(job, tasks.get(job.name, [])) for job in (busy if everything else busy[:JOBS])]
    table = [_job_table(run, shown, ids=everything)] if shown else []
    rest = "" if everything else _others(run.jobs, busy)
    return Group(*table, *_whys(run, everything=everything), *([Text(rest, style="dim")] if rest else []))


def _job_table(run: Snapshot, jobs: Sequence[tuple[JobView, list[TaskView]]], *, ids: bool) -> FittedTable:
    left = {job.name: _time_left(run, mine) for job, mine in jobs}
    limited, ids = any(left.values()), ids and any(job.ids for job, _ in jobs)
    more = [*(["time left"] if limited else []), *(["job ids"] if ids else [])]
    table = table_of(None, "job", "tasks", "weights", "nodes", *more, right=["time left"], bare=True)
    for job, mine in jobs:
        more = [*([left[job.name]] if limited else []), *([", ".join(job.ids)] if ids else [])]
        table.add_row(job.name, _states(job, mine), _versions(mine, run.evaluations.models), _nodes(mine), *more)
    return table


def _whys(run: Snapshot, *, everything: bool) -> list[Text]:
    """Why running tasks cannot go on or tasks have failed, the latest last, once for each job: the first lines of the
    last few. With ``everything``, all reasons in full, and those of stopped tasks.
    """
    shown = {TaskState.FAILED, TaskState.RETRYING, *((TaskState.STOPPED, TaskState.GAVE_BACK) if everything else ())}
    reasons: dict[tuple[str, str, str], list[TaskView]] = {}
    for task in sorted(run.tasks, key=lambda task: task.since):
        state, why = ("held up", task.paused) if task.paused else (_word(task), task.reason.strip())
        if task.paused or (why and (task.state in shown or task.failures)):
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
    """The record of a lost task says forever that it runs; one that starts has no record yet."""
    if task.state is TaskState.WAITING and task.alive:
        return STARTING
    return LOST if task.state is TaskState.RUNNING and not task.alive else task.state.value


def _colour(task: TaskView) -> str:
    return "red" if _word(task) == LOST else TASK_COLOURS.get(task.state, "")


def _waits(job: JobView) -> bool:
    return any(part.state in ("pending", "running") for part in job.queue)


def _states(job: JobView, tasks: Sequence[TaskView]) -> Text:
    """Each task counted once: as its record and the queue say it, or the queue alone."""
    words = Counter((_words(task), _colour(task)) for task in tasks)
    words["done", "dim"] += job.states.get(TaskState.DONE, 0)
    listed = Counter((task.queue_state, task.queue_reason) for task in tasks)
    waiting = job.states.get(TaskState.WAITING, 0) - sum(task.state is TaskState.WAITING for task in tasks)
    for part in job.queue:
        count = part.tasks - listed[part.state, part.reason]
        if count > 0 and part.state not in SHOWN_BY_RECORDS:
            is_queued = part.state == QueueState.PENDING
            words[_queue_text(part.state, part.reason), "yellow" if is_queued else "red"] += count
            waiting -= count
    words["waiting", "dim"] += waiting
    return Text(", ").join(Text(f"{count} {word}", style=colour) for (word, colour), count in words.items() if count)


def _words(task: TaskView) -> str:
    word = _word(task)
    if task.alive:  # also one whose record has the end of an attempt: it leaves the queue, or has just started again
        ended = task.state not in (TaskState.RUNNING, TaskState.WAITING)
        return f"{word} and running in the queue" if ended else word
    if not task.queue_state or task.queue_state in (*SHOWN_BY_RECORDS, word):
        return word
    return f"{word} and {_queue_text(task.queue_state, task.queue_reason)}"


def _queue_text(state: str, reason: str) -> str:
    queued = f"queued ({reason})" if reason else "queued"
    return queued if state == QueueState.PENDING else f"{state} in the queue"


def _versions(tasks: Sequence[TaskView], models: Sequence[str]) -> str:
    at_work = [task for task in tasks if task.alive and task.state is TaskState.RUNNING]
    versions = sorted({task.weights_version for task in at_work if task.weights_version is not None})
    names = [_version(version, models) for version in versions]
    return ", ".join(names) if models or len(names) < 2 else f"{names[0]}..{names[-1]}"


def _version(number: int, models: Sequence[str]) -> str:
    return models[number] if models else f"v{number}"


def _nodes(tasks: Sequence[TaskView]) -> str:
    nodes = list(dict.fromkeys(task.node for task in tasks if task.alive and task.node))
    return ", ".join(nodes[:NODES]) + (f" +{len(nodes) - NODES}" if len(nodes) > NODES else "")


def _time_left(run: Snapshot, tasks: Sequence[TaskView]) -> str:
    """The time to the first time limit of running tasks."""
    ends = [task.ends_at for task in tasks if task.ends_at is not None]
    return duration(max(0.0, min(ends) - run.time)) if ends else ""


def _others(jobs: Sequence[JobView], busy: Sequence[JobView]) -> str:
    """How many of the other jobs are done, and how many wait."""
    shown = {job.name for job in busy}
    others = [job for job in jobs if job.name not in shown]
    done = sum(set(job.states) == {TaskState.DONE} for job in others)
    counts = {"more job(s) like these": len(busy) - JOBS, "job(s) done": done, "job(s) not begun": len(others) - done}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count > 0)


def _pairs(style: str = "") -> Table:
    """Two columns, a word or a time beside a text."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style=style)
    grid.add_column(overflow="fold")
    return grid


def _results(run: Snapshot) -> RenderableType | None:
    """By benchmark: the first evaluated version, and the last few."""
    by_benchmark: dict[str, list[Evaluated]] = {}
    for result in run.evaluations.results:
        by_benchmark.setdefault(result.benchmark, []).append(result)
    if not by_benchmark:
        return None
    grid = _pairs()
    for benchmark, results in by_benchmark.items():
        shown = results if len(results) <= RESULTS else [results[0], *results[1 - RESULTS :]]
        grid.add_row(benchmark, Text(", ").join(_result(one, run.evaluations.models) for one in shown))
    return grid


def _result(result: Evaluated, models: Sequence[str]) -> Text:
    half = 100 * (result.high - result.low) / 2
    model = _version(result.version, models)
    return Text.assemble((f"{model} ", "dim"), f"{100 * result.accuracy:.1f} %", (f" ±{half:.1f}", "dim"))


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


@dataclass(frozen=True)
class Sparkline:
    series: Sequence[float]
    width: int

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self.series, self.width, PLAIN_BLOCKS if options.ascii_only else BLOCKS), "cyan")


def sparkline(series: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """A block for each finite number, the lowest for the minimum of the series. A series longer than the width is cut
    into as many parts, each shown by its mean.
    """
    parts = min(len(series), width)
    bounds = [len(series) * part // parts for part in range(parts + 1)] if parts else []
    largest = max(map(abs, series), default=0.0) or 1.0
    # Divided by the largest, finite numbers have finite sums and differences.
    means = [sum(value / largest for value in series[a:b]) / (b - a) for a, b in pairwise(bounds)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    if high == low:
        return blocks[len(blocks) // 2] * len(means)
    return "".join(blocks[round((value - low) / (high - low) * (len(blocks) - 1))] for value in means)


def duration(seconds: float) -> str:
    """As ``45 s``, ``8:20 min``, ``2:05 h``, ``3.2 days``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
    if seconds < 48 * 3600:
        return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d} h"
    return f"{seconds / 86400:.1f} days"


def moment(at: float, now: float) -> str:
    there, here = time.localtime(at), time.localtime(now)
    same_day = there[:3] == here[:3]
    near = "%H:%M:%S" if abs(at - now) < 3600 else "%H:%M"
    return time.strftime(near if same_day else "%a %d %b %H:%M", there)


# -- display -----------------------------------------------------------------------------------------------------------
# Shows a run while it goes on, one snapshot after the other: ``status --watch``, and a run on this machine.


LOOK_EVERY_S = 2.0
"""Between two looks at the run directory."""
SHARE_OF_TIME = 0.05
"""The largest share of the time that looks may take: those at thousands of tasks are further apart."""


class Display(AbstractContextManager["Display"]):
    """Shows a run; at the end of the context the run is shown once more."""

    def __init__(self, layout: RunLayout, queues: Callable[[], QueueLook] = lambda: NO_QUEUES) -> None:
        self.reader = SnapshotReader.of(layout, read_plan(layout.plan))
        self.queues = queues
        self.state = RunState.RUNNING
        self._next_look, self._started = 0.0, time.monotonic()

    def look(self) -> None:
        if time.monotonic() >= self._next_look:
            self._look()

    def has_ended(self) -> bool:
        """Shows the run as ``look`` does."""
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._look()


class LiveDisplay(Display):
    """A terminal shows the view in its place."""

    def __enter__(self) -> Self:
        self._live = Live(console=Terminal(sys.stdout), auto_refresh=False, vertical_overflow="ellipsis")
        self._live.start()
        return self

    def show(self, run: Snapshot) -> None:
        self._live.update(view(run, self._live.console.width), refresh=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            super().__exit__(kind)
        finally:
            self._live.stop()


class LineDisplay(Display):
    """A line for each change, with the time since the start."""

    _last = ""

    def show(self, run: Snapshot) -> None:
        line = one_line(run)
        if line != self._last:
            self._last = line
            seconds = int(time.monotonic() - self._started)
            echo(f"[{seconds // 60:3d}:{seconds % 60:02d}] {line}")


def one_line(run: Snapshot) -> str:
    trained, evaluations = run.iterations, run.evaluations
    last = run.measured[-1].iteration + 1 if run.measured else trained.done
    done = min(trained.done, last)  # weights and figures of an iteration are written one after the other
    running = Counter(task.role for task in run.tasks if task.alive)
    roles = ", ".join(f"{role} x{count}" if count > 1 else role for role, count in running.items())
    reward = next((one.reward for one in run.measured if one.iteration == done - 1), None)
    failed = sum(job.states.get(TaskState.FAILED, 0) for job in run.jobs)
    parts = [
        f"iterations done {done}/{trained.planned}" if trained.planned else "",
        "" if reward is None else f"reward {reward:.2f}",
        f"evaluations {evaluations.done}/{evaluations.planned}",
        f"running {roles}" if roles else "nothing runs",
        f"{failed} FAILED" if failed else "",
    ]
    return "; ".join(filter(None, parts))
