"""``mrt-hpc fork``, ``cancel``, ``clean`` and ``sync``: they change a run, or begin another one from it."""

import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.options import RunPath, RunUse, site_of_command
from mrt_hpc.cli.status import bytes_text, open_run
from mrt_hpc.cli.terminal import FittedTable, Terminal, echo
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from mrt_hpc.submit.cleaning import Removal


# -- fork


@click.command(short_help="Begin a new run with the weights of another.")
@click.argument("run_before", type=RunPath(RunUse.COPIES), metavar="RUN")
@click.option("--at", required=True, metavar="VERSION", help="The weights version: its number, first or last.")
@click.option(
    "--run",
    type=click.Path(),
    callback=options.checked_run_directory,
    help="The directory of the new run. Default: NAME-from-vVERSION beside RUN, NAME being that of its recipe.",
)
@options.site
@options.overrides
@options.trust
def fork(
    run_before: Path, at: str, run: Path | None, site: str | None, overrides: tuple[str, ...], trust: bool
) -> None:
    """Begin a new run with a weights version of RUN, with the recipe of RUN and the changes of --set.

    The new run has its own copy of the weights (hard links where the filesystem allows them), which become its version
    0. It begins at iteration 0, with a new optimiser and a learning-rate schedule of its own. It reads the data files
    again, and says which of them have changed since. `forked_from.json` in its directory and its report say where it
    comes from. The same command again continues it.

    \b
    Examples:
      mrt-hpc fork runs/mrt-online --at last --set schedule.iterations=100
      mrt-hpc fork runs/mrt-online --at 124 --set algorithm.alpha=0.5 --run runs/half-alpha
    """
    from mrt_hpc.cli.submit import listener
    from mrt_hpc.submit.origin import fork_of
    from mrt_hpc.submit.submission import submit_run

    layout, _ = open_run(run_before)
    new = fork_of(layout, at, overrides, lambda name: run or layout.root.parent / name, trust=trust)
    record = new.origin.record
    where = site_of_command(site, RunLayout(new.root), layout, trust=trust).ensure_usable().site
    echo(f"asked for: a run {new.root} that begins with weights version {record.version} of {record.run}")
    for change in record.changes:
        echo(f"  {change['field']}: {change['old']} becomes {change['new']}")
    for file in filter(attrgetter("is_changed"), record.data):
        # the old run was trained on its own copy
        keep = f"; to train on the old ones: --set data.path={layout.train_data}" if file.field == "data" else ""
        sums = f"sha256 {file.old[:12]} before, {file.new[:12]} now"
        echo(f"  {file.field}: {file.path} has other contents than in the old run ({sums}), and they are used{keep}")
    iterations, schedule = new.recipe.schedule.iterations, new.recipe.training.schedule
    echo(f"  {iterations} iteration(s) with a new optimiser and a {schedule} learning-rate schedule")
    submit_run(new.recipe, where, new.root, listener(), new.origin)


# -- cancel


@click.command(short_help="Stop a run.")
@click.argument("run", type=RunPath(RunUse.WRITES))
def cancel(run: Path) -> None:
    """Stop RUN, or all runs of a family. All results stay, and `mrt-hpc submit RUN` continues from there.

    \b
    Examples:
      mrt-hpc cancel runs/quickstart
    """
    from mrt_hpc.backends.queued_jobs import NOTHING_QUEUED, NothingToCancelError, cancel_run
    from mrt_hpc.run.family import runs_of

    members, idle, has_stopped = runs_of(run), list[NothingToCancelError](), False
    for member in members:
        layout, _ = open_run(member)
        try:
            for sentence in cancel_run(layout):
                echo(sentence)
                has_stopped = has_stopped or sentence != NOTHING_QUEUED
        except NothingToCancelError as error:
            idle.append(error)
            if len(idle) == len(members):
                raise
            echo(f"{member}: {error.what}")
    if has_stopped:
        echo(f"finished work is kept; {RunLayout(run).again} continues the run")


# -- clean


KINDS = ("checkpoints", "weights", "set_aside", "parts", "logs")


@click.command(short_help="Free what a run does not need any more.")
@click.argument("run", type=RunPath(RunUse.WRITES))
@click.option(
    "--what",
    multiple=True,
    type=click.Choice(KINDS),
    help="Only this. Repeatable. Default: all but logs; the newest checkpoint stays.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(run: Path, what: tuple[str, ...], yes: bool) -> None:
    """Show what RUN can do without and how much it takes, ask, and remove it.

    Results, metrics, records, the first and the last weights version stay, and so does the newest checkpoint, unless
    the run is finished and you name checkpoints. A run that is queued or running is not touched.

    \b
    checkpoints  all but the newest; with --what checkpoints the newest of a finished run too
    weights      versions other than the first and the last, whose evaluations are complete
    set_aside    damaged files, and results that a resumed trainer made again
    parts        parts of evaluations whose samples are complete, and files that lost attempts left half written
    logs         output of ended attempts; only with --what logs
    \b
    Examples:
      mrt-hpc clean runs/mrt-online
      mrt-hpc clean runs/mrt-online --what checkpoints --what logs --yes
    """
    from mrt_hpc.backends.queued_jobs import refuse_live
    from mrt_hpc.recipe.lock import read_lock
    from mrt_hpc.submit.cleaning import NOTHING_REMOVED, Removable, removals, remove

    layout, plan = open_run(run)
    refuse_live(layout, NOTHING_REMOVED)
    recipe, asked = read_lock(layout.recipe_lock), tuple(map(Removable, what))
    removals_found = removals(layout, plan, recipe, asked)
    if not removals_found:
        echo(Advice("there is nothing to remove: mrt-hpc status {run}", run=run))
        return
    _print(removals_found)
    if not yes and not _user_agrees(run, what):
        echo("nothing was removed")
        return
    freed, left = remove(layout, plan, recipe, removals_found, asked)
    for sentence in left:
        echo(f"something is left, as a process still holds it open: {sentence}")
    then = Advice("; when that has ended: mrt-hpc clean {run}", run=run) if left else ""
    echo(f"freed {bytes_text(freed)}{then}; {Advice('mrt-hpc status {run} shows the run', run=run)}")


def _user_agrees(run: Path, what: Sequence[str]) -> bool:
    if not sys.stdin.isatty():
        words = [run, *(word for kind in what for word in ("--what", kind)), "--yes"]
        raise UserError(
            "nothing was removed: there is no terminal to ask at",
            expected="--yes",
            advice=Advice("mrt-hpc clean {words}", words=words),
        )
    return click.confirm("remove this?")


def _print(removals: "Sequence[Removal]") -> None:
    table = FittedTable(show_footer=True)
    table.add_column("what", "all", no_wrap=True)
    table.add_column("items", str(sum(len(removal.paths) for removal in removals)), justify="right")
    table.add_column("frees", bytes_text(sum(removal.frees for removal in removals)), justify="right", no_wrap=True)
    table.add_column("what it means", overflow="fold")
    for removal in removals:
        table.add_row(str(removal.kind), str(len(removal.paths)), bytes_text(removal.frees), removal.note)
    Terminal(sys.stdout).print(table)


# -- sync


@click.command(short_help="Upload a run's offline W&B directories.")
@click.argument("run", type=RunPath(RunUse.WRITES))
def sync(run: Path) -> None:
    """Upload the offline W&B directories of RUN, on a node with network access.

    All attempts belong to one W&B run. What is uploaded already is left out, so type it again whenever you like. A run
    never depends on W&B: without it, all metrics are in the run directory.

    \b
    Examples:
      mrt-hpc sync runs/mrt-online
    """
    from mrt_hpc.submit.upload import upload_run

    layout, _ = open_run(run)
    if uploaded := upload_run(layout):
        echo(f"uploaded {uploaded} offline W&B director{'y' if uploaded == 1 else 'ies'}")
    else:
        echo(f"all offline W&B directories are uploaded: {layout.offline_runs}")
