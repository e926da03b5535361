"""Checks of the cluster and of the site profile, by what Slurm's commands say."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from math import inf

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.cluster_limits import beyond
from mrt_hpc.backends.slurm.site import GpuRequest, Requeue, SlurmSite, unknown_options
from mrt_hpc.cluster.doctor.checks import ADMINISTRATORS, CheckResult, doubtful, fails, not_checked, ok, or_null
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.cluster.job_rules import Preemption, refusals, submit_limits, time_limits
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.hours import late_checkpoint, throughput
from mrt_hpc.plan.jobs import Job

OLDEST_VERSION = (20, 11)
"""The oldest version of Slurm that the package supports."""


def on_cluster(
    look: Callable[[Situation, SlurmSite, survey.Survey], Iterator[CheckResult]],
) -> Callable[[Situation], Iterator[CheckResult]]:
    """A check that applies to the profile of a Slurm cluster that was surveyed, and gives no result elsewhere."""

    @wraps(look)
    def looked(situation: Situation) -> Iterator[CheckResult]:
        if situation.slurm is not None and situation.cluster is not None:
            yield from look(situation, situation.slurm, situation.cluster)

    return looked


@on_cluster
def slurm_commands(_: Situation, __: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """Slurm's commands are here, they answer, and Slurm is new enough."""
    oldest = ".".join(map(str, OLDEST_VERSION))
    if cluster.version_numbers is None:
        yield fails(
            cluster.why_not(survey.VERSION) or f"sinfo --version: {cluster.version}",
            "type the command on the cluster's login node; there `sinfo --version` has to print a version",
        )
    elif cluster.version_numbers < OLDEST_VERSION:
        yield fails(f"sinfo --version: {cluster.version}; a run needs {oldest} or newer", ADMINISTRATORS)
    else:
        yield ok(f"sinfo --version: {cluster.version}")
    if cluster.version_numbers is not None and (why := cluster.why_not(survey.CONFIG)):
        yield fails(why, "look at `scontrol ping`; the controller has to answer before jobs can be submitted")


def options_of_sbatch(situation: Situation) -> Iterator[CheckResult]:
    """sbatch knows the further options of the profile."""
    if situation.slurm is not None and situation.slurm.sbatch:
        for sentence in unknown_options(situation.slurm):
            yield doubtful(sentence, "correct `sbatch` in the site profile")


@on_cluster
def partitions(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The partitions of the profile exist, are up, and admit this user."""
    if cluster.partitions is None:
        yield not_checked(cluster.why_not(survey.PARTITIONS) or "scontrol show partition gave no answer")
        return
    for kind in situation.kinds:
        for name in situation.named_partitions(kind):
            yield replace(_partition(site, cluster, kind, name), check=f"of {kind} jobs")


def _partition(site: SlurmSite, cluster: survey.Survey, kind: str, name: str | None) -> CheckResult:
    partition = cluster.partition(name)
    there = ", ".join(cluster.partitions or {})
    field = f"partitions.{kind} in the site profile"
    if partition is None and name is None:
        return fails("scontrol show partition: no partition is the default one", f"set {field} to one of {there}")
    if partition is None:
        guess = nearest(name or "", cluster.partitions or {})
        hint = f" (the nearest is {guess})" if guess else ""
        return fails(f"scontrol show partition: there is no partition {name}{hint}", f"set {field} to one of {there}")
    said = f"scontrol show partition {partition.name}"
    accounts = [site.account] if site.account else [a for a in [cluster.default_account] if a]
    level = cluster.qos_of(site.account, site.qos)
    qos = site.qos or (level.name if level else None)
    if refused := refusals(partition, cluster.user, accounts, qos):
        return fails(
            f"{said}: {'; '.join(refused)}",
            f"set {field} to a partition that admits you, or account or qos to one that it admits; or "
            f"{ADMINISTRATORS} for access",
        )
    if partition.state != "UP":
        return doubtful(
            f"{said}: State={partition.state}; it starts no jobs now",
            f"wait until it is up (`sinfo -p {shlex.quote(partition.name)}`), or set {field} to another",
        )
    return ok(f"{said}: State=UP, and it admits you")


@on_cluster
def account(_: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The account of the profile is one of the user's."""
    command = survey.associations_command(cluster.user.name, cluster.cluster_name)
    said = shlex.join(command[:1] + command[3:6])
    if cluster.associations is None:
        reason = cluster.why_not(command) or f"{said} gave no answer"
        if cluster.settings is not None and not cluster.settings.has_accounting:
            yield ok(
                f"{reason}: jobs need no account{f', and {site.account} is not looked at' if site.account else ''}"
            )
        else:
            yield not_checked(reason)
        return
    names = sorted({association.account for association in cluster.associations})
    enforced = cluster.settings is not None and "associations" in cluster.settings.enforced
    if not names:
        result = fails if enforced else doubtful
        yield result(f"{said}: user {cluster.user.name} has no account", f"{ADMINISTRATORS} for an account")
    elif site.account is None and cluster.default_account is None:
        yield doubtful(f"{said}: {', '.join(names)}, and no default", f"set account: {names[0]} in the site profile")
    elif site.account is not None and site.account not in names:
        yield fails(
            f"{said}: {', '.join(names)}; site profile: account: {site.account}",
            f"set account to one of {', '.join(names)} in the site profile, or {ADMINISTRATORS} for access",
        )
    else:
        yield ok(f"{said}: {site.account or cluster.default_account} is yours")


@on_cluster
def quality_of_service(_: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The QOS of the profile exists, and the account has it."""
    if site.qos is None:
        return
    if cluster.qos is None or cluster.associations is None:
        yield not_checked(cluster.why_not(survey.QOS) or "sacctmgr show qos gave no answer")
        return
    theirs = sorted({name for association in cluster.associations_of(site.account) for name in association.qos})
    choice = f"set qos to one of {', '.join(theirs) or 'those of your account'}, or to null, in the site profile"
    if site.qos not in cluster.qos:
        yield fails(f"sacctmgr show qos: there is no QOS {site.qos}", choice)
    elif site.qos not in theirs:
        yield fails(
            f"sacctmgr show associations: your account has {', '.join(theirs) or 'none'}, not {site.qos}", choice
        )
    else:
        yield ok(f"sacctmgr show associations: your account has QOS {site.qos}")


@on_cluster
def gpus(situation: Situation, site: SlurmSite, _: survey.Survey) -> Iterator[CheckResult]:
    """The partition of GPU jobs has GPUs of the type that the profile asks for."""
    if "gpu" not in situation.kinds or site.gpu_request is GpuRequest.NONE:
        return
    for partition in situation.partitions("gpu"):
        kinds = [kind for kind in partition.gpu_types if kind]
        about = f"of partition {partition.name}"
        parts = f"; parts of GPUs (MIG): {', '.join(partition.slice_types)}" if partition.slice_types else ""
        said = f"sinfo: GRES of partition {partition.name}: {', '.join(kinds) or 'no type'}{parts}"
        if not partition.nodes:
            yield not_checked("sinfo said nothing of its nodes", about=about)
        elif not partition.gpu_nodes:
            remedy = (
                "set partitions.gpu in the site profile to a partition with GPUs (`sinfo -o '%R %G'`), or gpu_request"
            )
            yield fails(f"sinfo: no node of partition {partition.name} has GRES gpu{parts}", remedy, about=about)
        elif site.gpu_type is not None and site.gpu_type not in kinds:
            remedy = f"set gpu_type to {' or '.join(kinds) or 'null'} in the site profile"
            yield fails(f"{said}; site profile: gpu_type: {site.gpu_type}", remedy, about=about)
        elif site.gpu_type is None and partition.slice_types:
            remedy = f"set gpu_type to {' or '.join(kinds) or 'that of the whole GPUs'} in the site profile"
            yield fails(f"{said}; a task that gets such a part fails", remedy, about=about)
        elif site.gpu_type is None and len(kinds) > 1:
            remedy = f"set gpu_type to one of {', '.join(kinds)} in the site profile, so that all tasks are alike"
            yield doubtful(f"{said}; site profile: gpu_type: null", remedy, about=about)
        else:
            yield ok(f"{said}; site profile: gpu_type: {or_null(site.gpu_type)}", about=about)


# -- limit checks ------------------------------------------------------------------------------------------------------
# Checks of the plan and of the site profile against the limits of the cluster.


MIB_PER_GIB = 1024


def plan_fits(situation: Situation) -> Iterator[CheckResult]:
    """The plan of the recipe fits the limits of the profile and of the cluster."""
    if situation.recipe is None:
        return
    try:
        plan = compile_plan(situation.recipe, situation.site)
    except UserError as error:
        yield fails(f"mrt-hpc plan: {error.evidence}", error.advice or "change the recipe")
        return
    site, cluster = situation.slurm, situation.cluster
    refused = []
    if site is not None and cluster is not None:
        refused = beyond(plan, site, cluster.settings or survey.ClusterSettings(), cluster.partitions or {})
    for sentence in refused:
        said, _, change = sentence.partition(": set ")
        yield fails(said, f"set {change}, in the site profile or the recipe; `mrt-hpc plan` then says what fits")
    if not refused:
        yield ok(f"mrt-hpc plan: {len(plan.jobs)} jobs with {plan.tasks} array tasks are within the limits")


@on_cluster
def array_size(_: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """``max_array_size`` of the profile is not above MaxArraySize."""
    size, stated = None if cluster.settings is None else cluster.settings.max_array_size, site.max_array_size
    if size is None:
        return
    said = f"scontrol show config: MaxArraySize = {size}; site profile: max_array_size: {stated}"
    if size < 1:
        yield fails(f"{said}; this cluster takes no arrays", ADMINISTRATORS)
    elif stated > size:
        yield fails(f"{said}; larger arrays are refused", f"set max_array_size: {size} in the site profile")
    else:
        yield ok(said)


@on_cluster
def queued_jobs(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """``max_submit_jobs`` of the profile is not above the limits of association, QOS and cluster."""
    chosen = [partition for kind in situation.kinds for partition in situation.partitions(kind)]
    limits = submit_limits(cluster, chosen, site.account, site.qos)
    if not limits:
        return
    most, source = min(limits)
    said = f"{source} = {most}; site profile: max_submit_jobs: {or_null(site.max_submit_jobs)}"
    tasks = situation.plan.tasks if situation.plan else None
    remedy = f"set max_submit_jobs: {most} in the site profile; `mrt-hpc plan` then names a schedule that fits"
    is_stated = site.max_submit_jobs is not None and site.max_submit_jobs <= most
    if tasks is not None and tasks > most and not is_stated:  # else `plan_fits` names a schedule that fits
        yield fails(f"the plan has {tasks} array tasks; {said}", remedy)
    elif site.max_submit_jobs is not None and site.max_submit_jobs > most:
        yield fails(f"{said}; plans between the two are refused", remedy)
    elif site.max_submit_jobs is None and tasks is None:
        yield doubtful(said, remedy)
    else:
        yield ok(said)


@on_cluster
def time_limit(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The time limits of the jobs are within those of QOS and association; `plan_fits` looks at partitions."""
    for kind in situation.kinds:
        longest = sorted(situation.partitions(kind), key=lambda partition: -(partition.max_minutes or inf))[:1]
        limits = time_limits(cluster, longest, site.account, site.qos)
        if not limits:
            continue
        most, source = min(limits)
        asked = max((job.resources.time_limit_minutes for job in situation.jobs(kind)), default=site.max_time_minutes)
        said = f"{source} = {most} minutes"
        remedy = f"set max_time_minutes: {most} in the site profile, and resources.*.time_limit_minutes of the recipe"
        if asked is not None and asked > most:
            whose = "a job of the recipe asks for" if situation.plan else "site profile: max_time_minutes:"
            yield fails(f"{said}; {whose} {asked}", f"{remedy} to that or less", about=f"of {kind} jobs")
        elif asked is None:
            yield doubtful(f"{said}; site profile: max_time_minutes: null", remedy, about=f"of {kind} jobs")
        else:
            yield ok(f"{said}; at most {asked} asked for", about=f"of {kind} jobs")


@on_cluster
def node_size(situation: Situation, site: SlurmSite, _: survey.Survey) -> Iterator[CheckResult]:
    """Some node of the partition is as large as each job asks for."""
    for kind in situation.kinds:
        nodes = [node for partition in situation.partitions(kind) for node in partition.nodes]
        if not nodes:
            continue
        too_large = [job for job in situation.jobs(kind) if not any(_holds(node, job, site) for node in nodes)]
        names = ",".join(partition.name for partition in situation.partitions(kind))
        for job in list({job.role: job for job in too_large}.values()):
            yield fails(
                f"sinfo: no node of {names} has {_asked(job, site)}, which job {job.name} asks for on each node",
                f"lower resources.{job.role.section} of the recipe (gpus, cpus, memory_gib, or fewer ranks a node), or "
                f"choose another partition as partitions.{kind}",
                about=f"for {job.role}",
            )
        if situation.jobs(kind) and not too_large:
            yield ok(f"sinfo: nodes of {names} hold every job of the recipe", about=f"for {kind} jobs")


def _holds(node: survey.NodeKind, job: Job, site: SlurmSite) -> bool:
    wanted = job.resources
    own = {site.gpu_type} if site.gpu_type else set(node.gpus)
    available = sum(count for kind, count in node.gpus.items() if kind in own)
    return (
        (site.gpu_request is GpuRequest.NONE or available >= wanted.gpus_per_rank * wanted.ranks_per_node)
        and node.cpus >= wanted.cpus_per_rank * wanted.ranks_per_node
        and (not site.memory_request or node.memory_mib >= wanted.memory_gib_per_node * MIB_PER_GIB)
    )


def _asked(job: Job, site: SlurmSite) -> str:
    wanted = job.resources
    gpus = wanted.gpus_per_rank * wanted.ranks_per_node
    kind = f" of type {site.gpu_type}" if site.gpu_type else ""
    return (
        f"{f'{gpus} GPU(s){kind}, ' if gpus else ''}{wanted.cpus_per_rank * wanted.ranks_per_node} cores and "
        f"{wanted.memory_gib_per_node:g} GiB"
    )


# -- preemption checks -------------------------------------------------------------------------------------------------
# Checks of what a preemption, the loss of a node and the end of a job do to a run.


@on_cluster
def preempted_jobs(situation: Situation, _: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """What a preemption does to the run."""
    seen = {partition.name: partition for kind in situation.kinds for partition in situation.partitions(kind)}
    for partition in seen.values():
        if (what := situation.preemption(partition)) is not None:
            yield replace(_preempted(situation, what), check=f"in partition {partition.name}")
    if seen and cluster.settings is None:
        yield not_checked(cluster.why_not(survey.CONFIG) or "scontrol show config gave no answer")


def _preempted(situation: Situation, what: Preemption) -> CheckResult:
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
    notice = f"{said}: a preempted task gets SIGTERM, has {what.notice_s} s, and is queued again{_before(situation)}"
    if (late := _late(situation, what)) is not None:
        return doubtful(f"{notice}; {late}", "--set training.checkpoint_every=1")
    return ok(notice)


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


@on_cluster
def notice_of_profile(situation: Situation, site: SlurmSite, _: survey.Survey) -> Iterator[CheckResult]:
    """``preemption_notice_s`` of the profile is what the cluster gives."""
    seen = [
        what
        for kind in situation.kinds
        for partition in situation.partitions(kind)
        if (what := situation.preemption(partition))
    ]
    given = min((what.notice_s for what in seen if what.mode != "OFF"), default=None)
    if given is None or site.preemption_notice_s == given:
        return
    stated = or_null(site.preemption_notice_s)
    said = f"GraceTime and KillWait together are {given} s; site profile: preemption_notice_s: {stated}"
    yield doubtful(said, f"set preemption_notice_s: {given} in the site profile")


@on_cluster
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


@on_cluster
def accounting(_: Situation, __: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """Whether a database remembers ended jobs."""
    if (settings := cluster.settings) is None:
        return
    said = f"scontrol show config: AccountingStorageType = {settings.accounting}"
    if settings.has_accounting:
        yield ok(said)
    else:
        yield ok(f"{said}: there is no sacct; the state of ended tasks comes from the run directory")
