"""``mrt-hpc cost``, and the table of hours by use and role."""

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mrt_hpc.analysis.number_formats import duration
from mrt_hpc.cli import options
from mrt_hpc.cli.options import RunPath, RunUse
from mrt_hpc.cli.status import open_run
from mrt_hpc.cli.terminal import FittedTable, Terminal, echo, echo_json, print_notes
from mrt_hpc.errors import Advice
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from mrt_hpc.analysis.spending import BranchCost, PointPrice, Spending
    from mrt_hpc.plan.hours import UseHours

QUEUED = "queued"
"""Time in the queue is no use, as nothing was allocated."""


@click.command(short_help="Show what a run has cost, by role and use.")
@click.argument("run", type=RunPath(RunUse.LOOKS))
@click.option("--csv", "csv_file", type=options.FILE, help="Also write the hours by role and use to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def cost(run: Path, csv_file: Path | None, as_json: bool) -> None:
    """Show the GPU-hours of RUN by role and use (core-hours where it used no GPUs), and what a point of accuracy cost.

    The hours are those of the cluster's accounting, or without it of the run's own events, which also say what the time
    was used for. The uses add up to the whole; the time in the queue stands beside.

    \b
    Examples:
      mrt-hpc cost runs/mrt-online
      mrt-hpc cost runs/mrt-online --csv cost.csv
    """
    from mrt_hpc.run.family import runs_of

    if (members := runs_of(run)) != [run] and csv_file is None:
        reckonings = {str(member): _reckon_run(member) for member in members}
        if as_json:
            echo_json({name: spending_data(of_run) for name, of_run in reckonings.items()})
            return
        for name, of_run in reckonings.items():
            echo(f"{name}:")
            _print(of_run, Path(name))
        return
    reckoned = _reckon_run(run)
    if csv_file is not None:
        csv_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(csv_file, spending_csv(reckoned.spent))
    if as_json:
        echo_json(spending_data(reckoned))
        return
    _print(reckoned, run)
    if csv_file is not None:
        echo(f"hours by role and use: {csv_file}")


@dataclass(frozen=True)
class Reckoning:
    spent: "Spending"
    prices: "Sequence[PointPrice]"
    notes: Sequence[str]
    branches: "BranchCost | None" = None

    @property
    def counts_gpus(self) -> bool:
        return self.spent.gpu_hours > 0


def _reckon_run(run: Path) -> Reckoning:
    from mrt_hpc.analysis.measures import read_measurements
    from mrt_hpc.analysis.spending import BranchCost, prices, spending
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
    measured = read_measurements(layout, plan.iterations, recipe.evaluated_versions, settings)
    paid, notes = prices(spent, measured.evaluations), (*unread, *measured.unreadable, *spent.notes)
    return Reckoning(spent, paid, notes, BranchCost.of(measured.iterations))


def spending_csv(spent: "Spending") -> str:
    """The time in the queue has rows of its own, without GPU-hours."""
    from mrt_hpc.plan.hours import UseHours

    stream = StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(UseHours)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in spent.rows)
    writer.writerows({"role": role, "use": QUEUED, "hours": hours} for role, hours in spent.queue_hours.items())
    return stream.getvalue()


def spending_data(reckoned: Reckoning) -> dict[str, Any]:
    spent = reckoned.spent
    return {
        "source": "accounting" if spent.accounted else "events",
        "attempts": len(spent.attempts),
        "wall_seconds": spent.wall_seconds,
        "gpu_hours": spent.gpu_hours,
        "core_hours": spent.core_hours,
        "by_role_and_use": [asdict(row) for row in spent.rows],
        "queue_hours": spent.queue_hours,
        "sampled_tokens": asdict(spent.sampled),
        "points": [asdict(price) for price in reckoned.prices],
        "branches": None if reckoned.branches is None else asdict(reckoned.branches),
        "notes": list(reckoned.notes),
    }


def _print(reckoned: Reckoning, run: Path) -> None:

    spent = reckoned.spent
    if not spent.attempts:
        echo(Advice("no task of this run has started, so it has cost nothing yet: mrt-hpc status {run}", run=run))
        return
    Terminal(sys.stdout).print(hours_table(spent.rows, of_gpus=reckoned.counts_gpus))
    source = "by the cluster's accounting" if spent.accounted else "by the run's own events"
    echo(
        f"{hours_text(spent.gpu_hours, 'GPU')} and {hours_text(spent.core_hours, 'core')} {source}, in "
        f"{len(spent.attempts)} attempt(s) within {duration(spent.wall_seconds)}"
    )
    if spent.queue_hours:
        queued = ", ".join(f"{role} {hours:,.2f} h" for role, hours in spent.queue_hours.items())
        echo(f"time in the queue, all tasks together, not counted above: {queued}")
    if (tokens := spent.sampled).thrown_groups:
        echo(
            f"{tokens.thrown_groups:,} group(s) with {tokens.thrown:,} of {tokens.every:,} sampled tokens were thrown "
            "away, and other problems sampled in their place (sampling.resample)"
        )
    for price in reckoned.prices:
        echo(price_text(price, of_gpus=reckoned.counts_gpus))
    if reckoned.branches is not None:
        echo(f"tokens: {reckoned.branches}")
    print_notes(reckoned.notes)
    echo(Advice("the report has these hours by its events: mrt-hpc report {run}", run=run))


def price_text(price: "PointPrice", *, of_gpus: bool) -> str:
    versions = f"{price.benchmark}, weights version {price.first} to {price.last}: {price.gain:+.1f} points"
    hours, of_what = (price.gpu_hours, "GPU") if of_gpus else (price.core_hours, "core")
    if hours is None:
        return f"{versions}, so no point was gained"
    return f"{versions}, {hours_text(hours, of_what)} of training a point (evaluations not counted)"


# -- hours -------------------------------------------------------------------------------------------------------------


FEW_HOURS = 10.0
"""Below, a table has more digits after the point."""


def hours_text(hours: float, of_what: str) -> str:
    """Minutes below one hour: ``314.00 GPU-hours``, ``5.90 core-minutes``."""
    return f"{hours:,.2f} {of_what}-hours" if hours >= 1 or not hours else f"{60 * hours:,.2f} {of_what}-minutes"


def hours_table(rows: "Iterable[UseHours]", *, of_gpus: bool, expected: bool = False) -> FittedTable:
    """Uses as rows, roles as columns, with sums and shares; in minutes where all is less than an hour. The title says
    that ``expected`` hours are an estimate.
    """
    from mrt_hpc.run.events import Use

    rows = list(rows)
    in_hours = sum(row.gpu_hours if of_gpus else row.core_hours for row in rows)
    factor, unit, digits = (60, "minutes", 2) if in_hours < 1 else (1, "hours", 1 if in_hours >= FEW_HOURS else 2)
    hours = {(row.role, row.use): factor * (row.gpu_hours if of_gpus else row.core_hours) for row in rows}
    roles = [role for role in dict.fromkeys(role for role, _ in hours) if any(hours[k] for k in hours if k[0] == role)]
    uses = sorted({use for role, use in hours if role in roles}, key=list(Use).index)
    whole = sum(hours.values())
    title = f"{'expected ' if expected else ''}{'GPU' if of_gpus else 'core'}-{unit}"
    table = FittedTable(title=title, title_justify="left", show_footer=True)
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
