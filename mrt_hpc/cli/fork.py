"""``mrt-hpc fork``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options

if TYPE_CHECKING:
    from mrt_hpc.run.fork_record import ForkedData


@click.command(short_help="Begin a new run with the weights of another.")
@click.argument("run_before", type=click.Path(path_type=Path, file_okay=False), metavar="RUN")
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
    from mrt_hpc.cli.status import open_run
    from mrt_hpc.cli.submit import listener, told_site
    from mrt_hpc.launch.origin import fork_of
    from mrt_hpc.launch.submission import submit
    from mrt_hpc.run.layout import RunLayout

    layout, _ = open_run(run_before)
    new = fork_of(layout, at, overrides, lambda name: run or layout.root.parent / name, trust=trust)
    record, where = new.origin.record, told_site(site, RunLayout(new.root), layout, trust=trust).checked().site
    click.echo(f"the new run {new.root} begins with weights version {record.version} of {record.run}")
    for change in record.changes:
        click.echo(f"  {change['field']}: {change['old']} becomes {change['new']}")
    for one in record.data:
        if one.is_changed:
            click.echo(changed_data(one, layout.train_data))
    iterations, schedule = new.recipe.schedule.iterations, new.recipe.training.schedule
    click.echo(f"it trains for {iterations} iteration(s) with a new optimiser and a {schedule} learning-rate schedule")
    submit(new.recipe, where, new.root, listener(), new.origin)


def changed_data(data: ForkedData, copy: Path) -> str:
    """That a data file has changed, in a sentence.

    Args:
        data: which.
        copy: what the old run was trained on.
    """
    keep = f"; to train on the old ones: --set data.path={copy}" if data.field == "data" else ""
    sums = f"sha256 {data.old[:12]} before, {data.new[:12]} now"
    return f"  {data.field}: {data.path} has other contents than in the old run ({sums}), and they are used{keep}"
