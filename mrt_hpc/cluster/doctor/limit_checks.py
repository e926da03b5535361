"""Checks of the plan and of the site profile against the limits of the cluster."""

from collections.abc import Iterator
from math import inf

from mrt_hpc.backends.slurm import survey
from mrt_hpc.backends.slurm.cluster_limits import limit_excesses
from mrt_hpc.backends.slurm.parameters import mebibytes
from mrt_hpc.backends.slurm.site import GpuRequest, MemoryRequest, SlurmSite
from mrt_hpc.cluster.doctor.checks import ADMINISTRATORS, CheckResult, doubtful, fails, ok, or_null
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.cluster.doctor.slurm_checks import different_options, require_survey
from mrt_hpc.cluster.job_rules import levels_of, submit_limits, time_limits
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Job, Role, few_names


def plan_fits(situation: Situation) -> Iterator[CheckResult]:
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
        refused = limit_excesses(plan, site, cluster.settings or survey.ClusterSettings(), cluster.partitions or {})
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
    elif stated > size:
        yield fails(f"{said}; larger arrays are refused", f"set max_array_size: {size} in the site profile")
    else:
        yield ok(said)


@require_survey
def queued_jobs(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """``max_submit_jobs`` is not above the limits of association, QOS and cluster."""
    chosen = [partition for kind in situation.kinds for partition in situation.partitions(kind)]
    levels = different_options(site, situation.kinds, "account", "qos")
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
    elif site.max_submit_jobs is None and tasks is None:
        yield doubtful(said, remedy)
    else:
        yield ok(said)


@require_survey
def time_limit(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """The jobs' time limits are within those of QOS and association; `plan_fits` looks at partitions."""
    for kind in situation.kinds:
        longest = sorted(situation.partitions(kind), key=lambda partition: -(partition.max_minutes or inf))[:1]
        limits = time_limits(cluster, longest, site.text_of("account", kind), site.text_of("qos", kind))
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


@require_survey
def jobs_at_once(situation: Situation, site: SlurmSite, cluster: survey.Survey) -> Iterator[CheckResult]:
    """A user may run at once the jobs that need each other (MaxJobsPU and MaxTRESPU of each QOS)."""
    together = _sampling_and_training(situation)
    for kind in situation.kinds:
        own, partitions = situation.jobs(kind), situation.partitions(kind)
        levels = levels_of(cluster, partitions, site.text_of("account", kind), site.text_of("qos", kind))
        limits = [(level.name, what, most) for level in levels for what, most in level.most.items()]
        for name, what, most in limits:
            said = f"sacctmgr show qos: the running jobs of a user have {what}={most} together in QOS {name}"
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
    jobs = [job for job in situation.plan.jobs if job.segment == 0] if situation.plan else []
    together = [job for job in jobs if job.role in (Role.INFERENCE, Role.TRAINER)]
    names = {job.name for job in together}
    waits = any(wait.job in names for job in together for wait in job.after)
    return together if {job.role for job in together} == {Role.INFERENCE, Role.TRAINER} and not waits else []


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
    wanted = job.resources
    kind = f" of type {site.gpu_type}" if site.gpu_type else ""
    return (
        f"{f'{wanted.gpus_per_node} GPU(s){kind}, ' if wanted.gpus else ''}{wanted.cpus_per_node} cores and "
        f"{wanted.memory_gib_per_node:g} GiB"
    )
