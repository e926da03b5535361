"""Taking over what a later submission changes of a run: its resources, and what its recipe may change.

Nothing of the run may be at work. A journal is written first and removed last, so that a submission that was cut short
at any point between is finished by the same one, or taken back by one that asks for what was before.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING

from mrt_hpc.launch.changes import Change, changes
from mrt_hpc.plan.model import Role, read_plan
from mrt_hpc.recipe.begun import FREE_SECTIONS
from mrt_hpc.recipe.lock import lock_text, read_recipe_lock
from mrt_hpc.run.atomic import write_json, write_text
from mrt_hpc.run.events import EventKind, EventLog, event_file
from mrt_hpc.run.tasks import task_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.plan.model import Job, Plan
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.layout import RunLayout


def is_renewed(layout: RunLayout, recipe: Recipe, plan: Plan) -> bool:
    """Whether a submission asks for something else than the run has, or an earlier one that did was cut short."""
    as_it_is = read_recipe_lock(layout.recipe_lock) == recipe and read_plan(layout.plan) == plan
    return layout.renewal.exists() or not as_it_is


def renew(layout: RunLayout, recipe: Recipe, plan: Plan) -> list[str]:
    """Take over another recipe and plan. What is finished stays; tasks that have new work are opened again.

    Tasks are opened before the plan is written, as the two plans tell which have new work; one opened in vain finds all
    done. The plan goes before the lock: a task started between the two writes finds its job in either.

    Args:
        layout: the run directory, which this process holds.
        recipe: of the submission, of which :mod:`mrt_hpc.launch.changes` has refused nothing.
        plan: of the submission.

    Returns:
        What was changed beyond resources, a sentence each.
    """
    found = _recorded(layout, recipe)
    write_json(layout.renewal, {"changes": [asdict(change) for change in found]})
    for job in _jobs_to_open(read_plan(layout.plan), plan, found):
        _open_again(layout, job)
    write_json(layout.plan, plan.as_json())
    write_text(layout.recipe_lock, lock_text(recipe))
    _tell(layout, found)
    layout.renewal.unlink()
    return [str(change) for change in found if not is_of_resources(change)]


def is_of_resources(change: Change) -> bool:
    """Whether a change is one of how the run is run."""
    return change.field.partition(".")[0] in FREE_SECTIONS


def _recorded(layout: RunLayout, recipe: Recipe) -> list[Change]:
    """The changes of this submission; of one cut short after the lock was written, those in its journal."""
    found = changes(layout, recipe)
    if found or not layout.renewal.exists():
        return found
    return [Change(**change) for change in json.loads(layout.renewal.read_text())["changes"]]


def _jobs_to_open(before: Plan, after: Plan, found: Sequence[Change]) -> list[Job]:
    """Jobs of the new plan that have to do what the job of their name has not done."""
    earlier = {job.name: job for job in before.jobs}
    fields = [change.field for change in found]
    report = any(field == "schedule.iterations" for field in fields)
    return [
        job
        for job in after.jobs
        if (job.role is Role.REPORT and report)
        or (job.segment is not None and not _does_the_same(job, earlier.get(job.name)))
    ]


def _does_the_same(job: Job, earlier: Job | None) -> bool:
    return earlier is not None and (job.iterations, job.evaluations) == (earlier.iterations, earlier.evaluations)


def _open_again(layout: RunLayout, job: Job) -> None:
    """Forget how far the tasks of a job were; what they have finished they find in the run directory."""
    for index in range(job.tasks):
        task_file(layout, job.name, index).unlink(missing_ok=True)


def _tell(layout: RunLayout, found: Sequence[Change]) -> None:
    told = [{"field": change.field, "old": change.old, "new": change.new} for change in found]
    if told:
        path = event_file(layout.events, "submit", 0, 0, uuid.uuid4().hex[:8])
        EventLog(path).emit(EventKind.RECIPE_CHANGED, changes=told)
