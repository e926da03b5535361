"""``mrt-hpc fields``."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mrt_hpc.recipe.fields import documented_fields
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.site import SlurmSite

PIPE_WIDTH = 160


def print_fields(kind: str) -> None:
    """Print every field with its default and meaning."""
    table = Table("field", "default", "meaning", show_lines=False)
    table.columns[0].no_wrap = True
    for name, default, text in documented_fields(Recipe if kind == "recipe" else SlurmSite):
        table.add_row(escape(name), escape(default), escape(" ".join(text.split())))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
