"""What the shell offers after TAB: recipes, sites, suites, runs, their jobs, and names of fields.

Nothing here raises: an error in the middle of a command line would only be noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.find import RECIPES, SITES, SUITES, Kind, known_names

RUNS = Path("runs")
"""The folder in which submissions make run directories by default."""
INDICES = 100
"""The most tasks of a job that are offered."""


def _named(kind: Kind, incomplete: str, *more: str) -> list[CompletionItem]:
    """The names of files of a kind, and any file."""

    names = [*more, *known_names(kind)]
    return [
        CompletionItem(incomplete, type="file"),
        *(CompletionItem(name) for name in names if name.startswith(incomplete)),
    ]


def complete_recipe(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recipes, and files."""

    return _named(RECIPES, incomplete)


def complete_recipe_or_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recipes, run directories, and files."""
    runs = map(CompletionItem, runs_beginning(incomplete))
    return [*complete_recipe(ctx, param, incomplete), *runs]


def complete_site(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of site profiles, and files."""

    return _named(SITES, incomplete, "local")


def complete_suite(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of suites, and files."""

    return _named(SUITES, incomplete)


def complete_run(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run directories in ``runs``, and in the folder that was typed so far; and any folder."""
    return [CompletionItem(incomplete, type="dir"), *(CompletionItem(run) for run in runs_beginning(incomplete))]


def runs_beginning(incomplete: str) -> list[str]:
    """The run directories whose paths begin with a text, as they would be typed."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    runs = {str(run) for place in (RUNS, folder.expanduser()) for run in _runs_in(place)}
    return sorted(run for run in runs if run.startswith(incomplete))


def _runs_in(folder: Path) -> Iterator[Path]:
    try:
        yield from (plan.parent for plan in folder.glob("*/plan.json"))
    except OSError:
        return


class RunPath(click.Path):
    """A run directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Run directories, and any folder."""
        return complete_run(ctx, param, incomplete)


RUN = RunPath()


def complete_task(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The jobs of the run that was typed before, and tasks of one after its name and ``[``."""
    from mrt_hpc.plan.jobs import read_plan

    try:
        plan = read_plan(Path(ctx.params["run"]) / "plan.json")
    except (UserError, KeyError, TypeError):
        return []
    job_name = incomplete.partition("[")[0]
    if "[" not in incomplete:
        return _beginning((job.name for job in plan.jobs), incomplete)
    tasks = (f"{job.name}[{n}]" for job in plan.jobs if job.name == job_name for n in range(min(job.tasks, INDICES)))
    return _beginning(tasks, incomplete)


def complete_override(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of fields for ``--set``, each with its equals sign; nothing once a value is being typed."""
    if "=" in incomplete:
        return []
    return _beginning((f"{name}=" for name in _recipe_fields()), incomplete)


def complete_fields(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Kinds of files, sections and fields, for ``mrt-hpc fields``."""
    names = _recipe_fields()
    sections = {name.partition(".")[0] for name in names}
    return _beginning(["recipe", "site", *sorted(sections), *names], incomplete)


def _recipe_fields() -> list[str]:
    """Dotted names of the fields of a recipe, without the types of sections, as an override takes them."""
    from mrt_hpc.cli.fields import recipe_fields

    return list(dict.fromkeys(re.sub(r"\[\w+\]", "", field.name) for field in recipe_fields()))


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
