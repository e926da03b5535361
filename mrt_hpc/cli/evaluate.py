"""``mrt-hpc eval``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mrt_hpc.cli.options import run_path, site_of_command
from mrt_hpc.cli.plan import print_whole
from mrt_hpc.cli.submit import listener
from mrt_hpc.evaluate.asked_models import models_asked, refuse_lost_models
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe, submit_evaluation
from mrt_hpc.plan.compile import evaluation_plan
from mrt_hpc.run.layout import RunLayout


def evaluate(
    models: Sequence[str],
    suite: str,
    site: str | None,
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
    chosen = site_of_command(site, RunLayout(root))
    if plan_only:
        refuse_lost_models(recipe, root)
        print_whole(evaluation_plan(recipe, chosen.site), recipe, chosen, RunLayout(root), "eval")
        return
    submit_evaluation(recipe, asked.awaited, chosen.checked().site, root, listener())
    click.echo(f"run directory: {root}")
