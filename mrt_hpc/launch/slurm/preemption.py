"""What a preemption does to the jobs of a partition and a QOS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrt_hpc.launch.slurm.cluster_facts import PartitionFacts, Qos, Survey

    pass


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
    """Return what a preemption does to jobs of a partition and a QOS; None where the settings are not known."""
    settings = survey.settings
    if settings is None:
        return None
    if settings.preempt_type in ("", "preempt/none"):
        return Preemption("OFF", 0, f"PreemptType={settings.preempt_type or 'not set'}")
    if settings.preempt_type == "preempt/qos":
        mode, grace_s, source = _of_qos(survey, qos)
    else:
        mode, grace_s, source = _of_partition(survey, partition)
    mode = mode or next(iter(settings.preempt_modes - {"GANG"}), "OFF")
    told = f"{settings.preempt_type}, {source}: PreemptMode={mode}"
    if mode == "OFF":
        return Preemption("OFF", 0, told)
    wait_s = settings.kill_wait_s or 0
    return Preemption(mode, grace_s + wait_s, f"{told}, GraceTime={grace_s} s, KillWait={wait_s} s")


def _of_partition(survey: Survey, partition: PartitionFacts) -> tuple[str, int, str]:
    """Mode, grace and source where the partition decides: jobs of the highest tier are not preempted."""
    tiers = [other.priority_tier for other in (survey.partitions or {}).values()]
    if partition.priority_tier >= max(tiers, default=0):
        return "OFF", 0, f"no partition has a higher PriorityTier than {partition.name}"
    return partition.preempt_mode, partition.grace_s, f"partition {partition.name}"


def _of_qos(survey: Survey, qos: Qos | None) -> tuple[str, int, str]:
    """Mode, grace and source where the QOS decides: a QOS that no other preempts is not preempted."""
    if qos is None:
        return "", 0, "the QOS is not known"
    preempting = [other.name for other in (survey.qos or {}).values() if qos.name in other.preempts]
    if not preempting:
        return "OFF", 0, f"no QOS preempts QOS {qos.name}"
    return qos.preempt_mode, qos.grace_s, f"QOS {qos.name}, which {', '.join(preempting)} preempt(s)"
