"""``mrt-hpc submit``."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli.display import Display
from mrt_hpc.cli.options import run_path
from mrt_hpc.launch.run_site import chosen_site
from mrt_hpc.launch.submission import Listener, submit
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mrt_hpc.launch.backend import RunningHere
    from mrt_hpc.launch.run_site import ChosenSite


def submit_recipe(recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], run: Path | None) -> None:
    """Start a recipe at a site, and print each step.

    Raises:
        UserError: recipe, site or data are wrong, the site refuses, or a task failed.
    """
    recipe = load_recipe(recipe_path, overrides)
    root = run_path(recipe.name, run)
    site = told_site(site_name, RunLayout(root)).checked().site
    submit(recipe, site, root, listener())


def told_site(name: str | None, *runs: RunLayout, trust: bool = False) -> ChosenSite:
    """The site of a command as :func:`chosen_site` finds it, which is told where the command does not name it.

    Raises:
        UserError: there is no such site.
    """
    chosen = chosen_site(name, *runs, trust=trust)
    if chosen.why:
        click.echo(chosen.text, err=True)
    return chosen


def listener() -> Listener:
    """Prints the sentences of a submission, and shows how far a run on this machine is."""
    return Listener(click.echo, _warn, _display)


def _warn(sentence: str) -> None:
    click.echo(sentence, err=True)


@contextmanager
def _display(layout: RunLayout) -> Iterator[Callable[[RunningHere], None]]:
    with Display.of(sys.stdout.isatty(), layout) as display:
        yield display.show
