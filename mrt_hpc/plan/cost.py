"""What a plan costs at most: GPU-hours and core-hours if every job runs to its time limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.plan.model import Job, Plan


@dataclass(frozen=True)
class Cost:
    """An upper bound, by the time limits."""

    gpu_hours: float
    core_hours: float


def job_cost(job: Job) -> Cost:
    """Upper bound of one job, all its tasks together."""
    hours = job.tasks * job.resources.time_limit_minutes / 60
    return Cost(gpu_hours=hours * job.resources.gpus, core_hours=hours * job.resources.cpus)


def plan_cost(plan: Plan) -> Cost:
    """Upper bound of a whole plan."""
    costs = [job_cost(job) for job in plan.jobs]
    return Cost(sum(c.gpu_hours for c in costs), sum(c.core_hours for c in costs))
