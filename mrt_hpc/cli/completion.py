"""What the shell offers after TAB. Nothing here raises: an error in the middle of a command line would be noise."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from mrt_hpc.errors import UserError
from mrt_hpc.recipe.find import RECIPES, SUITES, Kind, known_names

RUNS = Path("runs")
INDICES = 100
"""Tasks of a job that are offered at most."""


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_file(kind: Kind, *more: str) -> Complete:
    """Files of a kind, and names of them."""
    return lambda _context, _parameter, incomplete: [
        CompletionItem(incomplete, type="file"),
        *_completions([*more, *known_names(kind)], incomplete),
    ]


complete_recipe, complete_suite = complete_file(RECIPES), complete_file(SUITES)


def complete_recipe_or_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [*complete_recipe(ctx, param, incomplete), *map(CompletionItem, runs_beginning(incomplete))]


def complete_run(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Run directories in ``runs`` and in the folder typed so far; and any folder."""
    return [CompletionItem(incomplete, type="dir"), *(CompletionItem(run) for run in runs_beginning(incomplete))]


def runs_beginning(incomplete: str) -> list[str]:
    """As they would be typed."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    runs: set[str] = set()
    for place in (RUNS, folder.expanduser()):
        with suppress(OSError):
            runs.update(str(plan.parent) for plan in place.glob("*/plan.json"))
    return sorted(run for run in runs if run.startswith(incomplete))


def complete_task(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The jobs of the run typed before, and tasks of one after its name and ``[``."""
    from mrt_hpc.plan.jobs import read_plan

    try:
        plan = read_plan(Path(ctx.params["run"]) / "plan.json")
    except (UserError, KeyError, TypeError):
        return []
    job_name = incomplete.partition("[")[0]
    if "[" not in incomplete:
        return _completions((job.name for job in plan.jobs), incomplete)
    tasks = (f"{job.name}[{n}]" for job in plan.jobs if job.name == job_name for n in range(min(job.tasks, INDICES)))
    return _completions(tasks, incomplete)


def complete_override(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Fields for ``--set``, each with its equals sign; nothing once a value is typed."""
    return [] if "=" in incomplete else _completions((f"{name}=" for name in _recipe_fields()), incomplete)


def complete_fields(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Kinds of files, sections and fields, for ``mrt-hpc fields``."""
    names = _recipe_fields()
    sections = {name.partition(".")[0] for name in names}
    return _completions(["recipe", "site", *sorted(sections), *names], incomplete)


def _recipe_fields() -> list[str]:
    """Dotted names without the types of sections, as an override takes them."""
    from mrt_hpc.cli.fields import recipe_fields

    return list(dict.fromkeys(re.sub(r"\[\w+\]", "", field.name) for field in recipe_fields()))


def _completions(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
