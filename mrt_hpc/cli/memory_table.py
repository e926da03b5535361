"""The table of memory: what each role of a plan takes, and what it gets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mrt_hpc.plan.fitting import unfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.plan.fits import Fits, RoleFit
    from mrt_hpc.recipe.evaluation_recipe import Experiment
    from mrt_hpc.recipe.site import SiteSettings

PARTS = ("weights", "optimiser", "gradients", "exchange", "activations", "logits", "KV cache", "other")
"""The columns, in their order."""


def memory_table(found: Fits) -> Table:
    """One row a role: GiB of one process at its peak, by what they are for."""
    table = Table(title="memory of a process at its peak, GiB", title_justify="left")
    table.add_column("role", overflow="fold")
    parts = [part for part in PARTS if any(part in role.parts for role in found.roles)]
    for column in (*parts, "needed", "of", "share"):
        table.add_column(column, justify="right", overflow="fold")
    for role in found.roles:
        numbers = [_number(role.parts.get(part)) for part in parts]
        place = f"{role.limit:.1f} {role.place}"
        table.add_row(role.name, *numbers, _number(role.needed), place, f"{role.share:.0%}".replace("%", " %"))
    return table


def _number(gib: float | None) -> str:
    return "" if gib is None else f"{gib:.1f}" if gib >= 0.05 else f"{gib:.3f}"


def memory_lines(found: Fits) -> Iterator[str]:
    """What the caches hold, where the limits are from, and what was not checked."""
    yield from (role.note for role in found.roles if role.note)
    sources = dict.fromkeys(role.source for role in found.roles if role.place == "GPU")
    if sources:
        yield f"The memory of a GPU: {'; '.join(sources)}. What a server takes besides its weights is an estimate."
    yield from found.unchecked


def memory_warnings(found: Fits, recipe: Experiment, site: SiteSettings) -> Iterator[tuple[bool, str]]:
    """What will be refused (True), and what is doubtful (False), a sentence each."""
    for role in found.refused:
        yield True, one_line(role, recipe, site)
    for role in found.doubtful:
        if role.fits:
            yield False, f"{role.name} needs {role.share:.0%} of its {role.limit:.1f} GiB ({role.source})"
        else:
            yield False, one_line(role, recipe, site)


def one_line(role: RoleFit, recipe: Experiment, site: SiteSettings) -> str:
    """The error for a role that does not fit, as a sentence."""
    error = unfit(role, recipe, site)
    return f"{error.what}; {error.expected}; next: {error.advice}"


def memory_json(found: Fits) -> dict[str, Any]:
    """The same as data: GiB by role and part, whether it fits, and what was not checked."""
    roles = [{**asdict(role), "share": role.share, "fits": role.fits} for role in found.roles]
    return {"roles": roles, "unchecked": list(found.unchecked)}
