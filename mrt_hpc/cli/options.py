"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path

import click

from mrt_hpc.cli.completion import complete_override, complete_recipe, complete_run, complete_site
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.find import RECIPES, expanded, find

ROLES = ["prepare", "inference", "trainer", "colocated", "evaluation", "report"]


def checked_run_directory(_: click.Context, __: click.Parameter, text: str | None) -> Path | None:
    """The path given, with ``~`` expanded.

    Raises:
        UserError: the text is empty, which would be the working directory, or the place is a file or below one.
    """
    if text is None:
        return None
    if not text.strip():
        raise UserError("the run directory is empty text", value=text, where="--run", advice="--run runs/NAME")
    path = expanded(text)
    for place in (path, *path.parents):
        if os.path.lexists(place) and not place.is_dir():
            what = "the run directory would be what is no directory, or below it"
            raise UserError(what, where=place, expected="a directory, or nothing yet", advice="--run runs/NAME")
    return path


def _recipe_file(_: click.Context, __: click.Parameter, name: str) -> Path:
    """The recipe of this path or name, which is told where it is not the path typed.

    Raises:
        UserError: there is none.
    """
    path = find(RECIPES, name)
    if path != expanded(name):
        click.echo(f"recipe: {path}", err=True)
    return path


recipe = click.argument("recipe", callback=_recipe_file, shell_complete=complete_recipe)
site = click.option(
    "--site",
    metavar="SITE",
    shell_complete=complete_site,
    help="Site profile: a path, a name in slurm/sites or ~/.config/mrt-hpc/sites, or local for this machine. Default: "
    "the site of the run, MRT_HPC_SITE, the one in ~/.config/mrt-hpc/settings.yaml, or this machine.",
)
here = click.option(
    "--site", metavar="local", help="Work on this machine, also where jobs of a cluster are submitted from it."
)
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    shell_complete=complete_override,
    help="Set one field of the recipe, as in training.learning_rate=2e-6. Repeatable.",
)
run_directory = click.option(
    "--run",
    type=click.Path(),
    callback=checked_run_directory,
    help="Run directory, on a filesystem that all nodes share. Default: runs/NAME, NAME being the recipe's.",
)
trust = click.option(
    "--trust",
    is_flag=True,
    help="Run the code of a run that another user owns or can change: classes of its own that its recipe names.",
)
WHAT = (
    "WHAT is a run, or an evaluation on its own: RUN@VERSION is a weights version by its number, or the first or last "
    "that was evaluated; RUN is the last; EVALDIR is all models of an evaluation, EVALDIR@NAME one of them. Runs and "
    "evaluations may be mixed."
)
"""How models are named, for the help of the commands that read their samples."""
what = click.argument("what", nargs=-1, required=True, metavar="WHAT...", shell_complete=complete_run)


results = click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    show_default=True,
    help="The results folder: samples that are in it are not generated again.",
)
data_folder = click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="The folder that holds the suite's problem files."
)


def run_path(name: str, run: Path | None) -> Path:
    """The run directory: the one given, or the default for a recipe's name."""
    return (run if run is not None else Path("runs") / name).absolute()
