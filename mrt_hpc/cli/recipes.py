"""``mrt-hpc recipes``: list the recipes, suites and site profiles that can be named, and copy one to edit it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mrt_hpc.recipe.catalogue import Copy, Entry

NEXT = {
    "recipe": "mrt-hpc plan {}",
    "suite": "mrt-hpc eval MODEL_OR_RUN --suite {} --plan",
    "site profile": "mrt-hpc plan quickstart --site {}",
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
    from mrt_hpc.recipe.catalogue import KINDS, entries

    found = [entry for kind in KINDS for entry in entries(kind)]
    if as_json:
        _print_json(found)
        return
    for kind in KINDS:
        _print_table(f"{kind.word}s", [entry for entry in found if entry.kind is kind])
    click.echo("next: mrt-hpc plan NAME, or mrt-hpc recipes copy NAME to edit one")


def _print_json(found: list[Entry]) -> None:
    import json

    rows = [
        {"kind": entry.kind.word, "name": entry.name, "about": entry.about, "path": str(entry.path)} for entry in found
    ]
    click.echo(json.dumps(rows, indent=2))


def _print_table(title: str, found: list[Entry]) -> None:
    """Print the files of one kind under the folder that each is in, each on one line, which a terminal cuts."""
    from mrt_hpc.cli.console import console_of

    console, piped = console_of(sys.stdout), not sys.stdout.isatty()
    width = max((len(entry.name) for entry in found), default=0)
    roots = [_root(entry) for entry in found]
    for root in dict.fromkeys(roots):
        console.print(f"{title} in {root}", style="bold", highlight=False, markup=False, soft_wrap=True)
        for entry in (entry for entry, place in zip(found, roots, strict=True) if place == root):
            line = f"  {entry.name:{width}}  {entry.about}".rstrip()
            console.print(
                line,
                highlight=False,
                markup=False,
                no_wrap=True,
                overflow=None if piped else "ellipsis",
                soft_wrap=piped,
            )


def _root(entry: Entry) -> Path:
    """The folder in which the name of a file is looked up."""
    return entry.path.parents[len(Path(entry.name).parts) - 1]


@recipes.command(short_help="Copy one to edit it.")
@click.argument("name")
@click.argument("output", metavar="[OUT]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def copy(name: str, output: Path | None, force: bool) -> None:
    """Copy the recipe, suite or site profile NAME to OUT.

    Without OUT the copy has the same name in recipes/, recipes/suites/ or slurm/sites/ of the working directory, where
    commands find it before that of the package. What a recipe `extends` stays a name. Relative paths in a copy start
    at the folder of the copy.

    \b
    Examples:
      mrt-hpc recipes copy mrt_online
      mrt-hpc recipes copy mrt_online my_recipe.yaml
      mrt-hpc recipes copy example slurm/sites/mycluster.yaml
    """
    from mrt_hpc.recipe.catalogue import copy_of

    wanted = copy_of(name, output)
    _refuse_existing(wanted, force)
    _write(wanted)
    for place in (wanted.output, *wanted.beside.values()):
        click.echo(f"wrote {place}")
    click.echo(f"  a copy of {wanted.entry.path}")
    click.echo(f"next: edit it, then {NEXT[wanted.entry.kind.word].format(wanted.output)}")


def _refuse_existing(wanted: Copy, force: bool) -> None:
    from mrt_hpc.errors import UserError

    for place in (wanted.output, *wanted.beside.values()):
        if place.exists() and not force:
            raise UserError(
                "a file is there already", value=str(place), advice="name another OUT, or replace it with --force"
            )
    if wanted.output.exists() and wanted.output.samefile(wanted.entry.path):
        raise UserError("the copy would replace the original", value=str(wanted.output), advice="name another OUT")


def _write(wanted: Copy) -> None:
    """Write the files that are named first, so that a copy is never there without them."""
    from mrt_hpc.run.atomic import write_bytes

    for path, place in {**wanted.beside, wanted.entry.path: wanted.output}.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, path.read_bytes())
