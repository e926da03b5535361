"""``mrt-hpc recipes``, ``validate`` and ``check``: list the recipes, suites and site profiles that can be
named, copy one to edit it, and check a recipe, or a class that it may name.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.options import RUN, console_of
from mrt_hpc.errors import ExitCode, UserError, nearest
from mrt_hpc.recipe import find
from mrt_hpc.recipe.source import read_source
from mrt_hpc.run.atomic import write_bytes

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.recipe.schema import Recipe


EXAMPLE = "example:"
"""Begins the name of an example: a site profile is called ``example`` too."""
NEXT = {
    "recipe": "mrt-hpc plan {}",
    "suite": "mrt-hpc eval MODEL_OR_RUN --suite {} --plan",
    "site profile": "mrt-hpc plan quickstart --site {}",
    "example": "mrt-hpc plan my_recipe.yaml, a recipe beside {} that names a class of it",
}
"""The command to type after a copy was made, by the kind of file."""


@click.group(short_help="List and copy recipes, suites and site profiles.")
def recipes() -> None:
    """List the recipes, suites and site profiles of the package and your own, and copy one to edit it.

    \b
    Examples:
      mrt-hpc recipes list
      mrt-hpc recipes copy mrt_online
    """


@recipes.command("list", short_help="List what commands find by name.")
@click.option("--json", "as_json", is_flag=True, help="Print names, first lines and paths as JSON.")
def list_recipes(as_json: bool) -> None:
    """List the recipes, suites and site profiles that commands find by name, each with its first line.

    Yours are in ~/.config/mrt-hpc/recipes and ~/.config/mrt-hpc/sites, and in recipes/ and slurm/sites/ of the working
    directory. One of yours with the name of one of the package takes its place.

    \b
    Examples:
      mrt-hpc recipes list
      mrt-hpc recipes list --json
    """

    listed = [entry for kind in find.KINDS for entry in find.entries(kind)]
    if as_json:
        _print_json(listed)
        return
    for kind in find.KINDS:
        _print_table(f"{kind.word}s", [entry for entry in listed if entry.kind is kind])
    click.echo("next: mrt-hpc plan NAME, or mrt-hpc recipes copy NAME to edit one")


def _print_json(listed: list[find.CatalogueEntry]) -> None:

    rows = [
        {"kind": entry.kind.word, "name": entry.name, "about": entry.about, "path": str(entry.path)} for entry in listed
    ]
    click.echo(json.dumps(rows, indent=2))


def _print_table(title: str, listed: list[find.CatalogueEntry]) -> None:
    """Print the files of one kind under the folder that each is in, each on one line, which a terminal cuts."""

    console, piped = console_of(sys.stdout), not sys.stdout.isatty()
    width = max((len(entry.name) for entry in listed), default=0)
    roots = [entry.path.parents[len(Path(entry.name).parts) - 1] for entry in listed]  # where the name is looked up
    for root in dict.fromkeys(roots):
        console.print(f"{title} in {root}", style="bold", highlight=False, markup=False, soft_wrap=True)
        for entry in (entry for entry, place in zip(listed, roots, strict=True) if place == root):
            line = f"  {entry.name:{width}}  {entry.about}".rstrip()
            console.print(
                line,
                highlight=False,
                markup=False,
                no_wrap=True,
                overflow=None if piped else "ellipsis",
                soft_wrap=piped,
            )


@recipes.command(short_help="Copy one to edit it.")
@click.argument("name")
@click.argument("output", metavar="[OUT]", required=False, type=options.FILE)
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def copy(name: str, output: Path | None, force: bool) -> None:
    """Copy the recipe, suite or site profile NAME to OUT, or with example:NAME a module with classes of your own.

    Without OUT the copy has the same name in recipes/, recipes/suites/ or slurm/sites/ of the working directory, where
    commands find it before that of the package. What a recipe `extends` stays a name. Relative paths in a copy start
    at the folder of the copy.

    \b
    Examples:
      mrt-hpc recipes copy mrt_online
      mrt-hpc recipes copy mrt_online my_recipe.yaml
      mrt-hpc recipes copy example slurm/sites/mycluster.yaml
      mrt-hpc recipes copy example:my_method
    """

    entry, places = copy_of(name, output)
    copied = places[entry.path]
    for place in places.values():
        if place.exists() and not force:
            raise UserError(
                "a file is there already", value=str(place), advice="name another OUT, or replace it with --force"
            )
    if copied.exists() and copied.samefile(entry.path):
        raise UserError("the copy would replace the original", value=str(copied), advice="name another OUT")
    for path, place in reversed(places.items()):  # first the files that are named: a copy is never there without them
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, path.read_bytes())
    for place in places.values():
        click.echo(f"wrote {place}")
    click.echo(f"  a copy of {entry.path}")
    click.echo(f"next: edit it, then {NEXT[entry.kind.word].format(copied)}")


def copy_of(name: str, output: Path | None) -> tuple[find.CatalogueEntry, dict[Path, Path]]:
    """What has to be copied for a recipe, a suite or a site profile.

    Args:
        name: as commands take it, with or without the folder and the suffix.
        output: the copy; None takes the same name below ``recipes/``, ``recipes/suites/`` or ``slurm/sites/`` in the
            working directory, where commands find it before that of the package.

    Returns:
        The file of that name, and the place of the copy of each file: of this one, and then of those in its own folder
        that it names.

    Raises:
        UserError: there is no such file.
    """
    entry = _entry(name)
    own = Path(entry.path.name) if entry.kind is find.EXAMPLES else entry.kind.checkout / f"{entry.name}.yaml"
    place = output if output is not None else own
    beside = {path: place.parent / path.relative_to(entry.path.parent) for path in _beside(entry)}
    return entry, {entry.path: place, **beside}


def _entry(name: str) -> find.CatalogueEntry:
    """The file of a name, of whatever kind.

    Raises:
        UserError: there is none.
    """

    if name.startswith(EXAMPLE):
        return _example(name)
    wanted = find.expanded(name)
    known = [entry for kind in find.KINDS for entry in find.entries(kind)]
    for entry in known:
        bare = wanted.relative_to(entry.kind.checkout) if wanted.is_relative_to(entry.kind.checkout) else wanted
        if Path(entry.name) in (bare, bare.with_suffix("")):
            return entry
    for path in find.spellings(wanted):
        if path.is_file():
            return find.CatalogueEntry(find.RECIPES, path.stem, path)
    names = [entry.name for entry in known]
    guess = nearest(name, names)
    raise UserError(
        "there is no recipe, suite or site profile of this name",
        value=name,
        expected=f"{guess} is the nearest" if guess else "a name that `mrt-hpc recipes list` shows",
        advice=f"mrt-hpc recipes copy {guess}" if guess else "mrt-hpc recipes list",
    )


def _example(name: str) -> find.CatalogueEntry:
    """The example of a name with its prefix.

    Raises:
        UserError: there is none.
    """
    known = {f"{EXAMPLE}{stem}": entry for stem, entry in find.examples().items()}
    if name in known:
        return known[name]
    guess = nearest(name, known)
    raise UserError(
        "there is no example of this name",
        value=name,
        expected=f"one of {', '.join(known)}" if known else "an installation with the examples",
        advice=f"mrt-hpc recipes copy {guess or next(iter(known))}" if known else "mrt-hpc recipes list",
    )


def _beside(entry: find.CatalogueEntry) -> list[Path]:
    """The files in its own folder that a recipe or a suite names by relative paths."""
    from mrt_hpc.recipe.load import SECTION, named_paths

    if entry.kind in (find.SITES, find.EXAMPLES):
        return []
    data = read_source(entry.path, advice=f"mrt-hpc recipes copy {entry.name}").data
    folder = entry.path.parent
    named = [Path(text) for text in named_paths({SECTION: data} if entry.kind is find.SUITES else data)]
    inside = [folder / path for path in named if not path.is_absolute() and ".." not in path.parts]
    return list(dict.fromkeys(path for path in inside if path.is_file()))


# -- validate


@click.command(short_help="Check a recipe.")
@options.recipe
@options.overrides
@options.data_folder
def validate(recipe: Path, overrides: tuple[str, ...], data: Path | None) -> None:
    """Check RECIPE, with what it extends and the fields set, and say what it would do. Nothing is made or submitted.

    The exit status is 0 for a recipe that is valid, also where its model or data are not there yet, and 2 otherwise.

    \b
    Examples:
      mrt-hpc validate mrt_online
      mrt-hpc validate my_recipe.yaml --set training.learning_rate=2e-6
    """
    from mrt_hpc.cli.plan import print_missing
    from mrt_hpc.plan.compile import build_plan, check_segments
    from mrt_hpc.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides, data)
    check_segments(loaded)
    plan = build_plan(loaded, max_array_size=None)
    click.secho("valid", fg="green", bold=True)
    click.echo(f"  {trained(loaded)}")
    click.echo(f"  {evaluated(loaded, plan)}")
    print_missing(console_of(sys.stdout), loaded, "submit")
    options_again = [*(f"--set {override}" for override in overrides), *([] if data is None else [f"--data {data}"])]
    click.echo(" ".join([f"next: mrt-hpc plan {recipe}", *options_again]))


def trained(recipe: "Recipe") -> str:
    """The name, the algorithm and what it trains, in a line."""
    prover = "" if recipe.prover is None else f" with prover {recipe.prover.type}"
    model = getattr(recipe.model, "path", None) or recipe.model.type
    sampled = ""
    if recipe.algorithm.samples_rollouts:
        sampling = recipe.sampling
        sampled = f" of {sampling.problems_per_iteration} problems x {sampling.rollouts_per_problem} rollouts"
    return (
        f"{recipe.name}: {recipe.algorithm.type}{prover} on {model}, {recipe.schedule.iterations} iterations{sampled}"
    )


def evaluated(recipe: "Recipe", plan: "Plan") -> str:
    """What is evaluated, and the number of jobs, in a line."""

    benchmarks = [f"{benchmark.name} ({benchmark.samples} samples)" for benchmark in recipe.evaluation.benchmarks]
    count = len(recipe.evaluated_versions)
    evaluated = f"{', '.join(benchmarks)} of {count} weights versions" if benchmarks else "no evaluation"
    return f"{evaluated}; {plan.segments} segment(s), {len(plan.jobs)} jobs, {plan.tasks} tasks"


# -- check: a class that a recipe may name


@click.command(short_help="Try a class of your own on a stored iteration.")
@click.argument("name", metavar="MODULE:CLASS")
@click.option("--run", type=RUN, required=True, help="A run with rollouts, such as runs/quickstart.")
@click.option(
    "--iteration", type=click.IntRange(min=0), help="The iteration, counted from 0. Default: the last sampled."
)
@options.overrides
def check(name: str, run: Path, iteration: int | None, overrides: tuple[str, ...]) -> None:
    """Try an algorithm, a prover, a verifier or a way of evaluating of your own on rollouts that RUN has stored, in
    seconds, without a server and without a GPU.

    The class is put into the recipe of RUN, without the prover there where an algorithm makes no use of one. An
    algorithm learns the iteration; a prover and a way of evaluating get stored tokens for answers; a verifier judges
    stored and odd texts. The exit status is 0 if the class keeps what a run takes for granted, and 2 otherwise.

    \b
    Examples:
      mrt-hpc check my_method:LastEpisode --run runs/quickstart
      mrt-hpc check my_method:LastEpisode --run runs/quickstart --set algorithm.weight=0.5
      mrt-hpc check my_verifier:same_words --run runs/quickstart --iteration 0
    """
    from mrt_hpc.evaluate.class_check import ClassCheck

    asked = ClassCheck.of(name, run, iteration, overrides)
    click.echo(f"{name} in the recipe of {run}, with {len(asked.rollouts)} rollouts of iteration {asked.iteration}")
    broken = False
    for promise in asked.promises():
        stops = bool(promise.broken) and promise.stops
        broken |= stops
        word, colour = ("failed", "red") if stops else ("doubt", "yellow") if promise.broken else ("ok", "green")
        click.secho(f"{word:<7}", fg=colour, nl=False)
        click.echo(f"{promise.text}{promise.broken and f': {promise.broken}'}")
    if broken:
        click.get_current_context().exit(int(ExitCode.FATAL))
