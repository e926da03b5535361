"""What ``mrt-hpc submit`` does: it loads the recipe, or reads that of a run, finds the site, and submits; and what it
prints on the way.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

from mrt_hpc.attempt.ledger import claimed
from mrt_hpc.backends.backend import Site
from mrt_hpc.backends.queued_jobs import job_ids_of, live_jobs
from mrt_hpc.cli.options import run_path, site_of_command
from mrt_hpc.errors import UserError, word
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.recipe.base import as_kind
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import changed_recipe, read_lock
from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe
from mrt_hpc.run.atomic import make_durable
from mrt_hpc.run.family import RESULTS, Family, read_family, runs_of
from mrt_hpc.run.layout import RunLayout, existing_run
from mrt_hpc.submit.submission import Listener, made, start, submit_run


def submit(what: Path, site: str | None, overrides: tuple[str, ...], data: Path | None, run: Path | None) -> None:
    """Start a recipe at a site, or continue a run, and print each step.

    Args:
        what: the file of a recipe, or a run directory.
        site: as typed for ``--site``; None where nothing.
        overrides: as typed for ``--set``.
        data: the folder of all data files of a recipe; None for those that it names.
        run: the run directory of a recipe; None for the one that its name gives.

    Raises:
        UserError: recipe, run, site or data are wrong, the site refuses, or a task failed.
    """
    if (family := read_family(what)) is not None:
        _refuse_beside_family(what, overrides, data, run)
        members = [_ready(site, *asked_for(member, (), None, None)) for member in runs_of(what)]
        _start_each(members, family.at_once, what)
        return
    recipe, layout = asked_for(what, overrides, data, run)
    checked = site_of_command(site, layout).checked().site
    if isinstance(recipe, Recipe):
        submit_run(recipe, checked, layout.root, listener())
        return
    from mrt_hpc.evaluate.asked_models import awaited_jobs
    from mrt_hpc.evaluate.evaluation_alone import submit_evaluation

    submit_evaluation(recipe, awaited_jobs(recipe, layout), checked, layout.root, listener())


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
    beside = (("--run", run, "in its own directory", ""), ("--data", data, "with its own data", " --run DIR"))
    for option, given, own, also in beside:
        if given is not None:
            raise UserError(
                f"a run is continued {own}",
                value=str(given),
                where=option,
                expected=f"no {option} beside a run directory",
                advice=f"{layout.again}; for another run: mrt-hpc submit RECIPE {option} {word(given)}{also}",
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


# -- sweeps


def submit_sweep(
    what: Path, site: str | None, overrides: tuple[str, ...], data: Path | None, run: Path | None, family: Family
) -> None:
    """Make a family with a run for each combination of values, and start them; other arguments as in :func:`submit`.

    Every recipe is checked before the first run is made, and every run is made before the first one starts.

    Raises:
        UserError: a recipe, the site or the data are wrong, the directory holds other runs, the site refuses, or tasks
            failed.
    """
    if what.is_dir():
        axes = " ".join(f"--sweep {axis.field}={','.join(axis.values)}" for axis in family.axes)
        advice = f"mrt-hpc submit RECIPE {axes}"
        raise UserError("a sweep begins with a recipe", value=str(what), where="--sweep", advice=advice)
    first = load_recipe(what, overrides, data)
    root = run_path(f"{first.name}-sweep", run)
    shared = () if first.evaluation.results else (f"evaluation.results={json.dumps(str(root / RESULTS))}",)
    recipes = [load_recipe(what, (*overrides, *shared, *member.overrides), data) for member in family.members]
    family.refuse_others(root)
    layouts = [RunLayout(root / member.folder) for member in family.members]
    ready = [_ready(site, recipe, layout) for recipe, layout in zip(recipes, layouts, strict=True)]
    family.record(root)
    _start_each(ready, family.at_once, root)


def _refuse_beside_family(what: Path, overrides: tuple[str, ...], data: Path | None, run: Path | None) -> None:
    if overrides or data is not None or run is not None:
        raise UserError(
            "the runs of a family are continued as they are",
            value=str(what),
            expected="no --set, --data or --run beside a family",
            advice=f"mrt-hpc submit {word(what)}, or with --set one of the runs below it",
        )


class _Ready(NamedTuple):
    """A run that is made, and its site."""

    recipe: Recipe
    plan: Plan
    layout: RunLayout
    site: Site


def _ready(site_name: str | None, recipe: Recipe | EvaluationRecipe, layout: RunLayout) -> _Ready:
    site = site_of_command(site_name, layout).checked().site
    quiet = replace(listener(), show=lambda _: None)  # each run says the same
    return _Ready(*made(as_kind(recipe, Recipe), site, layout.root, quiet), site)


def _start_each(members: Sequence[_Ready], at_once: int | None, root: Path) -> None:
    """Start the runs of a family: at a queue all of them, each behind the jobs of the one that is so many before it; on
    this machine one after the other, where a run that fails does not hold back the next one.

    Raises:
        UserError: another process starts them, the site refuses, or tasks failed.
    """
    family = RunLayout(root)
    make_durable(family.jobs)
    with claimed(family, max(recipe.resilience.heartbeat_limit_s for recipe, *_ in members)):
        failed = _started(members, at_once)
    click.echo(f"family: {root}\nfollow it with: mrt-hpc status {word(root)}")
    if failed:
        raise failed[0].with_others(failed[1:])


def _started(members: Sequence[_Ready], at_once: int | None) -> list[UserError]:
    """Start them, and return the errors of those that failed on this machine; errors as in :func:`_start_each`."""
    failed: list[UserError] = []
    for number, (recipe, plan, layout, site) in enumerate(members):
        behind: tuple[str, ...] = ()
        if (queued := site.backend().queue is not None) and at_once is not None and number >= at_once:
            behind = tuple(job_ids_of(live_jobs(members[number - at_once].layout).values()))
        click.echo(f"run {number + 1} of {len(members)}: {layout.root}")
        try:
            start(recipe, plan, layout, site, listener(), behind)
        except UserError as error:
            if queued:
                raise
            failed.append(error)
    return failed


def listener() -> Listener:
    """Prints the sentences of a submission, and shows how far a run on this machine is."""
    return Listener(click.echo, partial(click.echo, err=True), _display)


@contextmanager
def _display(layout: RunLayout) -> Iterator[Callable[[], None]]:
    from mrt_hpc.cli.run_view import LineDisplay, LiveDisplay  # it reads records, which `plan` does without

    with (LiveDisplay if sys.stdout.isatty() else LineDisplay)(layout) as display:
        yield display.look
