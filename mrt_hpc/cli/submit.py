"""What ``mrt-hpc submit`` does: it loads a recipe, or reads that of a run, finds the site, submits, and prints each
step.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mrt_hpc.api import resolve_request, shape_overrides, submit_asked
from mrt_hpc.attempt.ledger import claim_run, make_claim_folders
from mrt_hpc.backends.backend import Site
from mrt_hpc.backends.queued_jobs import job_ids_of, live_jobs
from mrt_hpc.cli.options import site_of_command
from mrt_hpc.cli.terminal import echo
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.recipe.base import require_kind
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import EvaluationRecipe, Recipe
from mrt_hpc.run.family import RECIPE, RESULTS, Axis, Family, Member, read_family, runs_of
from mrt_hpc.run.layout import RunLayout, run_path
from mrt_hpc.submit.submission import Listener, create_run, start


def submit(what: Path, site: str | None, **typed: Any) -> None:
    if (family := read_family(what)) is not None:
        if any(typed.values()):
            raise UserError(
                "the runs of a family are continued as they are",
                value=str(what),
                expected="no --set, --shape, --data or --run beside a family",
                advice=Advice("mrt-hpc submit {what}, or with --set one of the runs below it", what=what),
            )
        members = [_ready(site, *resolve_request(member, (), None, None, None)) for member in runs_of(what)]
        _start_each(members, family.at_once, what)
        return
    recipe, layout = resolve_request(what, **typed)
    submit_asked(recipe, site_of_command(site, layout).ensure_usable().site, layout.root, listener())


# -- sweeps


class Sweep(NamedTuple):
    """What a command asks for with several recipes, or with ``--sweep``."""

    family: Family
    root: Path
    members: list[tuple[Recipe, RunLayout]]


def plan_sweep(
    what: Sequence[Path],
    axes: Sequence[Axis],
    overrides: tuple[str, ...],
    shape: str | None,
    data: Path | None,
    run: Path | None,
) -> Sweep:
    """The family of several recipes or values, with the recipe of each run, all of them checked; nothing is made. It
    refuses two recipes of one name, and a directory with other runs.
    """
    _refuse_runs(what, axes)
    changes = {file: shape_overrides(file, overrides, shape, data) for file in what}
    recipes = [load_recipe(file, changes[file], data) for file in what]
    root = run_path(f"{recipes[0].name}-sweep", run)
    shared = f"evaluation.results={json.dumps(str(root / RESULTS))}"
    given = {r.name: (file, () if r.evaluation.results else (shared,)) for r, file in zip(recipes, what, strict=True)}
    if len(given) < len(recipes):
        names = [recipe.name for recipe in recipes]
        raise UserError("two recipes have the same name", value=names, advice="give one of them another `name`")
    of_recipes = (Axis(RECIPE, tuple(given)),) if len(given) > 1 else ()
    family = Family((*of_recipes, *axes)).continue_family(root)

    def load_member(member: Member) -> Recipe:
        file, more = given[member.recipe or recipes[0].name]
        return load_recipe(file, (*changes[file], *more, *member.overrides), data)

    return Sweep(family, root, [(load_member(member), RunLayout(root / member.folder)) for member in family.members])


def _refuse_runs(what: Sequence[Path], axes: Sequence[Axis]) -> None:
    if run := next((path for path in what if path.is_dir()), None):
        if not axes:
            again = Advice("mrt-hpc submit {run}", run=run)
            raise UserError("one run is continued at a time", value=str(run), expected="one run", advice=again)
        advice = Advice("mrt-hpc submit RECIPE {options}", options=[word for axis in axes for word in axis.words])
        raise UserError("a sweep begins with a recipe", value=str(run), where="--sweep", advice=advice)


def submit_sweep(sweep: Sweep, site: str | None, at_once: int | None) -> None:
    """Make a family with a run for each combination of recipes and values, and then start them."""
    ready = [_ready(site, recipe, layout) for recipe, layout in sweep.members]
    replace(sweep.family, at_once=at_once).record(sweep.root)
    _start_each(ready, at_once, sweep.root)


class _Ready(NamedTuple):
    recipe: Recipe
    plan: Plan
    layout: RunLayout
    site: Site


def _ready(site_name: str | None, recipe: Recipe | EvaluationRecipe, layout: RunLayout) -> _Ready:
    site = site_of_command(site_name, layout).ensure_usable().site
    quiet = replace(listener(), show=lambda _: None)  # each run says the same
    return _Ready(*create_run(require_kind(recipe, Recipe), site, layout.root, quiet), site)


def _start_each(members: Sequence[_Ready], at_once: int | None, root: Path) -> None:
    """Start the runs of a family. In a queue each waits for the jobs of the run ``at_once`` before it. This machine
    goes on after a run that fails.
    """
    family = RunLayout(root)
    make_claim_folders(family)
    with claim_run(family, max(recipe.resilience.heartbeat_limit_s for recipe, *_ in members)):
        failed = _start_members(members, at_once)
    echo(Advice("family: {run}\nfollow it with: mrt-hpc status {run}", run=root))
    if failed:
        raise failed[0].add_others(failed[1:])


def _start_members(members: Sequence[_Ready], at_once: int | None) -> list[UserError]:
    """It returns the errors of runs that failed on this machine."""
    failed: list[UserError] = []
    for number, (recipe, plan, layout, site) in enumerate(members):
        behind: tuple[str, ...] = ()
        if (queued := site.backend().queue is not None) and at_once is not None and number >= at_once:
            behind = tuple(job_ids_of(live_jobs(members[number - at_once].layout).values()))
        echo(f"run {number + 1} of {len(members)}: {layout.root}")
        try:
            start(recipe, plan, layout, site, listener(), behind)
        except UserError as error:
            if queued:
                raise
            failed.append(error)
    return failed


def listener() -> Listener:
    return Listener(echo, partial(echo, err=True), _display)


@contextmanager
def _display(layout: RunLayout) -> Iterator[Callable[[], None]]:
    from mrt_hpc.cli.run_view import LineDisplay, LiveDisplay  # it reads records, which `plan` does without

    with (LiveDisplay if sys.stdout.isatty() else LineDisplay)(layout) as display:
        yield display.look
