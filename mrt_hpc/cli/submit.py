"""``mrt-hpc submit``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli.display import Display
from mrt_hpc.cli.options import run_path
from mrt_hpc.launch.sites import find_site
from mrt_hpc.launch.submission import Listener, submit
from mrt_hpc.recipe.load import load_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mrt_hpc.launch.backend import RunningHere
    from mrt_hpc.run.layout import RunLayout


def submit_recipe(recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], run: Path | None) -> None:
    """Start a recipe at a site, and print each step.

    Raises:
        UserError: recipe, site or data are wrong, the site refuses, or a task failed.
    """
    recipe, site = load_recipe(recipe_path, overrides), find_site(site_name)
    submit(recipe, site, run_path(recipe.name, run), listener())


def listener() -> Listener:
    """Prints the sentences of a submission, and shows how far a run on this machine is."""
    return Listener(click.echo, _warn, _display)


def _warn(sentence: str) -> None:
    click.echo(sentence, err=True)


@contextmanager
def _display(layout: RunLayout) -> Iterator[Callable[[RunningHere], None]]:
    with Display.of(sys.stdout.isatty(), layout) as display:
        yield display.show
