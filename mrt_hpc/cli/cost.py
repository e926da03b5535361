"""``mrt-hpc cost``, and the table of hours by use and role."""

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mrt_hpc.analysis.number_formats import duration
from mrt_hpc.cli import options
from mrt_hpc.cli.options import console_of, print_notes
from mrt_hpc.cli.status import open_run
from mrt_hpc.errors import word
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from rich.table import Table

    from mrt_hpc.analysis.spending import PointPrice, Spending
    from mrt_hpc.plan.hours import UseHours

QUEUED = "queued"
"""The word for time in the queue. It is no use, as nothing was allocated."""


@click.command(short_help="Show what a run has cost, by role and use.")
@click.argument("run", type=options.FOLDER)
@click.option("--csv", "csv_file", type=options.FILE, help="Also write the hours by role and use to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def cost(run: Path, csv_file: Path | None, as_json: bool) -> None:
    """Show the GPU-hours of RUN by role and use (core-hours where it used no GPUs), and what a point of accuracy cost.

    The hours are those of the cluster's accounting, of all attempts of all jobs. Without accounting they are those of
    the run's own events, which also say what the time was used for. The uses add up to the whole. The time in the queue
    stands beside, as nothing was allocated then.

    \b
    Examples:
      mrt-hpc cost runs/mrt-online
      mrt-hpc cost runs/mrt-online --csv cost.csv
    """
    from mrt_hpc.run.family import runs_of

    if (members := runs_of(run)) != [run] and csv_file is None:
        reckonings = {str(member): _reckoned(member) for member in members}
        if as_json:
            click.echo(json.dumps({name: as_data(of_run) for name, of_run in reckonings.items()}, indent=2))
            return
        for name, of_run in reckonings.items():
            click.echo(f"{name}:")
            _print(of_run, Path(name))
        return
    reckoned = _reckoned(run)
    if csv_file is not None:
        csv_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(csv_file, as_csv(reckoned.spent))
    if as_json:
        click.echo(json.dumps(as_data(reckoned), indent=2, allow_nan=False))
        return
    _print(reckoned, run)
    if csv_file is not None:
        click.echo(f"hours by role and use: {csv_file}")


@dataclass(frozen=True)
class Reckoning:
    """The reckoning of a run, and what a reader has to know of it."""

    spent: "Spending"
    prices: "Sequence[PointPrice]"
    notes: Sequence[str]

    @property
    def of_gpus(self) -> bool:
        """Whether GPU-hours are shown, and not core-hours."""
        return self.spent.gpu_hours > 0


def _reckoned(run: Path) -> Reckoning:
    from mrt_hpc.analysis.measures import read_measurements
    from mrt_hpc.analysis.spending import prices, spending
    from mrt_hpc.backends.queued_jobs import accounts
    from mrt_hpc.recipe.lock import look_at_lock
    from mrt_hpc.run.evaluation_settings import evaluation_settings
    from mrt_hpc.run.typed_file import UnreadableError

    layout, plan = open_run(run)
    recipe = look_at_lock(layout.recipe_lock)
    known, unread = accounts(layout)
    spent = spending(layout, plan, recipe, known)
    if not recipe.trains:
        return Reckoning(spent, (), (*unread, *spent.notes))
    try:
        settings = evaluation_settings(layout, recipe)
    except UnreadableError as error:
        return Reckoning(spent, (), (*unread, error.line, *spent.notes))
    measured = read_measurements(layout, 0, recipe.evaluated_versions, settings)
    return Reckoning(spent, prices(spent, measured.evaluations), (*unread, *measured.unreadable, *spent.notes))


def as_csv(spent: "Spending") -> str:
    """The hours by role and use. The time in the queue has rows of its own, without GPU-hours."""
    from mrt_hpc.plan.hours import UseHours

    stream = StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(UseHours)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in spent.rows)
    writer.writerows({"role": role, "use": QUEUED, "hours": hours} for role, hours in spent.queue_hours.items())
    return stream.getvalue()


def as_data(reckoned: Reckoning) -> dict[str, Any]:
    """The numbers for ``--json``."""
    spent = reckoned.spent
    return {
        "source": "accounting" if spent.accounted else "events",
        "attempts": len(spent.attempts),
        "wall_seconds": spent.wall_seconds,
        "gpu_hours": spent.gpu_hours,
        "core_hours": spent.core_hours,
        "by_role_and_use": [asdict(row) for row in spent.rows],
        "queue_hours": spent.queue_hours,
        "points": [asdict(price) for price in reckoned.prices],
        "notes": list(reckoned.notes),
    }


def _print(reckoned: Reckoning, run: Path) -> None:

    spent = reckoned.spent
    if not spent.attempts:
        click.echo(f"no task of this run has started, so it has cost nothing yet: mrt-hpc status {word(run)}")
        return
    console_of(sys.stdout).print(hours_table(spent.rows, of_gpus=reckoned.of_gpus))
    source = "by the cluster's accounting" if spent.accounted else "by the run's own events"
    click.echo(
        f"{hours_text(spent.gpu_hours, 'GPU')} and {hours_text(spent.core_hours, 'core')} {source}, in "
        f"{len(spent.attempts)} attempt(s) within {duration(spent.wall_seconds)}"
    )
    if spent.queue_hours:
        queued = ", ".join(f"{role} {hours:,.2f} h" for role, hours in spent.queue_hours.items())
        click.echo(f"time in the queue, all tasks together, not counted above: {queued}")
    for price in reckoned.prices:
        click.echo(price_text(price, of_gpus=reckoned.of_gpus))
    print_notes(reckoned.notes)
    click.echo(f"mrt-hpc report {word(run)} writes the report, which has these hours by its events")


def price_text(price: "PointPrice", *, of_gpus: bool) -> str:
    """What a point of accuracy on a benchmark has cost, in a sentence."""
    versions = f"{price.benchmark}, weights version {price.first} to {price.last}: {price.gain:+.1f} points"
    hours, of_what = (price.gpu_hours, "GPU") if of_gpus else (price.core_hours, "core")
    if hours is None:
        return f"{versions}, so no point was gained"
    return f"{versions}, {hours_text(hours, of_what)} of training a point (evaluations not counted)"


# -- hours -------------------------------------------------------------------------------------------------------------


FEW_HOURS = 10.0
"""The hours below which a table has more digits after the point."""


def hours_text(hours: float, of_what: str) -> str:
    """Hours of GPUs or cores in words, and minutes below one hour: ``314.00 GPU-hours``, ``5.90 core-minutes``."""
    return f"{hours:,.2f} {of_what}-hours" if hours >= 1 or not hours else f"{60 * hours:,.2f} {of_what}-minutes"


def hours_table(rows: "Iterable[UseHours]", *, of_gpus: bool, expected: bool = False) -> "Table":
    """Uses as rows, roles as columns, both sums, and the share of each use; in minutes where all is less than an hour.

    Args:
        rows: the hours; a role whose hours are all 0 has no column.
        of_gpus: whether GPU-hours are shown, and not core-hours.
        expected: whether the hours are an estimate, which the title then says.
    """
    from rich.table import Table

    from mrt_hpc.run.events import Use

    rows = list(rows)
    in_hours = sum(row.gpu_hours if of_gpus else row.core_hours for row in rows)
    factor, unit, digits = (60, "minutes", 2) if in_hours < 1 else (1, "hours", 1 if in_hours >= FEW_HOURS else 2)
    hours = {(row.role, row.use): factor * (row.gpu_hours if of_gpus else row.core_hours) for row in rows}
    roles = [role for role in dict.fromkeys(role for role, _ in hours) if any(hours[k] for k in hours if k[0] == role)]
    uses = sorted({use for role, use in hours if role in roles}, key=list(Use).index)
    whole = sum(hours.values())
    title = f"{'expected ' if expected else ''}{'GPU' if of_gpus else 'core'}-{unit}"
    table = Table(title=title, title_justify="left", show_footer=True)
    table.add_column("use", "all", overflow="fold")
    for role in roles:
        column = sum(hours.get((role, use), 0.0) for use in uses)
        table.add_column(str(role), f"{column:,.{digits}f}", justify="right")
    table.add_column("all", f"{whole:,.{digits}f}", justify="right")
    table.add_column("share", "100.0 %" if whole else "", justify="right")
    for use in uses:
        cells = [hours.get((role, use)) for role in roles]
        row = sum(cell for cell in cells if cell is not None)
        share = f"{row / whole:.1%}".replace("%", " %") if whole else ""
        table.add_row(str(use), *("" if c is None else f"{c:,.{digits}f}" for c in cells), f"{row:,.{digits}f}", share)
    return table
