"""Finds where a plan or a site profile exceeds the limits of its cluster."""

import shutil
from collections.abc import Iterator, Mapping, Sequence

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, Plan

ANSWER_S = 5.0
"""The seconds that each of the two questions may take; without an answer the plan is still printed and the run
submitted.
"""


def cluster_limits() -> tuple[survey.ClusterSettings, Mapping[str, survey.PartitionFacts]] | None:
    """The settings and the partitions of the cluster that Slurm's commands speak to; None on a machine without these
    commands.

    Raises:
        UserError: the cluster refused, or did not answer within seconds.
    """
    if shutil.which("scontrol") is None:
        return None
    config, listing = (run_slurm(command, ANSWER_S) for command in (survey.CONFIG, survey.PARTITIONS))
    return survey.parse_settings(config), survey.parse_partitions(listing)


def beyond(
    plan: Plan, site: SlurmSite, settings: survey.ClusterSettings, partitions: Mapping[str, survey.PartitionFacts]
) -> list[str]:
    """Return a sentence for each part of a plan that the cluster would refuse or never start, with the field of the
    site profile to change. A QOS may lift the time limits of partitions: if the profile names a QOS, its own time
    limits are used.
    """
    return [*_sizes_beyond(plan, settings), *_partitions_beyond(plan, site, partitions)]


def _sizes_beyond(plan: Plan, settings: survey.ClusterSettings) -> Iterator[str]:
    largest = max(job.tasks for job in plan.jobs)
    if settings.max_array_size is not None and largest > (allowed := max(1, settings.max_array_size)):
        yield (
            f"an array has {largest} tasks, and the cluster's MaxArraySize is {settings.max_array_size}: "
            f"set max_array_size: {allowed}"
        )
    if settings.max_job_count is not None and plan.tasks > settings.max_job_count:
        yield (
            f"the plan has {plan.tasks} array tasks, and the cluster's MaxJobCount is {settings.max_job_count} for all "
            f"users together: set max_submit_jobs: {settings.max_job_count} or less"
        )


def _partitions_beyond(plan: Plan, site: SlurmSite, partitions: Mapping[str, survey.PartitionFacts]) -> Iterator[str]:
    for what, jobs in _jobs_by_partition_field(plan).items():
        named = getattr(site.partitions, what)
        names = named.split(",") if named else [n for n, p in partitions.items() if p.is_default]
        unknown = [name for name in names if name not in partitions]
        if unknown and partitions:
            there = ", ".join(partitions)
            yield f"there is no partition {unknown[0]}: set partitions.{what} to one or more of {there}"
        elif names and not unknown and site.qos is None:
            yield from _times_beyond(jobs, [partitions[name] for name in names], ",".join(names))


def _jobs_by_partition_field(plan: Plan) -> dict[str, list[Job]]:
    fields = {"gpu": [job for job in plan.jobs if job.resources.gpus]}
    fields["cpu"] = [job for job in plan.jobs if not job.resources.gpus]
    return {what: jobs for what, jobs in fields.items() if jobs}


def _times_beyond(jobs: list[Job], partitions: list[survey.PartitionFacts], names: str) -> Iterator[str]:
    """Find jobs whose time limit is longer than that of every partition they may run in."""
    longest = max(jobs, key=lambda job: job.resources.time_limit_minutes)
    minutes = [p.max_minutes for p in partitions if p.max_minutes is not None]
    if len(minutes) == len(partitions) and longest.resources.time_limit_minutes > max(minutes):
        yield (
            f"job {longest.name} has a time limit of {longest.resources.time_limit_minutes} minutes, and partition "
            f"{names} allows {max(minutes)}: set max_time_minutes: {max(minutes)}, and resources.*.time_limit_minutes "
            "of the recipe to that or less"
        )


def closed_partitions(plan: Plan, site: SlurmSite, partitions: Mapping[str, survey.PartitionFacts]) -> list[str]:
    """Return a sentence for each partition of the plan's jobs that does not start jobs at present."""
    wanted = {getattr(site.partitions, what) for what in _jobs_by_partition_field(plan)}
    names = {name for names in wanted if names for name in names.split(",")}
    closed = {name: partitions[name].state for name in names if name in partitions}
    return [f"partition {name} is {state} and starts no jobs" for name, state in closed.items() if state != "UP"]


def refusal(site: SlurmSite, reasons: Sequence[str]) -> UserError:
    """The error of a submission that the cluster would refuse or never start; ``reasons`` is not empty."""
    return UserError(
        f"the plan exceeds the limits of the cluster, or site profile {site.name} is wrong",
        value="; ".join(reasons),
        where=f"site {site.name}",
        expected="what `scontrol show config` and `scontrol show partition` print",
        advice=f"change the fields named above in the profile of site {site.name}, then type the same command again",
    )
