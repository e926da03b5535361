"""Checks of the plan and of the site profile against the limits of the cluster."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.slurm.cluster_limits import beyond
from mrt_hpc.launch.slurm.doctor.findings import ADMINISTRATORS, Result, doubtful, fails, ok, or_null
from mrt_hpc.launch.slurm.site import GpuRequest
from mrt_hpc.launch.slurm.user_limits import submit_limits, time_limits
from mrt_hpc.plan.compile import compile_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.launch.slurm.cluster_facts import NodeKind
    from mrt_hpc.launch.slurm.doctor.situation import Situation
    from mrt_hpc.launch.slurm.site import SlurmSite
    from mrt_hpc.plan.jobs import Job

MIB_PER_GIB = 1024


def plan_fits(situation: Situation) -> Iterator[Result]:
    """The plan of the recipe fits the limits of the profile and of the cluster."""
    if situation.recipe is None:
        return
    try:
        plan = compile_plan(situation.recipe, situation.site)
    except UserError as error:
        yield fails(f"mrt-hpc plan: {error.evidence}", error.advice or "change the recipe")
        return
    site, cluster = situation.slurm, situation.cluster
    refused = [] if site is None or cluster is None else beyond(plan, site, cluster.limits)
    for sentence in refused:
        said, _, change = sentence.partition(": set ")
        yield fails(said, f"set {change}, in the site profile or the recipe; `mrt-hpc plan` then says what fits")
    if not refused:
        yield ok(f"mrt-hpc plan: {len(plan.jobs)} jobs with {plan.tasks} array tasks are within the limits")


def array_size(situation: Situation) -> Iterator[Result]:
    """``max_array_size`` of the profile is not above MaxArraySize."""
    found = situation.known_cluster
    size = None if found is None or found[1].settings is None else found[1].settings.max_array_size
    if found is None or size is None:
        return
    stated = found[0].max_array_size
    said = f"scontrol show config: MaxArraySize = {size}; site profile: max_array_size: {stated}"
    if size < 1:
        yield fails(f"{said}; this cluster takes no arrays", ADMINISTRATORS)
    elif stated > size:
        yield fails(f"{said}; larger arrays are refused", f"set max_array_size: {size} in the site profile")
    else:
        yield ok(said)


def queued_jobs(situation: Situation) -> Iterator[Result]:
    """``max_submit_jobs`` of the profile is not above the limits of association, QOS and cluster."""
    if (found := situation.known_cluster) is None:
        return
    site, cluster = found
    chosen = [one for kind in situation.kinds for one in situation.partitions(kind)]
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


def time_limit(situation: Situation) -> Iterator[Result]:
    """The time limits of the jobs are within those of QOS and association; `plan_fits` looks at partitions."""
    if (found := situation.known_cluster) is None:
        return
    site, cluster = found
    for kind in situation.kinds:
        longest = sorted(situation.partitions(kind), key=lambda one: -(one.max_minutes or inf))[:1]
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


def node_size(situation: Situation) -> Iterator[Result]:
    """Some node of the partition is as large as each job asks for."""
    if (found := situation.known_cluster) is None:
        return
    for kind in situation.kinds:
        nodes = [node for partition in situation.partitions(kind) for node in partition.nodes]
        if not nodes:
            continue
        too_large = [job for job in situation.jobs(kind) if not any(_holds(node, job, found[0]) for node in nodes)]
        names = ",".join(one.name for one in situation.partitions(kind))
        for job in list({job.role: job for job in too_large}.values()):
            yield fails(
                f"sinfo: no node of {names} has {_asked(job, found[0])}, which job {job.name} asks for on each node",
                f"lower resources.{job.role.section} of the recipe (gpus, cpus, memory_gib, or fewer ranks a node), or "
                f"choose another partition as partitions.{kind}",
                about=f"for {job.role}",
            )
        if situation.jobs(kind) and not too_large:
            yield ok(f"sinfo: nodes of {names} hold every job of the recipe", about=f"for {kind} jobs")


def _holds(node: NodeKind, job: Job, site: SlurmSite) -> bool:
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
