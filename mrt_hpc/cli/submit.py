"""What ``mrt-hpc submit`` does: it loads the recipe, finds the site, and submits; and what it prints on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from mrt_hpc.cli.options import run_path, site_of_command
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.submit.submission import Listener, submit_run


def submit_recipe(
    recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], data: Path | None, run: Path | None
) -> None:
    """Start a recipe at a site, and print each step.

    Raises:
        UserError: recipe, site or data are wrong, the site refuses, or a task failed.
    """
    recipe = load_recipe(recipe_path, overrides, data)
    root = run_path(recipe.name, run)
    site = site_of_command(site_name, RunLayout(root)).checked().site
    submit_run(recipe, site, root, listener())


def listener() -> Listener:
    """Prints the sentences of a submission, and shows how far a run on this machine is."""
    return Listener(click.echo, partial(click.echo, err=True), _display)


@contextmanager
def _display(layout: RunLayout) -> Iterator[Callable[[], None]]:
    from mrt_hpc.cli.display import LineDisplay, LiveDisplay  # it reads records, which `plan` does without

    with (LiveDisplay if sys.stdout.isatty() else LineDisplay)(layout) as display:
        yield display.look
