"""``mrt-hpc extend``."""

from __future__ import annotations

from pathlib import Path

import click

from mrt_hpc.cli import options


@click.command(short_help="Give a run more iterations.")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
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
    from mrt_hpc.cli.status import open_run
    from mrt_hpc.cli.submit import listener, told_site
    from mrt_hpc.launch.extension import extended_recipe, schedule_text
    from mrt_hpc.launch.submission import submit

    layout, _ = open_run(run)
    recipe = extended_recipe(layout, iterations)
    click.echo(schedule_text(layout, recipe))
    submit(recipe, told_site(site, layout).checked().site, layout.root, listener())
