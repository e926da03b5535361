"""Checks a plan against the limits of a site, and finds a setting that would fit."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Plan
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.recipe.sections import Coupling
from mrt_hpc.recipe.site import SiteSettings

MAX_SEGMENTS = 10_000
"""Segments of a plan, each of at least one job: a queue takes far fewer."""


def check_segments(recipe: Recipe) -> None:
    """Refuse a plan of too many segments, before it is built.

    Raises:
        UserError: the recipe has more than ``MAX_SEGMENTS``.
    """
    iterations, size = recipe.schedule.iterations, recipe.schedule.iterations_per_job
    if (segments := ceil(iterations / size)) > MAX_SEGMENTS:
        raise UserError(
            f"the plan has {segments} segments, each of at least one job",
            value=size,
            where="schedule.iterations_per_job",
            expected=f"{MAX_SEGMENTS} segments or fewer",
            advice=f"--set schedule.iterations_per_job={ceil(iterations / MAX_SEGMENTS)}",
        )


def check_limits(plan: Plan, recipe: Recipe, site: SiteSettings, *, rebuild: Callable[[Recipe], Plan]) -> None:
    """Refuse a plan beyond the site's limits.

    Args:
        plan: the plan to check.
        recipe: what it was made from.
        site: whose limits count.
        rebuild: makes a plan from a changed recipe, to look for one that fits.

    Raises:
        UserError: too many tasks (with the number of iterations a job that would fit), or too long time limits.
    """
    _check_times(plan, site)
    if (most := site.limits.tasks) is not None and plan.tasks > most:
        fitting = fitting_iterations_per_job(recipe, most, rebuild)
        advice = (
            f"--set schedule.iterations_per_job={fitting}" if fitting else "evaluate less often, or on fewer benchmarks"
        )
        field = "schedule.iterations_per_job"
        raise _too_many_tasks(plan, most, field, recipe.schedule.iterations_per_job, advice)


def check_evaluation_limits(plan: Plan, site: SiteSettings) -> None:
    """Refuse the plan of an evaluation on its own beyond the site's limits.

    Raises:
        UserError: too many tasks, or too long time limits.
    """
    _check_times(plan, site)
    if (most := site.limits.tasks) is not None and plan.tasks > most:
        advice = "--set evaluation.problem_shards with a smaller number, or fewer models"
        raise _too_many_tasks(plan, most, "evaluation.problem_shards", plan.tasks, advice)


def _check_times(plan: Plan, site: SiteSettings) -> None:
    """Refuse all time limits that are too long at once."""
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
        advice=" ".join(f"--set {field}={limit}" for field in long) + ", and fewer schedule.iterations_per_job with it",
    )


def _too_many_tasks(plan: Plan, limit: int, field: str, value: int, advice: str) -> UserError:
    return UserError(
        f"the plan has {plan.tasks} array tasks, more than the site lets you submit",
        value=value,
        where=field,
        expected=f"at most {limit} tasks (site max_submit_jobs)",
        advice=advice,
    )


def fitting_iterations_per_job(recipe: Recipe, limit: int, rebuild: Callable[[Recipe], Plan]) -> int | None:
    """The least number of iterations a job with at most ``limit`` tasks in all; None where no number helps."""
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
