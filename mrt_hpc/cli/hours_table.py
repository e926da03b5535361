"""The table of hours by use and role: what a plan expects, and what a run has cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from mrt_hpc.run.uses import Use

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mrt_hpc.plan.cost import UseHours

FEW_HOURS = 10.0
"""Below so many hours a table has more digits after the point."""


def hours_table(rows: Iterable[UseHours], *, of_gpus: bool, digits: int, expected: bool = False) -> Table:
    """Uses as rows, roles as columns, both sums, and the share of each use.

    Args:
        rows: the hours; a role whose hours are all 0 has no column.
        of_gpus: whether GPU-hours are shown, and not core-hours.
        digits: of each number, after the point.
        expected: whether the hours are an estimate, which the title then says.
    """
    hours = {(row.role, row.use): row.gpu_hours if of_gpus else row.core_hours for row in rows}
    roles = [role for role in dict.fromkeys(role for role, _ in hours) if any(hours[k] for k in hours if k[0] == role)]
    uses = sorted({use for role, use in hours if role in roles}, key=list(Use).index)
    whole = sum(hours.values())
    unit = "GPU-hours" if of_gpus else "core-hours"
    title = f"expected {unit}" if expected else unit
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
