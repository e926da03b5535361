"""Finds where a plan or a site profile exceeds the limits of its cluster."""

import shutil
from collections.abc import Iterator, Mapping, Sequence

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import Job, JobKind, Plan

ANSWER_S = 5.0
"""The limit of each of two questions; without an answer the run is submitted all the same."""


def cluster_limits() -> tuple[survey.ClusterSettings, Mapping[str, survey.PartitionFacts]] | None:
    """None on a machine without Slurm's commands."""
    if shutil.which("scontrol") is None:
        return None
    config, listing = (run_slurm(command, ANSWER_S) for command in (survey.CONFIG, survey.PARTITIONS))
    return survey.parse_settings(config), survey.parse_partitions(listing)


def limit_excesses(
    plan: Plan, site: SlurmSite, settings: survey.ClusterSettings, partitions: Mapping[str, survey.PartitionFacts]
) -> list[str]:
    """A sentence for each part of a plan that the cluster would refuse or never start, with the profile's field to
    change. A QOS may lift partitions' time limits.
    """
    return [*_sizes_beyond(plan, settings), *_partitions_beyond(plan, site, partitions)]


def _sizes_beyond(plan: Plan, settings: survey.ClusterSettings) -> Iterator[str]:
    largest = max(job.tasks for job in plan.jobs)
    if settings.max_array_size is not None and largest > (allowed := max(1, settings.max_array_size)):
        yield (
            f"an array has {largest} tasks, and the cluster's MaxArraySize or max_array_tasks is "
            f"{settings.max_array_size}: set max_array_size: {allowed}"
        )
    if settings.max_job_count is not None and plan.tasks > settings.max_job_count:
        yield (
            f"the plan has {plan.tasks} array tasks, and the cluster's MaxJobCount is {settings.max_job_count} for all "
            f"users together: set max_submit_jobs: {settings.max_job_count} or less"
        )


def _partitions_beyond(plan: Plan, site: SlurmSite, partitions: Mapping[str, survey.PartitionFacts]) -> Iterator[str]:
    by_kind: dict[JobKind, list[Job]] = {}
    for job in plan.jobs:
        by_kind.setdefault(job.resources.kind, []).append(job)
    for what, jobs in by_kind.items():
        named = site.text_of("partition", what)
        names = named.split(",") if named else [n for n, p in partitions.items() if p.is_default]
        unknown = [name for name in names if name not in partitions]
        if unknown and partitions:
            there = ", ".join(partitions)
            yield f"there is no partition {unknown[0]}: set partitions.{what} to one or more of {there}"
        elif names and not unknown and site.text_of("qos", what) is None:
            yield from _times_beyond(jobs, [partitions[name] for name in names], ",".join(names))


def _times_beyond(jobs: list[Job], partitions: list[survey.PartitionFacts], names: str) -> Iterator[str]:
    """Jobs with a longer time limit than all partitions they may run in."""
    longest = max(jobs, key=lambda job: job.resources.time_limit_minutes)
    minutes = [p.max_minutes for p in partitions if p.max_minutes is not None]
    if len(minutes) == len(partitions) and longest.resources.time_limit_minutes > max(minutes):
        yield (
            f"job {longest.name} has a time limit of {longest.resources.time_limit_minutes} minutes, and partition "
            f"{names} allows {max(minutes)}: set max_time_minutes: {max(minutes)}, and resources.*.time_limit_minutes "
            "of the recipe to that or less"
        )


def closed_partitions(plan: Plan, site: SlurmSite, partitions: Mapping[str, survey.PartitionFacts]) -> list[str]:
    wanted = {site.text_of("partition", job.resources.kind) for job in plan.jobs}
    names = {name for names in wanted if names for name in names.split(",")}
    closed = {name: partitions[name].state for name in names if name in partitions}
    return [f"partition {name} is {state} and starts no jobs" for name, state in closed.items() if state != "UP"]


def refusal(site: SlurmSite, reasons: Sequence[str]) -> UserError:
    """The error for a plan that the cluster would refuse or never start; ``reasons`` is not empty."""
    advice = "change the fields named above in the profile of site {name}, then type the same command again"
    return UserError(
        f"the plan exceeds the limits of the cluster, or site profile {site.name} is wrong",
        value="; ".join(reasons),
        where=f"site {site.name}",
        expected="what `scontrol show config` and `scontrol show partition` print",
        advice=Advice(advice, name=site.name),
    )
