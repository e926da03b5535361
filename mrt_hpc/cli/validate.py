"""``mrt-hpc validate``: checks a recipe and says what it would do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mrt_hpc.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.plan.jobs import Plan
    from mrt_hpc.recipe.schema import Recipe


@click.command(short_help="Check a recipe.")
@options.recipe
@options.overrides
def validate(recipe: Path, overrides: tuple[str, ...]) -> None:
    """Check RECIPE, with what it extends and the fields set, and say what it would do. Nothing is made or submitted.

    The exit status is 0 for a recipe that is valid, also where its model or data are not there yet, and 2 otherwise.

    \b
    Examples:
      mrt-hpc validate mrt_online
      mrt-hpc validate my_recipe.yaml --set training.learning_rate=2e-6
    """
    from mrt_hpc.cli.console import console_of
    from mrt_hpc.cli.plan import print_missing
    from mrt_hpc.plan.compile import build_plan
    from mrt_hpc.plan.limits import check_segments
    from mrt_hpc.recipe.load import load_recipe

    found = load_recipe(recipe, overrides)
    check_segments(found)
    plan = build_plan(found, max_array_size=None)
    click.secho("valid", fg="green", bold=True)
    click.echo(f"  {trained(found)}")
    click.echo(f"  {evaluated(found, plan)}")
    print_missing(console_of(sys.stdout), found, "submit")
    click.echo(f"next: mrt-hpc plan {recipe}{''.join(f' --set {one}' for one in overrides)}")


def trained(recipe: Recipe) -> str:
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


def evaluated(recipe: Recipe, plan: Plan) -> str:
    """What is evaluated, and the number of jobs, in a line."""
    from mrt_hpc.plan.compile import evaluated_versions

    benchmarks = [f"{one.name} ({one.samples} samples)" for one in recipe.evaluation.benchmarks]
    count = len(evaluated_versions(recipe))
    told = f"{', '.join(benchmarks)} of {count} weights versions" if benchmarks else "no evaluation"
    return f"{told}; {plan.segments} segment(s), {len(plan.jobs)} jobs, {plan.tasks} tasks"
