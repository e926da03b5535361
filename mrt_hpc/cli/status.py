"""``mrt-hpc status``, ``explain``, ``runs`` and ``report``: what a run does, why, and its results. Each command imports
what it needs when it runs.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.completion import complete_task
from mrt_hpc.cli.options import RunPath, RunUse
from mrt_hpc.cli.terminal import Terminal, echo, echo_json, print_notes, table_of
from mrt_hpc.errors import Advice, UserError, line_of
from mrt_hpc.recipe.find import expand_home
from mrt_hpc.run.layout import RunLayout, existing_run
from mrt_hpc.run.retries import wait_until
from mrt_hpc.run.wandb_runs import upload

if TYPE_CHECKING:
    from rich.text import Text

    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.view.run_list import ListedRun


def open_run(run: Path) -> "tuple[RunLayout, Plan]":
    from mrt_hpc.plan.jobs import read_plan

    layout = existing_run(run)
    return layout, read_plan(layout.plan)


@click.command(short_help="Show the state of a run.")
@click.argument("run", type=RunPath(RunUse.LOOKS))
@click.option("--watch", "live", is_flag=True, help="A live view, until the run has ended; Ctrl-C ends the view alone.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object.")
def status(run: Path, live: bool, as_json: bool) -> None:
    """Show the state of RUN: its jobs, iterations, evaluations and failures.

    \b
    Examples:
      mrt-hpc status runs/quickstart
      mrt-hpc status runs/quickstart --watch
      mrt-hpc status runs/quickstart --json
    """
    from mrt_hpc.backends.queued_jobs import look_at_queues
    from mrt_hpc.cli.run_view import view
    from mrt_hpc.run.family import missing_runs, read_family
    from mrt_hpc.view.snapshot_reader import SnapshotReader

    if read_family(run) is not None and not live:
        list_places((run,), size=False, as_json=as_json)
        print_notes(() if as_json else missing_runs([str(run)]))
        return
    if live and not as_json:
        _watch(run)
        return
    layout, plan = open_run(run)
    snapshot = SnapshotReader.of(layout, plan).read(look_at_queues(layout))
    if as_json:
        echo_json(snapshot.model_dump(mode="json"))
        return
    console = Terminal(sys.stdout)
    console.print(view(snapshot, console.width, everything=True))
    # paths and commands are printed in one line each, so that they can be copied
    if snapshot.report is not None:
        again = Advice("mrt-hpc report {run}", run=run)
        age = f" (older than the newest results; to write it again: {again})" if snapshot.report_is_old else ""
        echo(f"report: {line_of(snapshot.report)}{age}")
    if (waiting := upload(layout)) is not None:
        echo(f"{waiting}\n  {waiting.command}")


def _watch(run: Path) -> None:
    """Until the run has ended, or the user stops looking; the output has to be a terminal."""
    from mrt_hpc.cli.run_view import LOOK_EVERY_S, LiveDisplay
    from mrt_hpc.view.run_look import end_in_words
    from mrt_hpc.view.snapshot_reader import QueueLooks

    if not sys.stdout.isatty():
        raise UserError(
            "--watch needs a terminal, and the output goes to a file or a pipe",
            advice=Advice("mrt-hpc status {run} --json prints the same as data", run=run),
        )
    layout, _ = open_run(run)
    try:
        with QueueLooks(layout) as queues, LiveDisplay(layout, queues.latest) as display:
            wait_until(display.has_ended, reason="the end of the run", deadline_s=inf, longest_pause_s=LOOK_EVERY_S)
            queues.renew()  # the last frame stays on the terminal
    except KeyboardInterrupt:
        echo(Advice("the run was not touched; to look again: mrt-hpc status {run} --watch", run=run))
        return
    echo(end_in_words(layout, display.state))


# -- explain


@click.command(short_help="Say why a run or a task waits or has failed.")
@click.argument("run", type=RunPath(RunUse.LOOKS))
@click.argument("task", required=False, shell_complete=complete_task)
@options.as_json
def explain(run: Path, task: str | None, as_json: bool) -> None:
    """Say in a sentence why RUN, or one TASK of it, waits or has failed, and what to type next.

    TASK is a role, as in `trainer`, the name of a job, as in `segment-000.trainer`, or one task of it, as in
    `segment-000.inference[3]`.

    \b
    Examples:
      mrt-hpc explain runs/quickstart
      mrt-hpc explain runs/quickstart segment-000.trainer
      mrt-hpc explain runs/quickstart 'segment-000.inference[3]'
    """
    from mrt_hpc.backends.queued_jobs import look_at_queues
    from mrt_hpc.run.family import missing_runs, runs_of
    from mrt_hpc.view.explain import explain_job, explain_run
    from mrt_hpc.view.run_history import RunHistory
    from mrt_hpc.view.run_look import RunLook

    members, data = runs_of(run), []
    for member in members:
        if len(members) > 1 and not as_json:
            echo(f"{line_of(member)}:")
        layout, plan = open_run(member)
        look, history = RunLook.load_records(layout, plan, look_at_queues(layout)), RunHistory.of(layout)
        history.update()
        for said in [explain_run(look, history)] if task is None else explain_job(look, history, task):
            data.append({"run": str(member), **asdict(said)})
            if as_json:
                continue
            echo(said.sentence)
            echo(f"  next:     {said.next}")
            for detail in said.details:
                echo(detail)
    if as_json:
        echo_json(data)
    else:
        print_notes(missing_runs([str(run)]))


# -- runs


UNITS = ("B", "KiB", "MiB", "GiB")


@click.command(short_help="List runs with their states.")
@click.argument("places", nargs=-1, type=RunPath(RunUse.LOOKS), metavar="[DIR]...")
@click.option("--size", is_flag=True, help="Also the size on disk, which reads every folder of the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def runs(places: tuple[Path, ...], size: bool, as_json: bool) -> None:
    """List the runs in and below each DIR (default: runs), the one with the newest event first.

    \b
    Examples:
      mrt-hpc runs
      mrt-hpc runs /shared/me/runs --size
    """
    list_places(places or (Path("runs"),), size=size, as_json=as_json)


def list_places(wanted: Sequence[Path], *, size: bool, as_json: bool) -> None:
    from mrt_hpc.backends.queued_jobs import QUEUE_WITHIN_S
    from mrt_hpc.view.run_list import list_runs

    listed = list_runs(wanted, QUEUE_WITHIN_S, size=size)
    if as_json:
        echo_json([run.model_dump(mode="json") for run in listed])
    elif listed:
        _print_runs(listed, size=size)
    else:
        places = ", ".join(map(str, wanted))
        echo(f"no runs in {places}; mrt-hpc submit RECIPE makes one, mrt-hpc runs DIR looks in DIR")


def _print_runs(listed: "Sequence[ListedRun]", *, size: bool) -> None:
    rows = [_row(run, time.time(), size=size) for run in listed]
    table = table_of(None, *rows[0], bare=True)
    for row in rows:
        table.add_row(*row.values())
    Terminal(sys.stdout).print(table)
    for run in listed:
        if run.trouble:
            echo(f"{line_of(_shown_path(run.run))}: {run.trouble}", err=True)
    echo(Advice("next: mrt-hpc status {shown}", shown=_shown_path(listed[0].run)))


def _row(run: "ListedRun", now: float, *, size: bool) -> "dict[str, str | Text]":
    """By column."""
    from rich.text import Text

    from mrt_hpc.cli.run_view import COLOURS, moment

    return {
        "run": line_of(_shown_path(run.run)),
        "kind": run.kind,
        "state": Text("damaged") if run.state is None else Text(run.state, COLOURS[run.state]),
        "iterations": f"{run.iterations_done}/{run.iterations_planned}" if run.iterations_planned else "",
        "evaluations": f"{run.evaluations_done}/{run.evaluations_planned}" if run.evaluations_planned else "",
        "newest event": "" if run.newest_event is None else moment(run.newest_event, now),
        "what": run.newest_event_kind or "",
        **({"size": bytes_text(run.bytes or 0)} if size else {}),
    }


def _shown_path(run: str) -> str:
    """As a user would type it here."""
    path, here = Path(run), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else run


def bytes_text(count: float) -> str:
    """As ``1.5 GiB``."""
    for unit in UNITS:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


# -- report


@click.command(short_help="Write a run's report from its results so far.")
@click.argument("runs", type=RunPath(RunUse.WRITES, unless="page"), nargs=-1, metavar="[RUN]...")
@options.arms
@click.option(
    "--page",
    is_eager=True,  # it decides whether the run is written to
    type=options.FILE,
    help="Write only the page, to this file. Without it: report.md, plots and report.html in RUN, report.html in a "
    "family.",
)
@options.trust
def report(runs: tuple[Path, ...], arms: tuple[str, ...], page: Path | None, trust: bool) -> None:
    """Write report.md, plots and report.html of RUN from the results that exist now.

    The page needs no network and no server: open it in a browser. Several runs share one page, side by side, as those
    of a family do. The curves of an arm are one, the mean of its runs with the range over their seeds.

    \b
    Examples:
      mrt-hpc report runs/quickstart
      mrt-hpc report runs/quickstart-sweep
      mrt-hpc report runs/grpo runs/mrt-online --page compared.html
      mrt-hpc report --arm grpo=runs/grpo-0,runs/grpo-1 --arm mrt=runs/mrt-0,runs/mrt-1 --page compared.html
    """
    from mrt_hpc.run.family import arms_of, missing_runs

    alone, of_families = arms_of([str(run) for run in runs])
    print_notes(missing_runs(map(str, runs)))
    if page is None and len(runs) == 1 and not (alone or arms):
        page = RunLayout(runs[0]).page  # of a family
    runs, arms = tuple(map(Path, alone)), (*of_families, *arms)
    if not (runs or arms):
        raise click.UsageError("name what is reported: RUN..., or --arm NAME=RUN,...")
    if len(runs) == 1 and not arms:
        _report(runs[0], page, trust=trust)
    else:
        _report_of_several(runs, arms, page, trust=trust)


def _report(run: Path, page: Path | None, *, trust: bool) -> None:
    """The report and its page, or the page alone where it has a place."""
    from mrt_hpc.roles.report import write_report  # plots take a second to import

    layout, _ = open_run(run)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
    for part in write_report(layout, page and page.absolute(), trust=trust):
        echo(f"missing: {part}")
    if page is None:
        echo(f"report: {line_of(layout.report)}")
    echo(f"page: {line_of(page.absolute() if page else layout.page)}")


def _report_of_several(runs: Sequence[Path], arms: Sequence[str], page: Path | None, *, trust: bool) -> None:
    """Several runs and arms side by side."""
    from mrt_hpc.analysis.named_models import split_arms
    from mrt_hpc.roles.report import write_comparison

    of_arms = [(name, expand_home(word)) for name, words in split_arms(arms).items() for word in words]
    named = [*((None, run) for run in runs), *of_arms]
    if page is None:
        words = [*runs, *(word for arm in arms for word in ("--arm", arm))]
        raise UserError(
            "several runs share one page, and it has no place of its own",
            expected="--page FILE.html",
            advice=Advice("mrt-hpc report {words} --page compared.html", words=words),
        )
    page.parent.mkdir(parents=True, exist_ok=True)
    write_comparison([open_run(run)[0] for _, run in named], page.absolute(), [arm for arm, _ in named], trust=trust)
    echo(f"page: {line_of(page.absolute())}")
