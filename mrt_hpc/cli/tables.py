"""The tables of memory by role, and of hours by use and role, which `plan` and other commands print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table

from mrt_hpc.cli.options import table_of
from mrt_hpc.plan.hours import UseHours
from mrt_hpc.plan.memory_fit import Fits, RoleFit, unfit
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.site import SiteSettings
from mrt_hpc.run.events import Use

PARTS = ("weights", "optimiser", "gradients", "exchange", "activations", "logits", "KV cache", "other")
"""The rows, in their order."""


def memory_table(fitted: Fits) -> Table:
    """One column a role: GiB of one process at its peak, by what they are for; a column adds up to what is needed."""
    roles = fitted.roles
    names = [role.name for role in roles]
    table = table_of("memory of a process at its peak, GiB", "for", *names, right=names)
    for part in (part for part in PARTS if any(part in role.parts for role in roles)):
        table.add_row(part, *(_number(role.parts.get(part)) for role in roles))
    table.add_section()
    table.add_row("needed", *(_number(role.needed) for role in roles))
    table.add_row("of", *(f"{role.limit:.1f} {role.place}" for role in roles))
    table.add_row("share", *(f"{role.share:.0%}".replace("%", " %") for role in roles))
    return table


def _number(gib: float | None) -> str:
    return "" if gib is None else f"{gib:.1f}" if gib >= 0.05 or not gib else f"{gib:.3f}"


def memory_lines(fitted: Fits) -> Iterator[str]:
    """What the caches hold, where the limits are from, and what was not checked."""
    yield from (role.note for role in fitted.roles if role.note)
    sources = dict.fromkeys(role.source for role in fitted.roles if role.place == "GPU")
    if sources:
        yield f"The memory of a GPU: {'; '.join(sources)}. What a server takes besides its weights is an estimate."
    yield from fitted.unchecked


def memory_warnings(fitted: Fits, recipe: Experiment, site: SiteSettings) -> Iterator[tuple[bool, str]]:
    """What will be refused (True), and what is doubtful (False), a sentence each."""
    for role in fitted.refused:
        yield True, one_line(role, recipe, site)
    for role in fitted.doubtful:
        if role.fits:
            yield False, f"{role.name} needs {role.share:.0%} of its {role.limit:.1f} GiB ({role.source})"
        else:
            yield False, one_line(role, recipe, site)


def one_line(role: RoleFit, recipe: Experiment, site: SiteSettings) -> str:
    """The error for a role that does not fit, as a sentence."""
    error = unfit(role, recipe, site)
    return f"{error.what}; {error.expected}; next: {error.advice}"


def memory_json(fitted: Fits) -> dict[str, Any]:
    """The same as data: GiB by role and part, whether it fits, and what was not checked."""
    roles = [{**asdict(role), "share": role.share, "fits": role.fits} for role in fitted.roles]
    return {"roles": roles, "unchecked": list(fitted.unchecked)}


# -- hours -------------------------------------------------------------------------------------------------------------


FEW_HOURS = 10.0
"""The hours below which a table has more digits after the point."""


def hours_text(hours: float, of_what: str) -> str:
    """Hours of GPUs or cores in words, and minutes below one hour: ``314.00 GPU-hours``, ``5.90 core-minutes``."""
    return f"{hours:,.2f} {of_what}-hours" if hours >= 1 or not hours else f"{60 * hours:,.2f} {of_what}-minutes"


def hours_table(rows: Iterable[UseHours], *, of_gpus: bool, expected: bool = False) -> Table:
    """Uses as rows, roles as columns, both sums, and the share of each use; in minutes where all is less than an hour.

    Args:
        rows: the hours; a role whose hours are all 0 has no column.
        of_gpus: whether GPU-hours are shown, and not core-hours.
        expected: whether the hours are an estimate, which the title then says.
    """
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
