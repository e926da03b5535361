"""Checks of what a preemption, the loss of a node and the end of a job do to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.launch.slurm.doctor.findings import Result, doubtful, not_checked, ok, or_null
from mrt_hpc.launch.slurm.site import Requeue
from mrt_hpc.launch.slurm.survey import CONFIG
from mrt_hpc.plan.expected import late_checkpoint
from mrt_hpc.plan.throughput import throughput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.launch.slurm.cluster_facts import PartitionFacts
    from mrt_hpc.launch.slurm.doctor.situation import Situation
    from mrt_hpc.launch.slurm.preemption import Preemption


def preempted_jobs(situation: Situation) -> Iterator[Result]:
    """What a preemption does to the run."""
    if (found := situation.known_cluster) is None:
        return
    seen = {one.name: one for kind in situation.kinds for one in situation.partitions(kind)}
    for partition in seen.values():
        if (what := situation.preemption(partition)) is not None:
            yield _preempted(situation, partition, what)
    if seen and found[1].settings is None:
        yield not_checked(found[1].why_not(CONFIG) or "scontrol show config gave no answer")


def _preempted(situation: Situation, partition: PartitionFacts, what: Preemption) -> Result:
    about, said = f"in partition {partition.name}", f"{what.source} (scontrol show config and partition)"
    if what.mode == "OFF":
        return ok(f"{said}: jobs are not preempted", about=about)
    if what.mode == "CANCEL":
        return doubtful(
            f"{said}: a preempted task gets SIGTERM, is killed {what.notice_s} s later and is not queued again",
            "type the same `mrt-hpc submit` after a preemption: nothing that is finished is lost; or choose a "
            "partition or QOS whose PreemptMode is REQUEUE",
            about=about,
        )
    if what.mode != "REQUEUE":
        return doubtful(
            f"{said}: a preempted task is suspended; its reservations expire and other tasks take over its work",
            "choose a partition or QOS whose PreemptMode is REQUEUE or OFF",
            about=about,
        )
    told = f"{said}: a preempted task gets SIGTERM, has {what.notice_s} s, and is queued again{_before(situation)}"
    if (late := _late(situation, what)) is not None:
        return doubtful(f"{told}; {late}", "--set training.checkpoint_every=1", about=about)
    return ok(told, about=about)


def _before(situation: Situation) -> str:
    settings = situation.cluster.settings if situation.cluster else None
    if settings is None:
        return ""
    exempt = f"; it is not preempted in its first {settings.exempt_s} s" if settings.exempt_s else ""
    sent = "; the job's own --signal is sent as well" if settings.sends_user_signal else ""
    return exempt + sent


def _late(situation: Situation, what: Preemption) -> str | None:
    """A warning where a checkpoint takes longer than a preempted trainer has."""
    if situation.recipe is None or situation.slurm is None:
        return None
    rates = throughput(situation.recipe, situation.slurm)
    site = situation.slurm.model_copy(update={"preemption_notice_s": what.notice_s})
    return None if rates is None else late_checkpoint(situation.recipe, site, rates)


def notice_of_profile(situation: Situation) -> Iterator[Result]:
    """``preemption_notice_s`` of the profile is what the cluster gives."""
    if (found := situation.known_cluster) is None:
        return
    stated = found[0].preemption_notice_s
    seen = [
        what for kind in situation.kinds for one in situation.partitions(kind) if (what := situation.preemption(one))
    ]
    given = min((what.notice_s for what in seen if what.mode != "OFF"), default=None)
    if given is None or stated == given:
        return
    said = f"GraceTime and KillWait together are {given} s; site profile: preemption_notice_s: {or_null(stated)}"
    yield doubtful(said, f"set preemption_notice_s: {given} in the site profile")


def requeue(situation: Situation) -> Iterator[Result]:
    """Slurm queues a task again after a preemption or the loss of a node."""
    if (
        (found := situation.known_cluster) is None
        or (settings := found[1].settings) is None
        or settings.requeues is None
    ):
        return
    said = f"scontrol show config: JobRequeue = {int(settings.requeues)}"
    if found[0].requeue is Requeue.FORBIDDEN:
        remedy = "type the same `mrt-hpc submit` after a preemption or a lost node: nothing that is finished is lost"
        yield doubtful("site profile: requeue: forbidden: no task is queued again", remedy)
    elif settings.requeues:
        yield ok(f"{said}; whether a plugin of the site forbids it, a job tells: --on-node")
    else:
        yield ok(f"{said}: jobs are queued again only if they ask for it, and every job of a run asks (--requeue)")


def accounting(situation: Situation) -> Iterator[Result]:
    """Whether a database remembers ended jobs."""
    if (found := situation.known_cluster) is None or (settings := found[1].settings) is None:
        return
    said = f"scontrol show config: AccountingStorageType = {settings.accounting}"
    if settings.has_accounting:
        yield ok(said)
    else:
        yield ok(f"{said}: there is no sacct; the state of ended tasks comes from the run directory")
