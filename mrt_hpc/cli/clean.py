"""``mrt-hpc clean``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.errors import UserError, word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.launch.cleaning import Removal

KINDS = ("checkpoints", "weights", "set_aside", "parts", "logs")


@click.command(short_help="Free what a run does not need any more.")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
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
    from mrt_hpc.cli.status import open_run
    from mrt_hpc.launch.cleaning import Kind, refuse_live, removals, remove
    from mrt_hpc.recipe.lock import read_lock

    layout, plan = open_run(run)
    refuse_live(layout)
    recipe, asked = read_lock(layout.recipe_lock), tuple(map(Kind, what))
    found = removals(layout, plan, recipe, asked)
    if not found:
        click.echo(f"there is nothing to remove: mrt-hpc status {word(run)}")
        return
    _print(found)
    if not yes and not _agreed(run, what):
        click.echo("nothing was removed")
        return
    click.echo(f"freed {size(remove(layout, plan, recipe, found, asked))}; mrt-hpc status {word(run)} shows the run")


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


def _print(found: Sequence[Removal]) -> None:
    from rich.table import Table

    from mrt_hpc.cli.console import console_of

    table = Table(show_footer=True)
    table.add_column("what", "all", no_wrap=True)
    table.add_column("items", str(sum(len(one.paths) for one in found)), justify="right")
    table.add_column("frees", size(sum(one.frees for one in found)), justify="right", no_wrap=True)
    table.add_column("what it means", overflow="fold")
    for one in found:
        table.add_row(str(one.kind), str(len(one.paths)), size(one.frees), one.note)
    console_of(sys.stdout).print(table)


def size(count: float) -> str:
    """Bytes in words, in powers of 1000 as ``df -H`` writes them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
