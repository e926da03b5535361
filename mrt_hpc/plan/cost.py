"""Hours of a plan: those that its time limits allot, and the unit in which hours are divided by role and use.

What the time limits allot is no upper bound: a job that is preempted, or reaches its limit before its work is done, is
queued again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Job, Plan, Role
    from mrt_hpc.run.uses import Use


@dataclass(frozen=True)
class UseHours:
    """The hours of one use in one role, expected or spent."""

    role: Role
    use: Use
    hours: float
    """Wall time of all tasks together."""
    gpu_hours: float
    core_hours: float


@dataclass(frozen=True)
class Cost:
    """The hours that the time limits allot."""

    gpu_hours: float
    core_hours: float


def job_cost(job: Job) -> Cost:
    """Return the cost of one job, all its tasks together."""
    hours = job.tasks * job.resources.time_limit_minutes / 60
    return Cost(gpu_hours=hours * job.resources.gpus, core_hours=hours * job.resources.cpus)


def plan_cost(plan: Plan) -> Cost:
    """Return the cost of a whole plan."""
    costs = [job_cost(job) for job in plan.jobs]
    return Cost(sum(c.gpu_hours for c in costs), sum(c.core_hours for c in costs))
