"""Checks of what a preemption, the loss of a node and the end of a job do to a run."""

from collections.abc import Iterator
from dataclasses import replace

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.site import Requeue, SlurmSite
from mrt_hpc.cluster.doctor.checks import CheckResult, doubtful, not_checked, ok, or_null
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.cluster.doctor.slurm_checks import require_survey
from mrt_hpc.cluster.job_rules import Preemption
from mrt_hpc.plan.hours import late_checkpoint, throughput


@require_survey
def preempted_jobs(situation: Situation, _: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """What a preemption does to the run."""
    seen = {partition.name: (kind, partition) for kind in situation.kinds for partition in situation.partitions(kind)}
    for kind, partition in seen.values():
        if (what := situation.preemption(kind, partition)) is not None:
            yield replace(_preemption_result(situation, what), check=f"in partition {partition.name}")
    if seen and cluster.settings is None:
        yield not_checked(cluster.why_not(survey.CONFIG) or "scontrol show config gave no answer")


def _preemption_result(situation: Situation, what: Preemption) -> CheckResult:
    said = f"{what.source} (scontrol show config and partition)"
    if what.mode == "OFF":
        return ok(f"{said}: jobs are not preempted")
    if what.mode == "CANCEL":
        return doubtful(
            f"{said}: a preempted task gets SIGTERM, is killed {what.notice_s} s later and is not queued again",
            "type the same `mrt-hpc submit` after a preemption: nothing that is finished is lost; or choose a "
            "partition or QOS whose PreemptMode is REQUEUE",
        )
    if what.mode != "REQUEUE":
        return doubtful(
            f"{said}: a preempted task is suspended; its leases expire and other tasks take over its work",
            "choose a partition or QOS whose PreemptMode is REQUEUE or OFF",
        )
    notice = f"{said}: a preempted task gets SIGTERM, has {what.notice_s} s, and is queued again{_exemption(situation)}"
    if (late := _late(situation, what)) is not None:
        return doubtful(f"{notice}; {late}", "--set training.checkpoint_every=1")
    return ok(notice)


def _exemption(situation: Situation) -> str:
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


@require_survey
def notice_of_profile(situation: Situation, site: SlurmSite, _: survey.Survey) -> Iterator[CheckResult]:
    """``preemption_notice_s`` is what the cluster gives."""
    seen = [
        what
        for kind in situation.kinds
        for partition in situation.partitions(kind)
        if (what := situation.preemption(kind, partition))
    ]
    given = min((what.notice_s for what in seen if what.mode != "OFF"), default=None)
    if given is None or site.preemption_notice_s == given:
        return
    stated = or_null(site.preemption_notice_s)
    said = f"GraceTime and KillWait together are {given} s; site profile: preemption_notice_s: {stated}"
    yield doubtful(said, f"set preemption_notice_s: {given} in the site profile")


@require_survey
def requeue(_: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """Slurm queues a task again after a preemption or the loss of a node."""
    if (settings := cluster.settings) is None or settings.requeues is None:
        return
    said = f"scontrol show config: JobRequeue = {int(settings.requeues)}"
    if site.requeue is Requeue.FORBIDDEN:
        remedy = "type the same `mrt-hpc submit` after a preemption or a lost node: nothing that is finished is lost"
        yield doubtful("site profile: requeue: forbidden: no task is queued again", remedy)
    elif settings.requeues:
        yield ok(f"{said}; whether a plugin of the site forbids it, a job shows: --on-node")
    else:
        yield ok(f"{said}: jobs are queued again only if they ask for it, and every job of a run asks (--requeue)")


@require_survey
def accounting(_: Situation, __: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """A database remembers ended jobs."""
    if (settings := cluster.settings) is None:
        return
    said = f"scontrol show config: AccountingStorageType = {settings.accounting}"
    if settings.has_accounting:
        yield ok(said)
    else:
        yield ok(f"{said}: there is no sacct; the state of ended tasks comes from the run directory")
