"""Asks the cluster for its limits, and finds where a plan or a site profile exceeds them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.slurm import answers
from mrt_hpc.launch.slurm.commands import run_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mrt_hpc.launch.slurm.site import SlurmSite
    from mrt_hpc.plan.jobs import Job, Plan

ANSWER_S = 5.0
"""The seconds that each of the two questions may take; without an answer the plan is still printed and the run
submitted.
"""
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d+):\d+")


@dataclass(frozen=True)
class Partition:
    """One partition."""

    max_minutes: int | None
    """Its longest time limit; None where there is none."""
    state: str
    """The state as Slurm writes it: ``UP`` if jobs can start."""
    is_default: bool = False


@dataclass(frozen=True)
class ClusterLimits:
    """The limits that matter to one submission."""

    max_array_size: int | None = None
    """One more than the largest index of an array."""
    max_job_count: int | None = None
    """The maximum number of jobs and array tasks of all users that the controller keeps, including those that ended a
    few minutes ago.
    """
    partitions: Mapping[str, Partition] = field(default_factory=dict)


def cluster_limits() -> ClusterLimits | None:
    """The limits of the cluster that Slurm's commands speak to; None on a machine without these commands.

    Raises:
        UserError: the cluster refused, or did not answer within seconds.
    """
    if shutil.which("scontrol") is None:
        return None
    settings = answers.settings(run_slurm(["scontrol", "show", "config"], ANSWER_S))
    listing = run_slurm(["scontrol", "--all", "--oneliner", "show", "partition"], ANSWER_S)
    return ClusterLimits(
        _whole(settings.get("MaxArraySize", "")),
        _whole(settings.get("MaxJobCount", "")),
        dict(map(_partition, answers.partitions(listing))),
    )


def _whole(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _partition(fields: Mapping[str, str]) -> tuple[str, Partition]:
    known = Partition(minutes_of(fields.get("MaxTime", "")), fields.get("State", "UP"), fields.get("Default") == "YES")
    return fields["PartitionName"], known


def minutes_of(text: str) -> int | None:
    """Slurm's ``days-hours:minutes:seconds`` in minutes; None for ``UNLIMITED``."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    return (int(match["days"] or 0) * 24 + int(match["hours"])) * 60 + int(match["minutes"])


def beyond(plan: Plan, site: SlurmSite, limits: ClusterLimits) -> list[str]:
    """Return a sentence for each part of a plan that the cluster would refuse or never start, with the field of the
    site profile to change. A QOS may lift the time limits of partitions: if the profile names a QOS, its own time
    limits are used.
    """
    return [*_arrays_beyond(plan, limits), *_tasks_beyond(plan, limits), *_partitions_beyond(plan, site, limits)]


def _arrays_beyond(plan: Plan, limits: ClusterLimits) -> Iterator[str]:
    largest = max(job.tasks for job in plan.jobs)
    if limits.max_array_size is not None and largest > (allowed := max(1, limits.max_array_size)):
        yield (
            f"an array has {largest} tasks, and the cluster's MaxArraySize is {limits.max_array_size}: "
            f"set max_array_size: {allowed}"
        )


def _tasks_beyond(plan: Plan, limits: ClusterLimits) -> Iterator[str]:
    if limits.max_job_count is not None and plan.tasks > limits.max_job_count:
        yield (
            f"the plan has {plan.tasks} array tasks, and the cluster's MaxJobCount is {limits.max_job_count} for all "
            f"users together: set max_submit_jobs: {limits.max_job_count} or less"
        )


def _partitions_beyond(plan: Plan, site: SlurmSite, limits: ClusterLimits) -> Iterator[str]:
    for what, jobs in _jobs_by_partition_field(plan).items():
        name = getattr(site.partitions, what)
        names = name.split(",") if name else [n for n, p in limits.partitions.items() if p.is_default]
        unknown = [one for one in names if one not in limits.partitions]
        if unknown and limits.partitions:
            there = ", ".join(limits.partitions)
            yield f"there is no partition {unknown[0]}: set partitions.{what} to one or more of {there}"
        elif names and not unknown and site.qos is None:
            yield from _times_beyond(jobs, [limits.partitions[one] for one in names], ",".join(names))


def _jobs_by_partition_field(plan: Plan) -> dict[str, list[Job]]:
    fields = {"gpu": [job for job in plan.jobs if job.resources.gpus]}
    fields["cpu"] = [job for job in plan.jobs if not job.resources.gpus]
    return {what: jobs for what, jobs in fields.items() if jobs}


def _times_beyond(jobs: list[Job], partitions: list[Partition], names: str) -> Iterator[str]:
    """Find jobs whose time limit is longer than that of every partition they may run in."""
    longest = max(jobs, key=lambda job: job.resources.time_limit_minutes)
    minutes = [p.max_minutes for p in partitions if p.max_minutes is not None]
    if len(minutes) == len(partitions) and longest.resources.time_limit_minutes > max(minutes):
        yield (
            f"job {longest.name} has a time limit of {longest.resources.time_limit_minutes} minutes, and partition "
            f"{names} allows {max(minutes)}: set max_time_minutes: {max(minutes)}, and resources.*.time_limit_minutes "
            "of the recipe to that or less"
        )


def closed_partitions(plan: Plan, site: SlurmSite, limits: ClusterLimits) -> list[str]:
    """Return a sentence for each partition of the plan's jobs that does not start jobs at present."""
    wanted = {getattr(site.partitions, what) for what in _jobs_by_partition_field(plan)}
    names = {name for names in wanted if names for name in names.split(",")}
    closed = {name: limits.partitions[name].state for name in names if name in limits.partitions}
    return [f"partition {name} is {state} and starts no jobs" for name, state in closed.items() if state != "UP"]


def refusal(site: SlurmSite, found: Sequence[str]) -> UserError:
    """The error of a submission that the cluster would refuse or never start; ``found`` is not empty."""
    return UserError(
        f"the plan exceeds the limits of the cluster, or site profile {site.name} is wrong",
        value="; ".join(found),
        where=f"site {site.name}",
        expected="what `scontrol show config` and `scontrol show partition` print",
        advice=f"change the fields named above in the profile of site {site.name}, then type the same command again",
    )
