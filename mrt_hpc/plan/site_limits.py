"""Checks a plan against the limits of a site, and finds a setting that would fit."""

from collections.abc import Callable
from math import ceil
from typing import TypeVar

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.recipe.sections import Coupling
from mrt_hpc.recipe.site import SiteSettings

SHARDS = "evaluation.problem_shards"
E = TypeVar("E", bound=Experiment)
MAX_SEGMENTS = 10_000
"""Of a plan, each at least one job: a queue takes far fewer."""


def check_segments(recipe: Recipe) -> None:
    """Refuse a plan of too many segments, before it is built."""
    iterations, size = recipe.schedule.iterations, recipe.schedule.iterations_per_job
    if (segments := ceil(iterations / size)) > MAX_SEGMENTS:
        raise UserError(
            f"the plan has {segments} segments, each of at least one job",
            value=size,
            where="schedule.iterations_per_job",
            expected=f"{MAX_SEGMENTS} segments or fewer",
            advice=Advice("--set schedule.iterations_per_job={most}", most=ceil(iterations / MAX_SEGMENTS)),
        )


def check_limits(plan: Plan, site: SiteSettings, field: str, value: int, advice: Callable[[int], str]) -> None:
    """Refuse a plan beyond the site's limits.

    Args:
        field: of the recipe that decides the number of tasks.
        value: for the error.
        advice: by the number of allowed tasks.
    """
    _check_times(plan, site)
    if (most := site.limits.tasks) is not None and plan.tasks > most:
        what = f"the plan has {plan.tasks} array tasks, more than the site lets you submit"
        raise UserError(
            what, value=value, where=field, expected=f"at most {most} tasks (site max_submit_jobs)", advice=advice(most)
        )


def _check_times(plan: Plan, site: SiteSettings) -> None:
    """All too long time limits at once."""
    limit = site.limits.minutes
    asked = {job.role: job.resources.time_limit_minutes for job in plan.jobs}
    long = {f"resources.{role.section}.time_limit_minutes": minutes for role, minutes in asked.items()}
    long = {field: minutes for field, minutes in long.items() if limit is not None and minutes > limit}
    if not long:
        return
    raise UserError(
        f"{' and '.join(long)} {'is' if len(long) == 1 else 'are'} more than site {site.name} allows",
        value=", ".join(map(str, long.values())),
        expected=f"{limit} minutes or less (site max_time_minutes)",
        advice=Advice(
            "{options}, and fewer schedule.iterations_per_job with it",
            options=[word for field in long for word in ("--set", f"{field}={limit}")],
        ),
    )


def fitting_iterations_per_job(recipe: Recipe, limit: int, rebuild: Callable[[Recipe], Plan]) -> int | None:
    """Least iterations a job with at most ``limit`` tasks; None where no number helps."""
    schedule = recipe.schedule
    most = schedule.iterations
    every = recipe.algorithm.refresh_period
    if schedule.coupling is Coupling.SEQUENTIAL and recipe.algorithm.samples_rollouts:
        most = min(most, schedule.max_staleness + 1)
    for size in range(schedule.iterations_per_job + 1, most + 1):
        if every is not None and every % size:
            continue
        update = {"schedule": schedule.model_copy(update={"iterations_per_job": size})}
        if rebuild(recipe.model_copy(update=update)).tasks <= limit:
            return size
    return None


def fitting_shards(recipe: E, limit: int, rebuild: Callable[[E], Plan]) -> int | None:
    """Largest smaller number of shards a benchmark with at most ``limit`` tasks; None where no number helps."""
    for shards in range(recipe.evaluation.problem_shards - 1, 0, -1):
        evaluation = recipe.evaluation.model_copy(update={"problem_shards": shards})
        if rebuild(recipe.model_copy(update={"evaluation": evaluation})).tasks <= limit:
            return shards
    return None
