"""The limits on the jobs of a user: how many may be queued, and how long they may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.launch.slurm.cluster_facts import PartitionFacts, Qos, Survey


def submit_limits(
    survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None
) -> list[tuple[int, str]]:
    """The limits on the jobs and array tasks that a user may have queued, each with its source."""
    found = [
        (one.max_submit_jobs, f"sacctmgr show associations: MaxSubmitJobs of account {one.account}")
        for one in survey.associations_of(account)
        if one.max_submit_jobs is not None
    ]
    found += [
        (level.max_submit_jobs, f"sacctmgr show qos: MaxSubmitPU of {level.name}")
        for level in _levels(survey, partitions, account, qos)
        if level.max_submit_jobs is not None
    ]
    if survey.settings is not None and survey.settings.max_job_count is not None:
        found.append((survey.settings.max_job_count, "scontrol show config: MaxJobCount, of all users together"))
    return found


def time_limits(
    survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None
) -> list[tuple[int, str]]:
    """The limits on the time limit of a job, minutes, each with its source."""
    found = [
        (one.max_minutes, f"scontrol show partition: MaxTime of {one.name}")
        for one in partitions
        if one.max_minutes is not None
    ]
    found += [
        (level.max_minutes, f"sacctmgr show qos: MaxWall of {level.name}")
        for level in _levels(survey, partitions, account, qos)
        if level.max_minutes is not None
    ]
    walls = [(one.max_minutes, one.account) for one in survey.associations_of(account) if one.max_minutes is not None]
    return [*found, *((minutes, f"sacctmgr show associations: MaxWall of {name}") for minutes, name in walls)]


def _levels(survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None) -> list[Qos]:
    """Every QOS whose limits hold for a job: its own and those of its partitions."""
    of_partitions = [(survey.qos or {}).get(partition.qos or "") for partition in partitions]
    found = [level for level in (survey.qos_of(account, qos), *of_partitions) if level is not None]
    return list({level.name: level for level in found}.values())
