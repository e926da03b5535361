"""``mrt-hpc extend``, ``fork``, ``cancel``, ``clean`` and ``sync``: they change a run, or begin another one from it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.options import RUN, console_of, site_of_command
from mrt_hpc.cli.status import in_bytes, open_run
from mrt_hpc.errors import UserError, word
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from mrt_hpc.run.fork_record import ForkedData
    from mrt_hpc.submit.cleaning import Removal


@click.command(short_help="Give a run more iterations.")
@click.argument("run", type=options.FOLDER)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="The number of all iterations of the run, those that are done included.",
)
@options.site
def extend(run: Path, iterations: int, site: str | None) -> None:
    """Let RUN train for N iterations in all. It is a submission of the run's own recipe with another number of
    iterations, and needs no recipe file.

    A run that has begun to train can be extended only if its learning rate is constant (`training.schedule: constant`):
    with another schedule, the learning rates of the steps that were taken would have been others. `mrt-hpc fork` then
    begins a new run with the last weights.

    \b
    Examples:
      mrt-hpc extend runs/mrt-online --iterations 300
    """
    from mrt_hpc.cli.submit import listener
    from mrt_hpc.submit.extension import extended_recipe, schedule_text
    from mrt_hpc.submit.submission import submit_run

    layout, _ = open_run(run)
    recipe = extended_recipe(layout, iterations)
    click.echo(schedule_text(layout, recipe))
    submit_run(recipe, site_of_command(site, layout).checked().site, layout.root, listener())


# -- fork


@click.command(short_help="Begin a new run with the weights of another.")
@click.argument("run_before", type=options.FOLDER, metavar="RUN")
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
    record, where = new.origin.record, site_of_command(site, RunLayout(new.root), layout, trust=trust).checked().site
    click.echo(f"asked for: a run {new.root} that begins with weights version {record.version} of {record.run}")
    for change in record.changes:
        click.echo(f"  {change['field']}: {change['old']} becomes {change['new']}")
    for file in record.data:
        if file.is_changed:
            click.echo(changed_data(file, layout.train_data))
    iterations, schedule = new.recipe.schedule.iterations, new.recipe.training.schedule
    click.echo(f"  {iterations} iteration(s) with a new optimiser and a {schedule} learning-rate schedule")
    submit_run(new.recipe, where, new.root, listener(), new.origin)


def changed_data(data: "ForkedData", copy: Path) -> str:
    """That a data file has changed, in a sentence.

    Args:
        data: which.
        copy: what the old run was trained on.
    """
    keep = f"; to train on the old ones: --set data.path={copy}" if data.field == "data" else ""
    sums = f"sha256 {data.old[:12]} before, {data.new[:12]} now"
    return f"  {data.field}: {data.path} has other contents than in the old run ({sums}), and they are used{keep}"


# -- cancel


@click.command(short_help="Stop a run.")
@click.argument("run", type=RUN)
def cancel(run: Path) -> None:
    """Stop RUN, or all runs of a family. All results stay, and `mrt-hpc submit RUN` continues from there.

    \b
    Examples:
      mrt-hpc cancel runs/quickstart
    """
    from mrt_hpc.backends.queued_jobs import NothingToCancelError, cancel_run
    from mrt_hpc.run.family import runs_of

    members, idle = runs_of(run), list[NothingToCancelError]()
    for member in members:
        layout, _ = open_run(member)
        try:
            for sentence in cancel_run(layout):
                click.echo(sentence)
        except NothingToCancelError as error:
            idle.append(error)
            if len(idle) == len(members):
                raise
            click.echo(f"{member}: {error.what}")
    click.echo(f"finished work is kept; {RunLayout(run).again} continues the run")


# -- clean


KINDS = ("checkpoints", "weights", "set_aside", "parts", "logs")


@click.command(short_help="Free what a run does not need any more.")
@click.argument("run", type=options.FOLDER)
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
        click.echo(f"there is nothing to remove: mrt-hpc status {word(run)}")
        return
    _print(removals_found)
    if not yes and not _agreed(run, what):
        click.echo("nothing was removed")
        return
    freed = in_bytes(remove(layout, plan, recipe, removals_found, asked))
    click.echo(f"freed {freed}; mrt-hpc status {word(run)} shows the run")


def _agreed(run: Path, what: Sequence[str]) -> bool:
    """Whether the user agrees.

    Raises:
        UserError: there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        options = "".join(f" --what {kind}" for kind in what)
        raise UserError(
            "nothing was removed: there is no terminal to ask at",
            expected="--yes",
            advice=f"mrt-hpc clean {word(run)}{options} --yes",
        )
    return click.confirm("remove this?")


def _print(removals: "Sequence[Removal]") -> None:
    from rich.table import Table

    table = Table(show_footer=True)
    table.add_column("what", "all", no_wrap=True)
    table.add_column("items", str(sum(len(removal.paths) for removal in removals)), justify="right")
    table.add_column("frees", in_bytes(sum(removal.frees for removal in removals)), justify="right", no_wrap=True)
    table.add_column("what it means", overflow="fold")
    for removal in removals:
        table.add_row(str(removal.kind), str(len(removal.paths)), in_bytes(removal.frees), removal.note)
    console_of(sys.stdout).print(table)


# -- sync


@click.command(short_help="Upload a run's offline W&B directories.")
@click.argument("run", type=options.FOLDER)
def sync(run: Path) -> None:
    """Upload the offline W&B directories of RUN, on a node with network access, with its report and figures.

    All attempts belong to one W&B run. What is uploaded already is left out, so type it again whenever you like. A run
    never depends on W&B: without it, all metrics are in the run directory.

    \b
    Examples:
      mrt-hpc sync runs/mrt-online
    """
    from mrt_hpc.submit.upload import upload_run

    layout, _ = open_run(run)
    done = upload_run(layout, click.echo)
    if not done.directories:
        click.echo(f"all offline W&B directories are uploaded: {layout.offline_runs}")
        return
    attached = f", with {done.files} file(s) of the report" if done.files else ""
    click.echo(f"uploaded {done.directories} offline W&B director{'y' if done.directories == 1 else 'ies'}{attached}")
