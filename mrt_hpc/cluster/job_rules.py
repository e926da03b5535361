"""The rules of a cluster for one user's jobs: which partitions admit them, what a preemption does, how many may be
queued, and how long they may run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mrt_hpc.backends.slurm.survey import ALL, PartitionFacts, Qos, Survey, User


def refusals(partition: PartitionFacts, user: User, accounts: Iterable[str], qos: str | None) -> list[str]:
    """Why a partition admits no job of a user, a sentence each. One of the accounts suffices; empty if they are not
    known.
    """
    wanted, reasons = list(accounts), []
    if partition.root_only:
        reasons.append("RootOnly=YES: only root may submit to it")
    if partition.allow_groups != ALL and not partition.allow_groups & user.groups:
        reasons.append(f"AllowGroups={_sorted_names(partition.allow_groups)}: you are in none of these groups")
    if wanted and partition.allow_accounts != ALL and not partition.allow_accounts & set(wanted):
        reasons.append(f"AllowAccounts={_sorted_names(partition.allow_accounts)}: not {', '.join(wanted)}")
    if wanted and partition.allow_accounts == ALL and set(wanted) <= partition.deny_accounts:
        reasons.append(f"DenyAccounts={_sorted_names(partition.deny_accounts)}")
    if qos is not None and partition.allow_qos != ALL and qos not in partition.allow_qos:
        reasons.append(f"AllowQos={_sorted_names(partition.allow_qos)}: not {qos}")
    if qos is not None and partition.allow_qos == ALL and qos in partition.deny_qos:
        reasons.append(f"DenyQos={_sorted_names(partition.deny_qos)}")
    return reasons


def _sorted_names(names: Iterable[str]) -> str:
    return ",".join(sorted(names))


@dataclass(frozen=True)
class Preemption:
    """What a preemption does to a job of one partition and QOS."""

    mode: str
    """OFF if its jobs are not preempted, else REQUEUE, CANCEL or SUSPEND."""
    notice_s: int
    """Seconds from SIGTERM to SIGKILL: GraceTime and KillWait together."""
    source: str
    """The settings that say so, in Slurm's words."""


def preemption(survey: Survey, partition: PartitionFacts, qos: Qos | None) -> Preemption | None:
    """None where the settings are not known."""
    if (settings := survey.settings) is None:
        return None
    if settings.preempt_type in ("", "preempt/none"):
        return Preemption("OFF", 0, f"PreemptType={settings.preempt_type or 'not set'}")
    is_of_qos = settings.preempt_type == "preempt/qos"
    mode, grace_s, source = _qos_preemption(survey, qos) if is_of_qos else _partition_preemption(survey, partition)
    mode = mode or next(iter(settings.preempt_modes - {"GANG"}), "OFF")
    source_text = f"{settings.preempt_type}, {source}: PreemptMode={mode}"
    if mode == "OFF":
        return Preemption("OFF", 0, source_text)
    wait_s = settings.kill_wait_s or 0
    return Preemption(mode, grace_s + wait_s, f"{source_text}, GraceTime={grace_s} s, KillWait={wait_s} s")


def _partition_preemption(survey: Survey, partition: PartitionFacts) -> tuple[str, int, str]:
    """Mode, grace and source where the partition decides: the highest tier is not preempted."""
    tiers = [other.priority_tier for other in (survey.partitions or {}).values()]
    if partition.priority_tier >= max(tiers, default=0):
        return "OFF", 0, f"no partition has a higher PriorityTier than {partition.name}"
    return partition.preempt_mode, partition.grace_s, f"partition {partition.name}"


def _qos_preemption(survey: Survey, qos: Qos | None) -> tuple[str, int, str]:
    """Mode, grace and source where the QOS decides: one that no other preempts is not preempted."""
    if qos is None:
        return "", 0, "the QOS is not known"
    preempting = [other.name for other in (survey.qos or {}).values() if qos.name in other.preempts]
    if not preempting:
        return "OFF", 0, f"no QOS preempts QOS {qos.name}"
    return qos.preempt_mode, qos.grace_s, f"QOS {qos.name}, which {', '.join(preempting)} preempt(s)"


def submit_limits(
    survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None
) -> list[tuple[int, str]]:
    """Limits on a user's queued jobs and array tasks, with sources."""
    levels, associations = levels_of(survey, partitions, account, qos), survey.associations_of(account)
    most_of_all = None if survey.settings is None else survey.settings.max_job_count
    of_account = "sacctmgr show associations: MaxSubmitJobs of account"
    return _known_limits(
        *((one.max_submit_jobs, f"{of_account} {one.account}") for one in associations),
        *((level.max_submit_jobs, f"sacctmgr show qos: MaxSubmitPU of {level.name}") for level in levels),
        (most_of_all, "scontrol show config: MaxJobCount, of all users together"),
    )


def time_limits(
    survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None
) -> list[tuple[int, str]]:
    """Limits in minutes for a job, with sources."""
    levels, associations = levels_of(survey, partitions, account, qos), survey.associations_of(account)
    return _known_limits(
        *((limited.max_minutes, f"scontrol show partition: MaxTime of {limited.name}") for limited in partitions),
        *((level.max_minutes, f"sacctmgr show qos: MaxWall of {level.name}") for level in levels),
        *((one.max_minutes, f"sacctmgr show associations: MaxWall of {one.account}") for one in associations),
    )


def _known_limits(*limits: tuple[int | None, str]) -> list[tuple[int, str]]:
    return [(most, source) for most, source in limits if most is not None]


def levels_of(survey: Survey, partitions: Sequence[PartitionFacts], account: str | None, qos: str | None) -> list[Qos]:
    """Every QOS whose limits hold for a job: its own and those of its partitions."""
    of_partitions = [(survey.qos or {}).get(partition.qos or "") for partition in partitions]
    levels = [level for level in (survey.qos_of(account, qos), *of_partitions) if level is not None]
    return list({level.name: level for level in levels}.values())
