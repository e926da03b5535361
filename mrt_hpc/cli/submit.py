"""What ``mrt-hpc submit`` does: it loads the recipe, or reads that of a run, finds the site, and submits; and what it
prints on the way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from mrt_hpc.cli.options import run_path, site_of_command
from mrt_hpc.errors import UserError, word
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import changed_recipe, read_lock
from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe
from mrt_hpc.run.layout import RunLayout, existing_run
from mrt_hpc.submit.submission import Listener, submit_run


def submit(what: Path, site_name: str | None, overrides: tuple[str, ...], data: Path | None, run: Path | None) -> None:
    """Start a recipe at a site, or continue a run, and print each step.

    Args:
        what: the file of a recipe, or a run directory.
        site_name: as typed for ``--site``; None where nothing.
        overrides: as typed for ``--set``.
        data: the folder of all data files of a recipe; None for those that it names.
        run: the run directory of a recipe; None for the one that its name gives.

    Raises:
        UserError: recipe, run, site or data are wrong, the site refuses, or a task failed.
    """
    recipe, layout = asked_for(what, overrides, data, run)
    site = site_of_command(site_name, layout).checked().site
    if isinstance(recipe, Recipe):
        submit_run(recipe, site, layout.root, listener())
        return
    from mrt_hpc.evaluate.asked_models import awaited_jobs
    from mrt_hpc.evaluate.evaluation_alone import submit_evaluation

    submit_evaluation(recipe, awaited_jobs(recipe, layout), site, layout.root, listener())


def asked_for(
    what: Path, overrides: tuple[str, ...], data: Path | None, run: Path | None
) -> tuple[Recipe | EvaluationRecipe, RunLayout]:
    """The recipe that a command names, and its run directory; arguments as in :func:`submit`.

    Raises:
        UserError: recipe or run are wrong, or a second directory is named for a run.
    """
    if not what.is_dir():
        recipe = load_recipe(what, overrides, data)
        return recipe, RunLayout(run_path(recipe.name, run))
    layout = existing_run(what)
    if run is not None:
        raise UserError(
            "a run is continued in its own directory",
            value=str(run),
            where="--run",
            expected="no --run beside a run directory",
            advice=f"{layout.again}; for another run: mrt-hpc submit RECIPE --run {word(run)}",
        )
    if data is not None:
        raise UserError(
            "a run is continued with its own data",
            value=str(data),
            where="--data",
            expected="no --data beside a run directory",
            advice=f"{layout.again}; for another run: mrt-hpc submit RECIPE --data {word(data)} --run DIR",
        )
    return _begun(layout, overrides), layout


def _begun(layout: RunLayout, overrides: tuple[str, ...]) -> Recipe | EvaluationRecipe:
    """The recipe of a run, or of an evaluation on its own, with the fields that are set."""
    recipe = read_lock(layout.recipe_lock)
    if overrides:
        recipe = changed_recipe(layout.recipe_lock, recipe, overrides)
    if isinstance(recipe, Recipe):
        return recipe
    from mrt_hpc.evaluate.evaluation_alone import as_it_stands

    return as_it_stands(recipe)


def listener() -> Listener:
    """Prints the sentences of a submission, and shows how far a run on this machine is."""
    return Listener(click.echo, partial(click.echo, err=True), _display)


@contextmanager
def _display(layout: RunLayout) -> Iterator[Callable[[], None]]:
    from mrt_hpc.cli.display import LineDisplay, LiveDisplay  # it reads records, which `plan` does without

    with (LiveDisplay if sys.stdout.isatty() else LineDisplay)(layout) as display:
        yield display.look
