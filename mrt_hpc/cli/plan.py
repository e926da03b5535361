"""``mrt-hpc plan``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mrt_hpc.cli.options import run_path
from mrt_hpc.launch.sites import find_site
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.cost import job_cost, plan_cost
from mrt_hpc.recipe.errors import UserError
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.schema import HuggingFaceModel
from mrt_hpc.recipe.site import SlurmSite
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.plan.model import Job, Plan
    from mrt_hpc.recipe.schema import Recipe

PIPE_WIDTH = 160
"""Columns of a table that is not printed to a terminal."""


def print_plan(recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], run: Path | None) -> None:
    """Print the jobs and what they cost at most."""
    recipe, site = load_recipe(recipe_path, overrides), find_site(site_name)
    plan = compile_plan(recipe, site)
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(plan_table(plan))
    cost = plan_cost(plan)
    console.print(
        f"{plan.iterations} iterations in {plan.segments} segment(s); "
        f"{len(plan.jobs)} sbatch calls, {plan.tasks} array tasks. "
        f"At most {cost.gpu_hours:,.0f} GPU-hours and {cost.core_hours:,.0f} core-hours, "
        "if every job runs to its limit.",
        highlight=False,
    )
    console.print(f"Run directory: {run_path(recipe.name, run)}", highlight=False, soft_wrap=True)
    for missing in missing_inputs(recipe):
        console.print(f"[yellow]not there yet, submit will refuse:[/] {missing}", highlight=False, soft_wrap=True)


def print_sbatch(recipe_path: Path, site_name: str | None, overrides: tuple[str, ...], run: Path | None) -> None:
    """Print the sbatch texts, as submit writes them.

    Raises:
        UserError: the site is not a Slurm cluster.
    """
    from mrt_hpc.launch.slurm import sbatch_texts  # the one option that needs submitit

    recipe, site = load_recipe(recipe_path, overrides), find_site(site_name)
    if not isinstance(site, SlurmSite):
        raise UserError("this machine is no Slurm cluster, so there are no sbatch texts", advice="add --site SITE")
    layout = RunLayout(run_path(recipe.name, run))
    for name, text in sbatch_texts(compile_plan(recipe, site), site, layout):
        print(f"# ---- {name}\n{text}")


def plan_table(plan: Plan) -> Table:
    """One row a job."""
    table = Table(title=f"{plan.name}: {len(plan.jobs)} jobs", title_justify="left")
    for column in ("job", "iterations", "after"):
        table.add_column(column, overflow="fold")
    for column in ("tasks", "ranks", "GPUs", "cores", "GiB", "limit", "GPU-h"):
        table.add_column(column, justify="right")
    for job in plan.jobs:
        table.add_row(*_row(job))
    return table


def _row(job: Job) -> tuple[str, ...]:
    r = job.resources
    span = f"{job.first_iteration}-{job.end_iteration - 1}" if job.segment is not None else ""
    after = ", ".join(f"{d.kind}:{d.job}" for d in job.after)
    if len(job.after) > 3:
        after = f"{job.after[0].kind}: {len(job.after)} jobs"
    limit = f"{r.time_limit_minutes // 60}:{r.time_limit_minutes % 60:02d}"
    tasks = f"{job.tasks} (%{job.max_parallel})" if job.max_parallel else str(job.tasks)
    numbers = (
        r.ranks,
        r.gpus,
        r.cpus,
        f"{r.memory_gib_per_node * r.nodes:g}",
        limit,
        f"{job_cost(job).gpu_hours:,.1f}",
    )
    return (job.name, span, after, tasks, *map(str, numbers))


def missing_inputs(recipe: Recipe) -> Iterator[str]:
    """Files and folders that the recipe names and that are not there."""
    if isinstance(recipe.model, HuggingFaceModel) and not Path(recipe.model.path).is_dir():
        yield f"model.path {recipe.model.path}"
    sources = {"data": recipe.data, **{f"benchmark {b.name}": b.problems for b in recipe.evaluation.benchmarks}}
    for what, problems in sources.items():
        path = getattr(problems, "path", None)
        if path is not None and not Path(path).is_file():
            yield f"{what} {path}"
    if recipe.prover is not None and recipe.prover.model is not None and not Path(recipe.prover.model).is_dir():
        yield f"prover.model {recipe.prover.model}"
