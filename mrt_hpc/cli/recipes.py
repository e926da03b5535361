"""``mrt-hpc recipes``: list the recipes, shapes, suites and site profiles that have names, and copy one to edit it."""

import sys
from pathlib import Path

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.terminal import Terminal, echo, echo_json
from mrt_hpc.errors import Advice, UserError, nearest
from mrt_hpc.recipe import find
from mrt_hpc.recipe.source import read_source
from mrt_hpc.run.atomic import write_bytes

EXAMPLE = "example:"
"""Begins the name of an example: a site profile is called ``example`` too."""
NEXT = {
    "recipe": "mrt-hpc plan {name}",
    "shape": "mrt-hpc plan mrt_online --shape {name}",
    "suite": "mrt-hpc eval MODEL_OR_RUN --suite {name} --plan",
    "site profile": "mrt-hpc plan quickstart --site {name}",
    "example": "mrt-hpc plan my_recipe.yaml, a recipe beside {name} that names a class of it",
}


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
    """List the recipes, shapes, suites and site profiles that commands find by name, each with its first line.

    Yours are in ~/.config/mrt-hpc/recipes and ~/.config/mrt-hpc/sites, and in recipes/ and slurm/sites/ of the working
    directory. One of yours with the name of one of the package takes its place.

    \b
    Examples:
      mrt-hpc recipes list
      mrt-hpc recipes list --json
    """

    listed = [entry for kind in find.KINDS for entry in find.entries(kind)]
    if as_json:
        echo_json([{"kind": e.kind.word, "name": e.name, "about": e.about, "path": str(e.path)} for e in listed])
        return
    for kind in find.KINDS:
        _print_table(f"{kind.word}s", [entry for entry in listed if entry.kind is kind])
    echo("next: mrt-hpc plan NAME, or mrt-hpc recipes copy NAME to edit one")


def _print_table(title: str, listed: list[find.CatalogueEntry]) -> None:
    """Under the folder of each file; a terminal cuts each line."""

    console, piped = Terminal(sys.stdout), not sys.stdout.isatty()
    width = max((len(entry.name) for entry in listed), default=0)
    roots = [entry.path.parents[len(Path(entry.name).parts) - 1] for entry in listed]  # where the name is looked up
    for root in dict.fromkeys(roots):
        echo(f"{title} in {root}", "bold")
        for entry in (entry for entry, place in zip(listed, roots, strict=True) if place == root):
            line = f"  {entry.name:{width}}  {entry.about}".rstrip()
            console.print(line, no_wrap=True, overflow=None if piped else "ellipsis", soft_wrap=piped)


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
            advice = "name another OUT, or replace it with --force"
            raise UserError("a file is there already", value=str(place), advice=advice)
    if copied.exists() and copied.samefile(entry.path):
        raise UserError("the copy would replace the original", value=str(copied), advice="name another OUT")
    for path, place in reversed(places.items()):  # first the files that are named: a copy is never there without them
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, path.read_bytes())
    for place in places.values():
        echo(f"wrote {place}")
    echo(f"  a copy of {entry.path}")
    echo(f"next: edit it, then {Advice(NEXT[entry.kind.word], name=copied)}")


def copy_of(name: str, output: Path | None) -> tuple[find.CatalogueEntry, dict[Path, Path]]:
    """The file of a name, and the place of the copy of each file: of this one, and of those in its own folder that it
    names.

    Args:
        output: None takes the same name below ``recipes/``, ``recipes/suites/`` or ``slurm/sites/`` in the working
            directory, where commands find it before that of the package.
    """
    entry = _entry(name)
    own = Path(entry.path.name) if entry.kind is find.EXAMPLES else entry.kind.checkout / f"{entry.name}.yaml"
    place = output or own
    beside = {path: place.parent / path.relative_to(entry.path.parent) for path in _companion_files(entry)}
    return entry, {entry.path: place, **beside}


def _entry(name: str) -> find.CatalogueEntry:
    from mrt_hpc.recipe.load import kind_of

    if name.startswith(EXAMPLE):
        return _example(name)
    wanted = find.expand_home(name)
    known = [entry for kind in find.KINDS for entry in find.entries(kind)]
    for entry in known:
        bare = wanted.relative_to(entry.kind.checkout) if wanted.is_relative_to(entry.kind.checkout) else wanted
        if Path(entry.name) in (bare, bare.with_suffix("")):
            return entry
    for path in find.spellings(wanted):
        if path.is_file():
            return find.CatalogueEntry(kind_of(read_source(path, advice="the same command").data), path.stem, path)
    guess = nearest(name, [entry.name for entry in known])
    raise UserError(
        "there is no recipe, suite or site profile of this name",
        value=name,
        expected=f"{guess} is the nearest" if guess else "a name that `mrt-hpc recipes list` shows",
        advice=Advice("mrt-hpc recipes copy {guess}", guess=guess) if guess else "mrt-hpc recipes list",
    )


def _example(name: str) -> find.CatalogueEntry:
    known = {f"{EXAMPLE}{stem}": entry for stem, entry in find.examples().items()}
    if name in known:
        return known[name]
    copy_it = Advice("mrt-hpc recipes copy {guess}", guess=nearest(name, known) or next(iter(known), ""))
    raise UserError(
        "there is no example of this name",
        value=name,
        expected=f"one of {', '.join(known)}" if known else "an installation with the examples",
        advice=copy_it if known else "mrt-hpc recipes list",
    )


def _companion_files(entry: find.CatalogueEntry) -> list[Path]:
    """Files in its own folder that a recipe or a suite names by relative paths."""
    from mrt_hpc.recipe.load import SECTION, named_paths

    if entry.kind in (find.SITES, find.EXAMPLES):
        return []
    data = read_source(entry.path, advice="the same command").data
    folder = entry.path.parent
    named = [Path(text) for text in named_paths({SECTION: data} if entry.kind is find.SUITES else data)]
    inside = [folder / path for path in named if not path.is_absolute() and ".." not in path.parts]
    return list(dict.fromkeys(path for path in inside if path.is_file()))
