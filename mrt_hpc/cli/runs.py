"""``mrt-hpc runs``: lists runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.launch.view.run_list import ListedRun

DEFAULT = Path("runs")
LEFT_OUT = frozenset({"kind", "evaluations", "what"})
"""The columns that a narrow terminal does not show."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@click.command(short_help="List runs with their states.")
@click.argument("places", nargs=-1, type=click.Path(path_type=Path, file_okay=False), metavar="[DIR]...")
@click.option("--size", is_flag=True, help="Also the size on disk, which reads every folder of the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def runs(places: tuple[Path, ...], size: bool, as_json: bool) -> None:
    """List the runs in and below each DIR (default: runs), the one with the newest event first.

    \b
    Examples:
      mrt-hpc runs
      mrt-hpc runs /shared/me/runs --size
    """
    from mrt_hpc.cli.status import QUEUE_WITHIN_S
    from mrt_hpc.launch.view.run_list import list_runs

    wanted = places or (DEFAULT,)
    found = list_runs(wanted, QUEUE_WITHIN_S, size=size)
    if as_json:
        click.echo(json.dumps([run.model_dump(mode="json") for run in found], indent=2))
    elif found:
        _print(found, size=size)
    else:
        click.echo(
            f"no runs in {', '.join(map(str, wanted))}; mrt-hpc submit RECIPE makes one, mrt-hpc runs DIR looks in DIR"
        )


def _print(found: Sequence[ListedRun], *, size: bool) -> None:
    """A table of runs, and what could not be read."""
    import time

    from rich.table import Table

    from mrt_hpc.cli.console import console_of
    from mrt_hpc.cli.run_view import NARROW

    console = console_of(sys.stdout)
    rows = [_row(run, time.time(), size=size) for run in found]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = [name for name in rows[0] if console.width >= NARROW or name not in LEFT_OUT]
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column != "run")
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    console.print(table)
    for run in found:
        if run.trouble:
            click.echo(f"{_shown(run.run)}: {run.trouble}", err=True)
    click.echo(f"next: mrt-hpc status {_shown(found[0].run)}")


def _row(run: ListedRun, now: float, *, size: bool) -> dict[str, str]:
    """What the table says of a run, by column."""
    from mrt_hpc.cli.run_view import COLOURS, moment

    event = "" if run.newest_event is None else moment(run.newest_event, now)
    return {
        "run": _shown(run.run),
        "kind": run.kind,
        "state": "damaged" if run.state is None else f"[{COLOURS[run.state]}]{run.state}[/]",
        "iterations": f"{run.iterations_done}/{run.iterations_planned}" if run.iterations_planned else "",
        "evaluations": f"{run.evaluations_done}/{run.evaluations_planned}" if run.evaluations_planned else "",
        "newest event": event,
        "what": run.newest_event_kind or "",
        **({"size": in_bytes(run.bytes or 0)} if size else {}),
    }


def _shown(run: str) -> str:
    """A run directory as a user would type it here."""
    path, here = Path(run), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else run


def in_bytes(count: float) -> str:
    """A number of bytes in words: ``1.5 GiB``."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
