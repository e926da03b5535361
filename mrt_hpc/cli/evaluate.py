"""``mrt-hpc eval``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli.console import console_of
from mrt_hpc.cli.options import run_path
from mrt_hpc.cli.plan import TABLE_WIDTH, plan_lines, plan_table
from mrt_hpc.cli.submit import listener
from mrt_hpc.launch.evaluated_models import models_asked
from mrt_hpc.launch.evaluation import EvaluationAsked, evaluation_recipe, submit_evaluation
from mrt_hpc.launch.sites import find_site
from mrt_hpc.plan.compile import evaluation_plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mrt_hpc.plan.jobs import Plan


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
    recipe = evaluation_recipe(EvaluationAsked(asked, suite, overrides, results, data))
    site = find_site(site_name)
    root = run_path(recipe.name, run)
    if plan_only:
        print_evaluation_plan(evaluation_plan(recipe, site), root)
        return
    submit_evaluation(recipe, asked.awaited, site, root, listener())
    click.echo(f"run directory: {root}")


def print_evaluation_plan(plan: Plan, root: Path) -> None:
    """Print the jobs of an evaluation."""
    console = console_of(sys.stdout)
    if console.width >= TABLE_WIDTH:
        console.print(plan_table(plan, {}))
    else:
        for line in plan_lines(plan, {}, console.width):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(plan.jobs)} sbatch calls, {plan.tasks} array tasks.", highlight=False)
    console.print(f"Run directory: {root}", highlight=False, soft_wrap=True)
