"""The options and arguments that several commands share."""

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from mrt_hpc.cli import completion
from mrt_hpc.cli.terminal import echo
from mrt_hpc.errors import Advice, UserError, nearest, word
from mrt_hpc.recipe.find import RECIPES, SHAPES, SITES, expand_home, find, known_names
from mrt_hpc.recipe.ownership import refuse_to_write
from mrt_hpc.run.layout import RunLayout, new_run_directory

if TYPE_CHECKING:
    from mrt_hpc.backends.sites import ChosenSite
    from mrt_hpc.run.family import Axis

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
ROLES = ["prepare", "inference", "trainer", "colocated", "evaluation", "report"]
WHAT = (
    "WHAT is a run, or an evaluation on its own: RUN@VERSION is a weights version by its number, or the first or last "
    "that its recipe evaluates; RUN is the last; EVALDIR is all models of an evaluation, EVALDIR@NAME one of them. "
    "Runs and evaluations may be mixed."
)
"""For the help of commands that read samples."""


class RunUse(StrEnum):
    LOOKS = "looks"
    """It reads the run, and takes nothing of it to another place."""
    COPIES = "copies"
    """It takes files of the run into another run."""
    WRITES = "writes"
    """It changes the run, its jobs or its processes: the run must be this user's own."""


class RunName(click.ParamType[Any]):
    """A run, with or without a version, or what stands in its place, as a recipe."""

    name = "text"

    def __init__(self, use: RunUse) -> None:
        self.use = use

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completion.complete_run(ctx, param, incomplete)


class RunPath(RunName, click.Path):
    """Refused where the command writes to it and it is not this user's own."""

    def __init__(self, use: RunUse, unless: str | None = None) -> None:
        """``unless``: the eager option with which the command does not write to the run."""
        click.Path.__init__(self, path_type=Path, file_okay=False)
        self.use, self.unless = use, unless

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(click.Path.convert(self, value, param, ctx)))
        elsewhere = ctx is not None and isinstance(ctx.params.get(self.unless or ""), Path)
        if self.use is RunUse.WRITES and not elsewhere and path.is_dir():  # where there is none, the command says that
            instead = ctx and self.unless and f"mrt-hpc {ctx.info_name} {word(path)} --{self.unless} FILE"
            path = refuse_to_write(path, instead or None)
        return path


def checked_run_directory(_: click.Context, __: click.Parameter, text: str | None) -> Path | None:
    """The path given, as :func:`new_run_directory` takes it."""
    return None if text is None else new_run_directory(text)


def _recipe_file(_: click.Context, __: click.Parameter, name: str) -> Path:
    """The recipe of this path or name, printed where it is not the path typed."""
    path = find(RECIPES, name)
    if path != expand_home(name):
        echo(f"recipe: {path}", err=True)
    return path


def _recipe_or_run(context: click.Context, parameter: click.Parameter, name: str) -> Path:
    """A bare name that is both a recipe and a run is refused."""
    path = expand_home(name)
    layout = RunLayout(path)
    if layout.recipe_lock.exists() or layout.plan.exists():
        if name in known_names(RECIPES):
            raise UserError(
                "both a recipe and a run directory have this name",
                value=name,
                expected=f"{find(RECIPES, name)} for the recipe, ./{name} for the run",
                advice=Advice("mrt-hpc {info_name} ./{path}", info_name=context.info_name, path=path),
            )
        if isinstance(parameter.type, RunName) and parameter.type.use is RunUse.WRITES:
            path = refuse_to_write(path)
        return path
    try:
        return _recipe_file(context, parameter, name)
    except UserError as error:
        if path.is_dir():
            return path  # which is no run, as the command will say
        if (run := nearest(name, map(str, completion.runs_beginning(f"{path.parent}/")))) is None:
            raise error.reword("there is no such recipe or run directory") from error
        raise UserError(
            "there is no such recipe or run directory",
            value=name,
            expected=f"{run} is the nearest",
            advice=Advice("mrt-hpc {info_name} {run}", info_name=context.info_name, run=run),
        ) from error


recipe = click.argument("recipe", callback=_recipe_file, shell_complete=completion.complete_recipe)
option_recipe = click.option(
    "--recipe",
    default="quickstart",
    show_default=True,
    type=RunName(RunUse.LOOKS),
    callback=_recipe_or_run,
    shell_complete=completion.complete_recipe_or_run,
    help="The recipe that says how, or a run: its recipe does.",
)


def recipes_or_run(use: RunUse) -> Callable[[Any], Any]:
    """Recipes or a run, and all that is asked for beside."""
    what = click.argument(
        "what",
        nargs=-1,
        required=True,
        metavar="RECIPE...|RUN",
        type=RunName(use),
        callback=lambda context, parameter, names: [_recipe_or_run(context, parameter, name) for name in names],
        shell_complete=completion.complete_recipe_or_run,
    )
    return lambda command: what(site(overrides(shape(data_folder(run_directory(sweep(command)))))))


sweep = click.option(
    "--sweep",
    "axes",
    multiple=True,
    metavar="FIELD=VALUES",
    callback=lambda _context, _parameter, texts: _axes(texts),
    help="A run for each value, as in seed=0..4 or algorithm.alpha=0.5,1,2, in one directory. Repeatable, for each "
    "combination.",
)


def _axes(texts: Sequence[str]) -> "list[Axis]":
    from mrt_hpc.run.family import Axis

    return [Axis.of(text) for text in texts]


site = click.option(
    "--site",
    metavar="SITE",
    shell_complete=completion.complete_file(SITES, "local"),
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
    shell_complete=completion.complete_override,
    help="Set one field of the recipe, as in training.learning_rate=2e-6. Repeatable.",
)
shape = click.option(
    "--shape",
    metavar="NAME",
    shell_complete=completion.complete_file(SHAPES),
    help="What the run may use at a time: a name in recipes/shapes as one_gpu, or a path. The method stays as it is.",
)
run_directory = click.option(
    "--run",
    type=click.Path(),
    callback=checked_run_directory,
    help="Run directory, on a filesystem that all nodes share. Default: runs/NAME, NAME being the recipe's.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the same as JSON, for programs.")
trust = click.option(
    "--trust",
    is_flag=True,
    help="Run the code of a run that another user owns or can change: classes of its own that its recipe names.",
)
what = click.argument("what", nargs=-1, required=True, metavar="WHAT...", type=RunName(RunUse.LOOKS))


arms = click.option(
    "--arm",
    "arms",
    multiple=True,
    metavar="NAME=RUN,...",
    help="Runs of one recipe with several training seeds, as one arm. Repeatable.",
)
results = click.option(
    "--results",
    type=FOLDER,
    default=Path("results"),
    show_default=True,
    help="The results folder: samples that are in it are not generated again.",
)
data_folder = click.option("--data", type=FOLDER, help="The folder of all data files, in place of those named.")


def site_of_command(name: str | None, *runs: RunLayout, trust: bool = False) -> "ChosenSite":
    """The site as :func:`chosen_site` finds it, printed where the command does not name it."""
    from mrt_hpc.backends.sites import chosen_site

    chosen = chosen_site(name, *runs, trust=trust)
    if chosen.why:
        echo(chosen.text, err=True)
    return chosen
