"""``mrt-hpc sync``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Upload a run's offline W&B directories.")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
def sync(run: Path) -> None:
    """Upload the offline W&B directories of RUN, on a node with network access, with its report and figures.

    All attempts belong to one W&B run. What is uploaded already is left out, so type it again whenever you like. A run
    never depends on W&B: without it, all metrics are in the run directory.

    \b
    Examples:
      mrt-hpc sync runs/mrt-online
    """
    from mrt_hpc.cli.status import open_run
    from mrt_hpc.launch.upload import upload_run

    layout, _ = open_run(run)
    done = upload_run(layout, click.echo)
    if not done.directories:
        click.echo(f"all offline W&B directories are uploaded: {layout.offline_runs}")
        return
    attached = f", with {done.files} file(s) of the report" if done.files else ""
    click.echo(f"uploaded {done.directories} offline W&B director{'y' if done.directories == 1 else 'ies'}{attached}")
