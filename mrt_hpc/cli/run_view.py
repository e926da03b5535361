"""What a terminal shows of a run at one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mrt_hpc.cli.sparkline import sparkline
from mrt_hpc.launch.view.run_look import RunState
from mrt_hpc.run.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from mrt_hpc.launch.view.snapshot import Evaluated, JobView, Measured, Snapshot, TaskView

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
LOST = "lost"
"""The word for tasks whose record says that they run, and of which no attempt does."""
FAULTS, RESULTS, NEXT, NODES, JOBS, WHYS = 5, 4, 6, 3, 10, 3
"""How many faults, versions of a benchmark, coming events, nodes of a job, jobs and reasons are shown."""
LABELS, NUMBERS = 13, 25
"""The widths of the columns beside bars and sparklines."""
NARROW = 80
"""The number of columns below which what is only nice to know is left out."""


def view(run: Snapshot, width: int) -> RenderableType:
    """A run as the terminal shows it, no wider than the terminal.

    Args:
        run: at this moment.
        width: of the terminal, columns.
    """
    parts: list[RenderableType] = [_head(run), _progress(run, width)]
    for title, part in (
        ("jobs", _jobs(run, width)),
        ("next", _next(run)),
        ("evaluations", _results(run)),
        ("faults and resumes", _faults(run)),
    ):
        if part is not None:
            parts += [Rule(title, align="left", style="dim"), part]
    return Group(*parts)


def _head(run: Snapshot) -> RenderableType:
    line = Text.assemble((run.name, "bold"), f" ({run.kind})  ", (run.state.value, COLOURS[run.state]))
    line.append(f"  {run.run}  {moment(run.time, run.time)}", style="dim")
    for name, why in run.unreached.items():
        line.append(f"\nthe queue was not reached ({name}: {why}): all else is from the run's files", style="yellow")
    for fault in run.unreadable:
        line.append(f"\n{fault}", style="yellow")
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
    if run.evaluations.planned:
        bar = ProgressBar(run.evaluations.planned, run.evaluations.done, width=room - 2)
        grid.add_row("evaluations", bar, f"{run.evaluations.done}/{run.evaluations.planned} tasks")
    for name in ("reward", "progress"):
        if series := _series(run.measured, name):
            grid.add_row(name, Text(sparkline(series, room - 2), style="cyan"), _range(series))
    rates = Text(f"{'tokens/s':{LABELS}}{told}") if (told := _rates(run)) else None
    return grid if rates is None else Group(grid, rates)


def _series(measured: Iterable[Measured], name: str) -> list[float]:
    return [value for one in measured if (value := getattr(one, name)) is not None]


def _range(series: Sequence[float]) -> str:
    """The last value, and the lowest and highest of all."""
    return f"{series[-1]:.3f} ({min(series):.3f} to {max(series):.3f})"


def _rates(run: Snapshot) -> str:
    rates = run.throughput
    named = {
        "sampling": rates.sampling,
        "waits included": rates.whole,
        "training": rates.training,
        "evaluation": rates.evaluation,
    }
    return ", ".join(f"{name} {rate:,.0f}" for name, rate in named.items() if rate is not None)


def _jobs(run: Snapshot, width: int) -> RenderableType | None:
    """What runs, is queued, was stopped or has failed of each job; the other jobs are counted."""
    tasks: dict[str, list[TaskView]] = {}
    for task in run.tasks:
        tasks.setdefault(task.job, []).append(task)
    busy = [job for job in run.jobs if job.name in tasks or _waits(job)]
    shown = [(job, tasks.get(job.name, [])) for job in busy[:JOBS]]
    parts: list[RenderableType] = []
    if shown:
        parts.append(_job_table(run, shown) if width >= NARROW else _job_lines(shown))
    rest = _others(run.jobs, busy)
    return Group(*parts, *_whys(run), *([Text(rest, style="dim")] if rest else []))


def _job_table(run: Snapshot, jobs: Sequence[tuple[JobView, list[TaskView]]]) -> Table:
    """A line for each job."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("job", no_wrap=True)
    for column in ("tasks", "weights", "nodes"):
        table.add_column(column, overflow="fold")
    left = {job.name: _left(run, mine) for job, mine in jobs}
    limited = any(left.values())
    if limited:
        table.add_column("time left", justify="right", no_wrap=True)
    for job, mine in jobs:
        cells: list[RenderableType] = [job.name, _states(job, mine), _versions(mine), _nodes(mine)]
        table.add_row(*cells, *([left[job.name]] if limited else []))
    return table


def _job_lines(jobs: Sequence[tuple[JobView, list[TaskView]]]) -> Group:
    """Two lines for each job, for a narrow terminal."""
    lines: list[Text] = []
    for job, mine in jobs:
        places = "  ".join(filter(None, (_versions(mine), _nodes(mine))))
        lines += [Text(f"{job.name}  {places}".rstrip()), Text.assemble("  ", _states(job, mine))]
    return Group(*lines)


def _whys(run: Snapshot) -> list[Text]:
    """Why tasks have failed, the latest last: the first line of each reason, once for all tasks of a job."""
    failed = [task for task in run.tasks if task.state in (TaskState.FAILED, TaskState.RETRYING)]
    found: dict[tuple[str, TaskState, str], list[TaskView]] = {}
    for task in sorted(failed, key=lambda one: one.since):
        found.setdefault((task.job, task.state, task.reason.strip().partition("\n")[0]), []).append(task)
    lines = []
    for (job, state, why), tasks in list(found.items())[-WHYS:]:
        which = f"[{tasks[0].index}]" if len(tasks) == 1 else f" ({len(tasks)} tasks)"
        line = Text.assemble((f"{job}{which} {state}: ", TASK_COLOURS[state]), why)
        line.truncate(160, overflow="ellipsis")
        lines.append(line)
    return lines


def _waits(job: JobView) -> bool:
    return any(part.state in ("pending", "running") for part in job.queue)


def _states(job: JobView, tasks: Sequence[TaskView]) -> Text:
    """The states of a job's tasks, those of the run's records first, and then what the queue says of waiting ones."""
    words: dict[tuple[str, str], int] = {}
    for task in tasks:
        word = LOST if task.state is TaskState.RUNNING and not task.alive else task.state.value
        colour = "red" if word == LOST else TASK_COLOURS.get(task.state, "")
        words[word, colour] = words.get((word, colour), 0) + 1
    if done := job.states.get(TaskState.DONE):
        words["done", "dim"] = done
    for part in job.queue:
        if part.state == "pending":
            words[f"queued ({part.reason})" if part.reason else "queued", "yellow"] = part.tasks
    parts = [Text(f"{count} {word}", style=colour) for (word, colour), count in words.items()]
    return Text(", ").join(parts)


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


def _results(run: Snapshot) -> RenderableType | None:
    """The accuracy of each benchmark: of the first version that was evaluated, and the last few."""
    by_benchmark: dict[str, list[Evaluated]] = {}
    for result in run.evaluations.results:
        by_benchmark.setdefault(result.benchmark, []).append(result)
    if not by_benchmark:
        return None
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
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
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for fault in run.faults[-FAULTS:]:
        detail = f"  {fault.detail}" if fault.detail else ""
        text = Text.assemble(fault.what, (f"  {fault.task}", "cyan"), (detail, "dim"))
        text.truncate(160, overflow="ellipsis")
        grid.add_row(moment(fault.time, run.time), text)
    counts = ", ".join(f"{count} x {what}" for what, count in run.fault_counts.items())
    return Group(grid, Text(f"in all: {counts}", style="dim"))


def _next(run: Snapshot) -> RenderableType | None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for one in run.upcoming[:NEXT]:
        grid.add_row("" if one.at is None else moment(one.at, run.time), one.what)
    if run.expected_end is not None:
        what = "training" if run.iterations.planned else "the evaluation"
        grid.add_row(moment(run.expected_end, run.time), f"{what} is expected to end, if nothing interrupts it")
    return grid if grid.row_count else None


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
