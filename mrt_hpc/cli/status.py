"""``mrt-hpc status``, ``logs``, ``cancel`` and ``report``."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mrt_hpc.cli.console import console_of
from mrt_hpc.cli.display import collection_text, evaluations_text, iterations_text
from mrt_hpc.errors import UserError, word
from mrt_hpc.launch import queued_jobs
from mrt_hpc.launch.backend import QueueState
from mrt_hpc.launch.ledger import shown_process
from mrt_hpc.launch.run_progress import progress, read_records, reason, remarks
from mrt_hpc.launch.view.run_look import RunLook
from mrt_hpc.launch.view.task_cause import paused
from mrt_hpc.plan.jobs import Plan, Role, read_plan
from mrt_hpc.run.layout import existing_run
from mrt_hpc.run.offline import upload
from mrt_hpc.run.task_state import TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mrt_hpc.launch.backend import QueuedTask
    from mrt_hpc.launch.queued_jobs import QueueLook
    from mrt_hpc.plan.jobs import Job
    from mrt_hpc.run.layout import RunLayout
    from mrt_hpc.run.task_state import TaskRecord

QUEUE_WITHIN_S = 3.5
"""The seconds that a queue has for its answer; the content of the run's files is then shown without it."""


def open_run(run: Path) -> tuple[RunLayout, Plan]:
    """Open an existing run and its plan.

    Raises:
        UserError: there is no run at this place.
    """
    layout = existing_run(run)
    return layout, read_plan(layout.plan)


def print_status(run: Path) -> None:
    """Print jobs, progress and failures; each queue is asked once, and need not answer."""
    layout, plan = open_run(run)
    records = read_records(plan, layout)
    now, look = progress(plan, layout, records), queued_jobs.look_at_queues(layout, QUEUE_WITHIN_S)
    table = Table(title=str(layout.root), title_justify="left")
    table.add_column("job", no_wrap=True)
    for column in ("job ids", "tasks", "in the queue"):
        table.add_column(column, overflow="fold")
    for job in plan.jobs:
        ids = look.ids.get(job.name, [])
        table.add_row(job.name, ", ".join(ids), _tasks(records[job.name]), _in_queue(job, look))
    console = console_of(sys.stdout)
    console.print(table)
    process, faults = shown_process(layout)
    for line in (*look.unreadable, *faults, *now.unreadable):
        click.echo(line, err=True)
    for name, why in look.unreached.items():
        click.echo(why, err=True)
        told = f"[yellow]the queue was not reached ({name}):[/] all else is from the run's files"
        console.print(told, highlight=False)
    told = "; ".join(filter(None, (iterations_text(now), evaluations_text(now))))
    console.print(f"{collection_text(now)}{told}", highlight=False)
    for warning in now.warnings:
        console.print(f"[yellow]warning:[/] {warning}", highlight=False)
    if process is not None and process.is_here and process.pid != os.getpid():
        console.print(f"runs on this machine in process {process.pid}", highlight=False)
    for one in paused(RunLook(layout, plan, records, look, process)):
        console.print(f"[yellow]paused:[/] {one.job} task {one.index}", highlight=False)
        console.print(f"{one.sentence}\n  next:     {one.next}", markup=False, highlight=False)
    for job, index, record in remarks(plan, layout, records):
        colour = "red" if record.state is TaskState.FAILED else "yellow"
        tries = f", {record.failures} failure(s)" if record.failures else ""
        console.print(f"[{colour}]{record.state}:[/] {job.name} task {index}{tries}", highlight=False)
        console.print(reason(record), markup=False, highlight=False)
    if now.report:
        age = " (older than the newest results; mrt-hpc report updates it)" if now.stale else ""
        console.print(f"report: {layout.report}{age}", highlight=False, soft_wrap=True)
    if (waiting := upload(layout)) is not None:
        click.echo(f"{waiting}\n  {waiting.command}")  # unchanged, so that it can be copied


def _tasks(records: Sequence[TaskRecord]) -> str:
    counts = Counter(record.state for record in records)
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _in_queue(job: Job, look: QueueLook) -> str:
    """States of a job's tasks in the queue, with the reason why they wait."""
    if job.name in look.ids and job.name not in look.tasks:
        return "not reached"
    mine = look.tasks.get(job.name, [])
    counts = Counter(f"{_word(t)}" + (f" ({t.reason})" if t.reason and not t.ended else "") for t in mine)
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _word(task: QueuedTask) -> str:
    """The state of a task in words. A task that the queue does not know has left it; its outcome is shown beside, from
    the run's files.
    """
    return "no longer queued" if task.state is QueueState.UNKNOWN else str(task.state)


def print_logs(run: Path, role: str | None, lines: int, everything: bool) -> None:
    """Print the end of the newest log, or of all logs.

    Raises:
        UserError: there is none yet.
    """
    layout, _ = open_run(run)
    paths = [p for p in layout.logs.rglob("*") if p.is_file() and p.suffix in (".log", ".out", ".err")]
    wanted = paths if role is None else _of_role(paths, layout.logs, role)
    if not wanted and role in (Role.INFERENCE, Role.TRAINER):
        wanted = _of_role(paths, layout.logs, Role.COLOCATED)
    wanted = sorted((p for p in wanted if p.stat().st_size), key=lambda p: p.stat().st_mtime)
    if not wanted:
        raise UserError(
            "the run has no such log yet", where=layout.logs, value=role, advice=f"mrt-hpc status {word(run)}"
        )
    for path in wanted if everything else wanted[-1:]:
        click.secho(f"==> {path}", bold=True)
        with path.open(errors="replace") as stream:
            click.echo("".join(deque(stream, maxlen=lines)), nl=False)


def _of_role(paths: list[Path], logs: Path, role: str) -> list[Path]:
    """The logs in whose names a role stands."""
    return [path for path in paths if f".{role}" in str(path.relative_to(logs)) or path.name.startswith(role)]


def cancel_run(run: Path) -> None:
    """Stop a run, wherever it runs."""
    layout, _ = open_run(run)
    for sentence in queued_jobs.cancel_run(layout):
        click.echo(sentence)
    click.echo("finished work is kept; the same submit command continues the run")


def print_report(run: Path, page: Path | None, *, trust: bool) -> None:
    """Write the report and its page, or the page alone where it has a place, and print their paths.

    Raises:
        UserError: the report has its place in a run to which this user may not write.
    """
    from mrt_hpc.roles.report import write_report  # plots take a second to import

    layout, _ = open_run(run)
    where = None if page is None else page.absolute()
    if where is not None:
        where.parent.mkdir(parents=True, exist_ok=True)
    elif not os.access(layout.root, os.W_OK):
        raise UserError(
            "the report is written into the run, and you may not write there",
            where=layout.root,
            advice=f"mrt-hpc report {word(run)} --page FILE.html, which writes only that file",
        )
    for part in write_report(layout, where, trust=trust):
        click.echo(f"missing: {part}")
    if where is None:
        click.echo(f"report: {layout.report}")
    click.echo(f"page: {where or layout.page}")


def print_comparison(runs: Sequence[Path], page: Path | None, *, trust: bool) -> None:
    """Write one page with several runs side by side, and print its path.

    Raises:
        UserError: the page has no place, or one of the runs is none.
    """
    from mrt_hpc.roles.report import write_comparison

    if page is None:
        raise UserError(
            "several runs share one page, and it has no place of its own",
            expected="--page FILE.html",
            advice=f"mrt-hpc report {' '.join(map(str, runs))} --page compared.html",
        )
    page.parent.mkdir(parents=True, exist_ok=True)
    write_comparison([open_run(run)[0] for run in runs], page.absolute(), trust=trust)
    click.echo(f"page: {page.absolute()}")
