"""Checks of the cluster and of the site profile, by what Slurm's commands say."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from math import inf

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.cluster_limits import limit_excesses
from mrt_hpc.backends.slurm.parameters import mebibytes
from mrt_hpc.backends.slurm.site import GpuRequest, MemoryRequest, Requeue, SlurmSite
from mrt_hpc.cluster.doctor.checks import ADMINISTRATORS, CheckResult, doubtful, fails, not_checked, ok, or_null
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.cluster.job_rules import Preemption, levels_of, refusals, submit_limits, time_limits
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.hours import late_checkpoint, throughput
from mrt_hpc.plan.jobs import Job, JobKind, Role, few_names

OLDEST_VERSION = (20, 11)


def require_survey(
    look: Callable[[Situation, SlurmSite, survey.Survey], Iterator[CheckResult]],
) -> Callable[[Situation], Iterator[CheckResult]]:
    """A check of a surveyed Slurm cluster's profile; gives no result elsewhere."""

    @wraps(look)
    def look_if_surveyed(situation: Situation) -> Iterator[CheckResult]:
        if situation.slurm is not None and situation.cluster is not None:
            yield from look(situation, situation.slurm, situation.cluster)

    return look_if_surveyed


@require_survey
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


@require_survey
def partitions(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The profile's partitions exist, are up, and admit this user."""
    if cluster.partitions is None:
        yield not_checked(cluster.why_not(survey.PARTITIONS) or "scontrol show partition gave no answer")
        return
    for kind in situation.kinds:
        for name in situation.named_partitions(kind):
            yield replace(_partition(site, cluster, kind, name), check=f"of {kind} jobs")


def _partition(site: SlurmSite, cluster: survey.Survey, kind: JobKind, name: str | None) -> CheckResult:
    partition, field = cluster.partition(name), f"partitions.{kind} in the site profile"
    if partition is None:
        guess = nearest(name or "", cluster.partitions or {})
        missing = f"there is no partition {name}{f' (the nearest is {guess})' if guess else ''}"
        what = "no partition is the default one" if name is None else missing
        return fails(f"scontrol show partition: {what}", f"set {field} to one of {', '.join(cluster.partitions or {})}")
    said = f"scontrol show partition {partition.name}"
    named, asked = site.text_of("account", kind), site.text_of("qos", kind)
    accounts = filter(None, [named or cluster.default_account])
    level = cluster.qos_of(named, asked)
    if refused := refusals(partition, cluster.user, accounts, asked or (level.name if level else None)):
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


def _different(site: SlurmSite, kinds: Sequence[JobKind], *options: str) -> dict[tuple[str | None, ...], str]:
    """Different values for kinds of jobs, and which jobs have them: empty text where they are all."""
    kinds_of: dict[tuple[str | None, ...], list[str]] = {}
    for kind in kinds:
        kinds_of.setdefault(tuple(site.text_of(option, kind) for option in options), []).append(kind)
    return {values: "" if len(kinds_of) == 1 else f"of {kinds[0]} jobs" for values, kinds in kinds_of.items()}


@require_survey
def account(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The accounts of the profile are the user's."""
    for (named,), about in _different(site, situation.kinds, "account").items():
        yield replace(_account(named, cluster), check=about)


def _account(named: str | None, cluster: survey.Survey) -> CheckResult:
    command, settings = survey.associations_command(cluster.user.name, cluster.cluster_name), cluster.settings
    said = shlex.join(command[:1] + command[3:6])
    if cluster.associations is None:
        reason = cluster.why_not(command) or f"{said} gave no answer"
        if settings is None or settings.has_accounting:
            return not_checked(reason)
        return ok(f"{reason}: jobs need no account{f', and {named} is not looked at' if named else ''}")
    names = sorted({association.account for association in cluster.associations})
    if not names:
        result = fails if settings is not None and "associations" in settings.enforced else doubtful
        return result(f"{said}: user {cluster.user.name} has no account", f"{ADMINISTRATORS} for an account")
    if named is None and cluster.default_account is None:
        return doubtful(f"{said}: {', '.join(names)}, and no default", f"set account: {names[0]} in the site profile")
    if named is not None and named not in names:
        choice = f"set account to one of {', '.join(names)} in the site profile, or {ADMINISTRATORS} for access"
        return fails(f"{said}: {', '.join(names)}; site profile: account: {named}", choice)
    return ok(f"{said}: {named or cluster.default_account} is yours")


@require_survey
def quality_of_service(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """Each QOS of the profile exists, and the account has it."""
    for (named, asked), about in _different(site, situation.kinds, "account", "qos").items():
        if asked is not None:
            yield replace(_qos(named, asked, cluster), check=about)


def _qos(named: str | None, asked: str, cluster: survey.Survey) -> CheckResult:
    if cluster.qos is None or cluster.associations is None:
        return not_checked(cluster.why_not(survey.QOS) or "sacctmgr show qos gave no answer")
    theirs = sorted({name for association in cluster.associations_of(named) for name in association.qos})
    choice = f"set qos to one of {', '.join(theirs) or 'those of your account'}, or to null, in the site profile"
    if asked not in cluster.qos:
        return fails(f"sacctmgr show qos: there is no QOS {asked}", choice)
    if asked not in theirs:
        return fails(f"sacctmgr show associations: your account has {', '.join(theirs) or 'none'}, not {asked}", choice)
    return ok(f"sacctmgr show associations: your account has QOS {asked}")


@require_survey
def gpus(situation: Situation, site: SlurmSite, _: survey.Survey) -> Iterator[CheckResult]:
    """The partition of GPU jobs has the profile's GPU type."""
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
            choice = "set partitions.gpu in the site profile to a partition with GPUs"
            remedy = f"{choice} (`sinfo -o '%R %G'`), or gpu_request"
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


@require_survey
def whole_nodes(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """``node_gpus`` is the number of GPUs that a job on a node is charged for."""
    for partition in situation.partitions("gpu") if "gpu" in situation.kinds else []:
        asked = "the site profile asks for whole nodes" if site.gets_whole_nodes else ""
        whole, counts = cluster.why_whole_nodes(partition) or asked, partition.gpu_counts
        seen = f"sinfo: nodes with {' or '.join(map(str, counts))} GPUs; site profile: node_gpus: {site.node_gpus}"
        if counts and whole and site.node_gpus not in counts:
            remedy = f"set node_gpus: {counts[0]} in the site profile, so that plan counts what is charged"
            yield doubtful(f"{whole}; {seen}", remedy)
        elif counts and not whole and site.node_gpus is not None:
            remedy = "set node_gpus: null in the site profile: jobs are charged for the GPUs that they ask for"
            yield doubtful(f"scontrol show partition {partition.name}: jobs share nodes; {seen}", remedy)


# -- limit checks ------------------------------------------------------------------------------------------------------
# Checks of the plan and of the site profile against the limits of the cluster.


def plan_fits(situation: Situation) -> Iterator[CheckResult]:
    if situation.recipe is None:
        return
    try:
        plan = compile_plan(situation.recipe, situation.site)
    except UserError as error:
        yield fails(f"mrt-hpc plan: {error.evidence}", error.advice or "change the recipe")
        return
    refused, cluster = [], situation.cluster
    if situation.slurm is not None and cluster is not None:
        settings, partitions = cluster.settings or survey.ClusterSettings(), cluster.partitions or {}
        refused = limit_excesses(plan, situation.slurm, settings, partitions)
    for sentence in refused:
        said, _, change = sentence.partition(": set ")
        yield fails(said, f"set {change}, in the site profile or the recipe; `mrt-hpc plan` then says what fits")
    if not refused:
        yield ok(f"mrt-hpc plan: {len(plan.jobs)} jobs with {plan.tasks} array tasks are within the limits")


@require_survey
def array_size(_: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """``max_array_size`` is not above MaxArraySize."""
    size, stated = None if cluster.settings is None else cluster.settings.max_array_size, site.max_array_size
    if size is None:
        return
    said = f"scontrol show config: MaxArraySize or max_array_tasks = {size}; site profile: max_array_size: {stated}"
    if size < 1:
        yield fails(f"{said}; this cluster takes no arrays", ADMINISTRATORS)
    else:
        beyond = fails(f"{said}; larger arrays are refused", f"set max_array_size: {size} in the site profile")
        yield beyond if stated > size else ok(said)


@require_survey
def queued_jobs(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """``max_submit_jobs`` is not above the limits of association, QOS and cluster."""
    chosen = [partition for kind in situation.kinds for partition in situation.partitions(kind)]
    levels = _different(site, situation.kinds, "account", "qos")
    limits = [limit for named, asked in levels for limit in submit_limits(cluster, chosen, named, asked)]
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
    else:
        yield doubtful(said, remedy) if site.max_submit_jobs is None and tasks is None else ok(said)


@require_survey
def time_limit(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The jobs' time limits are within those of QOS and association; `plan_fits` looks at partitions."""
    for kind in situation.kinds:
        longest = sorted(situation.partitions(kind), key=lambda partition: -(partition.max_minutes or inf))[:1]
        limits = time_limits(cluster, longest, site.text_of("account", kind), site.text_of("qos", kind))
        if not limits:
            continue
        (most, source), about = min(limits), f"of {kind} jobs"
        asked = max((job.resources.time_limit_minutes for job in situation.jobs(kind)), default=site.max_time_minutes)
        said = f"{source} = {most} minutes"
        remedy = f"set max_time_minutes: {most} in the site profile, and resources.*.time_limit_minutes of the recipe"
        if asked is not None and asked > most:
            whose = "a job of the recipe asks for" if situation.plan else "site profile: max_time_minutes:"
            yield fails(f"{said}; {whose} {asked}", f"{remedy} to that or less", about=about)
        elif asked is None:
            yield doubtful(f"{said}; site profile: max_time_minutes: null", remedy, about=about)
        else:
            yield ok(f"{said}; at most {asked} asked for", about=about)


@require_survey
def jobs_at_once(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """A user may run at once the jobs that need each other (MaxJobsPU and MaxTRESPU of each QOS)."""
    together = _sampling_and_training(situation)
    for kind in situation.kinds:
        own, partitions = situation.jobs(kind), situation.partitions(kind)
        levels = levels_of(cluster, partitions, site.text_of("account", kind), site.text_of("qos", kind))
        for level, what, most in ((one, *limit) for one in levels for limit in one.most.items()):
            said = f"sacctmgr show qos: the running jobs of a user have {what}={most} together in QOS {level.name}"
            if too_large := [job for job in own if _amount(job, what) > most]:
                remedy = f"lower resources.{too_large[0].role.section}, or choose another qos or partition"
                yield fails(f"{said}; {too_large[0].name} asks for {_amount(too_large[0], what)}", remedy)
            elif own and sum(_amount(job, what) for job in together) > most:
                yield doubtful(
                    f"{said}; {few_names([job.name for job in together])} need each other, and would take turns, each "
                    "holding its nodes for resilience.wait_limit_minutes without work",
                    f"{_one_job_options(situation)}: one job samples and trains",
                )


def _sampling_and_training(situation: Situation) -> list[Job]:
    """One task of each job of a segment that runs beside the other; empty where they are one job or take turns."""
    roles, jobs = {Role.INFERENCE, Role.TRAINER}, situation.plan.jobs if situation.plan else ()
    together = {job.name: job for job in jobs if job.segment == 0 and job.role in roles}
    waits = any(wait.job in together for job in together.values() for wait in job.after)
    return [*together.values()] if {job.role for job in together.values()} == roles and not waits else []


def _one_job_options(situation: Situation) -> str:
    """The options with which one task samples and trains on the trainer's GPUs."""
    assert situation.recipe is not None, "these jobs are of its plan"
    resources = situation.recipe.resources
    wanted = {"tasks": 1, "gpus": resources.trainer.ranks * resources.trainer.gpus}
    changes = {name: value for name, value in wanted.items() if getattr(resources.inference, name) != value}
    more = [f"--set resources.inference.{name}={value}" for name, value in changes.items()]
    return " ".join(["--set schedule.coupling=colocated", *more])


def _amount(job: Job, what: str) -> int:
    resources = job.resources
    return {"jobs": 1, "gres/gpu": resources.gpus, "cpu": resources.cpus, "node": resources.nodes}.get(what, 0)


@require_survey
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
                f"sinfo: no node of {names} has {_request_text(job, site)}, which job {job.name} asks for on each node",
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
        (site.gpu_request is GpuRequest.NONE or available >= wanted.gpus_per_node)
        and node.cpus >= wanted.cpus_per_node
        and (site.memory_request is MemoryRequest.NONE or node.memory_mib >= mebibytes(wanted))
    )


def _request_text(job: Job, site: SlurmSite) -> str:
    wanted, kind = job.resources, f" of type {site.gpu_type}" if site.gpu_type else ""
    gpus = f"{wanted.gpus_per_node} GPU(s){kind}, " if wanted.gpus else ""
    return f"{gpus}{wanted.cpus_per_node} cores and {wanted.memory_gib_per_node:g} GiB"


# -- preemption checks -------------------------------------------------------------------------------------------------
# Checks of what a preemption, the loss of a node and the end of a job do to a run.


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
    late = _late(situation, what)
    return ok(notice) if late is None else doubtful(f"{notice}; {late}", "--set training.checkpoint_every=1")


def _exemption(situation: Situation) -> str:
    if situation.cluster is None or (settings := situation.cluster.settings) is None:
        return ""
    exempt = f"; it is not preempted in its first {settings.exempt_s} s" if settings.exempt_s else ""
    return exempt + ("; the job's own --signal is sent as well" if settings.sends_user_signal else "")


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
    places = ((kind, partition) for kind in situation.kinds for partition in situation.partitions(kind))
    seen = [what for place in places if (what := situation.preemption(*place))]
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
    if (settings := cluster.settings) is not None:
        without = ": there is no sacct; the state of ended tasks comes from the run directory"
        said = f"scontrol show config: AccountingStorageType = {settings.accounting}"
        yield ok(f"{said}{'' if settings.has_accounting else without}")
