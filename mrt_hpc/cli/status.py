"""``mrt-hpc status``, ``logs``, ``cancel`` and ``report``."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, deque
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mrt_hpc.analysis.measures import few_answers
from mrt_hpc.cli.console import console_of
from mrt_hpc.cli.display import collection_text, evaluations_text, iterations_text
from mrt_hpc.errors import UserError
from mrt_hpc.launch.ledger import current_ids, current_submissions, local_process, process_elsewhere
from mrt_hpc.launch.run_progress import progress, reason, remarks, task_records
from mrt_hpc.launch.slurm.queue import QueueState, cancel, queue_states, unrecorded_jobs
from mrt_hpc.plan.jobs import Plan, read_plan
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.offline import upload
from mrt_hpc.run.task_state import TaskState

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.launch.slurm.queue import QueuedTask
    from mrt_hpc.plan.jobs import Job

QUEUE_WITHIN_S = 3.5
"""For Slurm to answer; what the run's files tell is not held back for longer."""


def open_run(run: Path) -> tuple[RunLayout, Plan]:
    """An existing run and its plan.

    Raises:
        UserError: there is no run at this place.
    """
    layout = RunLayout(run.absolute())
    if not layout.plan.is_file():
        runs = sorted(str(p.parent) for p in run.parent.glob("*/plan.json")) if run.parent.is_dir() else []
        raise UserError(
            "not a run directory: it has no plan.json",
            value=str(run),
            expected=f"one of {', '.join(runs)}" if runs else "a directory that `mrt-hpc submit` made",
        )
    return layout, read_plan(layout.plan)


def print_status(run: Path) -> None:
    """Print jobs, progress and failures; one squeue and one sacct at most, and neither where Slurm does not answer."""
    layout, plan = open_run(run)
    now, sent = progress(plan, layout), current_submissions(layout)
    ids = {job: [one.slurm_id for one in parts] for job, parts in sent.items()}
    queued, unreached = _ask_queue(sorted(current_ids(layout)))
    table = Table(title=str(layout.root), title_justify="left")
    table.add_column("job", no_wrap=True)
    for column in ("Slurm", "tasks", "in the queue"):
        table.add_column(column, overflow="fold")
    for job in plan.jobs:
        mine = ids.get(job.name, [])
        in_queue = unreached if mine and unreached else _queue(mine, queued)
        table.add_row(job.name, ", ".join(mine), _tasks(job, layout), in_queue)
    console = console_of(sys.stdout)
    console.print(table)
    if unreached:
        console.print(f"[yellow]Slurm's queue was {unreached}:[/] all else is from the run's files", highlight=False)
    console.print(f"{collection_text(now)}{iterations_text(now)}; {evaluations_text(now)}", highlight=False)
    if warning := few_answers(now.answered, f"iteration {now.iterations_done - 1}"):
        console.print(f"[yellow]few answers:[/] {warning}", highlight=False)
    if (process := local_process(layout)) is not None:
        console.print(f"runs on this machine in process {process.pid}", highlight=False)
    for job, index, record in remarks(plan, layout):
        colour = "red" if record.state is TaskState.FAILED else "yellow"
        tries = f", {record.failures} failure(s)" if record.failures else ""
        console.print(f"[{colour}]{record.state}:[/] {job.name} task {index}{tries}", highlight=False)
        console.print(reason(record), markup=False, highlight=False)
    if now.report:
        age = " (older than the newest results; mrt-hpc report writes it from what is there)" if now.stale else ""
        console.print(f"report: {layout.report}{age}", highlight=False, soft_wrap=True)
    if (waiting := upload(layout)) is not None:
        click.echo(f"{waiting}\n  {waiting.command}")  # as it stands, so that it can be copied


def _ask_queue(slurm_ids: list[str]) -> tuple[dict[str, QueuedTask], str]:
    """What the queue knows of these jobs; or nothing, and that it was not reached."""
    try:
        return queue_states(slurm_ids, QUEUE_WITHIN_S), ""
    except UserError as error:
        click.echo(f"{error.what}: {error.value}" if error.value else error.what, err=True)
        return {}, "not reached"


def _tasks(job: Job, layout: RunLayout) -> str:
    counts = Counter(record.state for record in task_records(job, layout))
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _queue(slurm_ids: list[str], queued: dict[str, QueuedTask]) -> str:
    """States of a job's tasks in Slurm, with the reason why they wait."""
    mine = [t for key, t in queued.items() if key.partition("_")[0] in slurm_ids]
    counts = Counter(f"{_word(t)}" + (f" ({t.reason})" if t.reason and not t.ended else "") for t in mine)
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _word(task: QueuedTask) -> str:
    """A task that Slurm has forgotten has left the queue; how it ended stands beside, from the run's files."""
    return "no longer queued" if task.state is QueueState.UNKNOWN else str(task.state)


def print_logs(run: Path, role: str | None, lines: int, everything: bool) -> None:
    """Print the end of the newest log, or of all logs.

    Raises:
        UserError: there is none yet.
    """
    layout, _ = open_run(run)
    paths = [p for p in layout.logs.rglob("*") if p.is_file() and p.suffix in (".log", ".out", ".err")]
    wanted = [
        p for p in paths if role is None or f".{role}" in str(p.relative_to(layout.logs)) or p.name.startswith(role)
    ]
    wanted = sorted((p for p in wanted if p.stat().st_size), key=lambda p: p.stat().st_mtime)
    if not wanted:
        raise UserError("the run has no such log yet", where=layout.logs, value=role, advice=f"mrt-hpc status {run}")
    for path in wanted if everything else wanted[-1:]:
        click.secho(f"==> {path}", bold=True)
        with path.open(errors="replace") as stream:
            click.echo("".join(deque(stream, maxlen=lines)), nl=False)


def cancel_run(run: Path) -> None:
    """Stop a run, wherever it runs."""
    layout, _ = open_run(run)
    stopped = False
    if (process := local_process(layout)) is not None:
        os.kill(process.pid, signal.SIGINT)
        click.echo(f"asked process {process.pid} to stop")
        stopped = True
    if recorded := set(current_ids(layout)):
        ids = recorded | set(unrecorded_jobs(layout.root, recorded).values())
        cancel(sorted(ids))
        click.echo(f"cancelled {len(ids)} Slurm job(s)")
        stopped = True
    if not stopped:
        raise nothing_to_cancel(layout)
    click.echo("finished work is kept; the same submit command continues the run")


def nothing_to_cancel(layout: RunLayout) -> UserError:
    """What to tell where nothing of a run is under way here."""
    if (other := process_elsewhere(layout)) is None:
        return UserError(
            "no job and no process of this run is running", where=layout.root, advice=f"mrt-hpc status {layout.root}"
        )
    return UserError(
        f"this run was last started on another machine, as process {other.pid}",
        where=layout.root,
        value=other.host,
        advice=f"on that machine: mrt-hpc cancel {layout.root}",
    )


def print_report(run: Path) -> None:
    """Write the report from what is there and say where."""
    from mrt_hpc.roles.report import write_report  # plots take a second to import

    layout, _ = open_run(run)
    missing = write_report(layout)
    for part in missing:
        click.echo(f"missing: {part}")
    click.echo(f"report: {layout.report}")
