"""``mrt-hpc eval``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli.options import console_of, run_path, site_of_command
from mrt_hpc.cli.plan import print_cost, print_jobs, print_memory, print_missing, print_objections, print_starts
from mrt_hpc.cli.submit import listener
from mrt_hpc.evaluate.asked_models import models_asked, refuse_lost_models
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe, submit_evaluation
from mrt_hpc.plan.compile import evaluation_plan
from mrt_hpc.plan.hours import expected_hours, throughput
from mrt_hpc.recipe.schema import EvaluationRecipe
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from mrt_hpc.backends.sites import ChosenSite


def evaluate(
    models: Sequence[str],
    suite: str,
    site_name: str | None,
    overrides: tuple[str, ...],
    results: Path,
    data: Path | None,
    run: Path | None,
    *,
    plan_only: bool,
) -> None:
    """Submit an evaluation on its own, or print its plan.

    Raises:
        UserError: models, suite, site or data are wrong, the site refuses, or a task failed.
    """
    asked = models_asked(models)
    recipe = evaluation_recipe(asked, suite, overrides, results, data)
    root = run_path(recipe.name, run)
    chosen = site_of_command(site_name, RunLayout(root))
    if plan_only:
        refuse_lost_models(recipe, root)
        print_evaluation_plan(recipe, chosen, root)
        return
    submit_evaluation(recipe, asked.awaited, chosen.checked().site, root, listener())
    click.echo(f"run directory: {root}")


def print_evaluation_plan(recipe: EvaluationRecipe, chosen: ChosenSite, root: Path) -> None:
    """Print the jobs of an evaluation, their expected hours, and what is not there.

    Raises:
        UserError: the plan is beyond what the site lets a user submit.
    """
    site = chosen.site
    plan, rates = evaluation_plan(recipe, site), throughput(recipe, site)
    expected = {} if rates is None else expected_hours(plan, recipe, rates)
    console = console_of(sys.stdout)
    print_jobs(console, plan, expected)
    console.print(f"{len(plan.jobs)} sbatch calls, {plan.tasks} array tasks.", highlight=False)
    print_cost(console, plan, recipe, expected, rates)
    print_memory(console, recipe, site, "eval")
    console.print(f"Run directory: {root}", highlight=False, soft_wrap=True)
    if not RunLayout(root).recipe_lock.is_file():
        print_missing(console, recipe, "eval")
    backend = site.backend()
    print_objections(console, plan, recipe, chosen, "eval")
    print_starts(console, plan, recipe, backend, RunLayout(root))
