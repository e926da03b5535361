"""The CPU and GPU slots of this machine, which local tasks take and return."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from subprocess import TimeoutExpired

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.plan.jobs import Job, JobResources, Plan, Role
from mrt_hpc.run.process import run_program

MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Memory limits of a container in the two versions of control groups, bytes; "max" is no limit."""
_GPU = re.compile(r"\d+|(?:GPU|MIG)-\S+")
"""A GPU in CUDA_VISIBLE_DEVICES, or a part of one, which a task refuses."""
LISTING_S = 60.0


@dataclass
class Slots:
    """The free slots. GPUs are named, since each task must get its own."""

    cpus: int
    gpus: list[str] = field(default_factory=list)

    def fit(self, resources: JobResources) -> bool:
        return resources.cpus <= self.cpus and resources.gpus <= len(self.gpus)

    def take(self, resources: JobResources) -> list[str]:
        self.cpus -= resources.cpus
        taken, self.gpus = self.gpus[: resources.gpus], self.gpus[resources.gpus :]
        return taken

    def give_back(self, resources: JobResources, gpus: list[str]) -> None:
        self.cpus += resources.cpus
        self.gpus += gpus


def machine_slots(plan: Plan, site: LocalSite) -> Slots:
    """The slots of this machine for a plan; refuses a segment that could never run here.

    Where the profile sets no number, CPU slots are the machine's cores, or the largest segment's need where that is
    more: its roles mostly take turns, so sharing cores costs less than not running.
    """
    gpus = visible_gpus() if site.gpus is None else [str(n) for n in range(site.gpus)]
    (need_cpus, need_gpus), fewer_cpus = largest_need(plan), Advice("lower resources.*.cpus")
    cpus = site.cpus if site.cpus is not None else max(os.cpu_count() or 1, need_cpus)
    for what, need, have in (("GPUs", need_gpus, len(gpus)), ("CPU slots", need_cpus, cpus)):
        if need > have:
            raise UserError(
                f"a segment needs {need} {what} at a time, and this machine has {have}",
                value=f"{need} {what}",
                where="resources",
                expected=f"at most {have}",
                advice=Advice("{less}, or add --site SITE", less=_less(plan, have) if what == "GPUs" else fewer_cpus),
            )
    return Slots(cpus, gpus)


def _less(plan: Plan, have: int) -> Advice:
    """The options with which a segment fits these GPUs (one job on the trainer's GPUs), or else the fields to lower."""
    trainer = next((job for job in plan.jobs if job.role is Role.TRAINER), None)
    if trainer is None or max(job.resources.gpus for job in plan.jobs) > have:
        return Advice("lower resources.*.gpus")
    gpus = f"resources.inference.gpus={trainer.resources.gpus}"
    return Advice("--set schedule.coupling=colocated --set resources.inference.tasks=1 --set {gpus}", gpus=gpus)


def largest_need(plan: Plan) -> tuple[int, int]:
    """The need of one job's task, or of the inference tasks beside their segment's trainer."""
    together = [[(job.resources, n) for job, n in tasks] for tasks in tasks_together(plan)]
    cpus, gpus = (
        [sum(n * getattr(need, what) for need, n in tasks) for tasks in together] for what in ("cpus", "gpus")
    )
    return max(cpus), max(gpus)


def tasks_together(plan: Plan) -> Iterator[list[tuple[Job, int]]]:
    """Jobs and numbers of tasks that need their places together: one task of each job, and each trainer with its
    inference tasks.
    """
    inference: dict[int | None, list[Job]] = {}
    for job in plan.jobs:
        yield [(job, 1)]
        if job.role is Role.INFERENCE:
            inference.setdefault(job.segment, []).append(job)
    for trainer in (job for job in plan.jobs if job.role is Role.TRAINER):
        beside = [(job, job.tasks) for job in inference.get(trainer.segment, []) if job.after == trainer.after]
        yield [(trainer, 1), *beside]


def machine_remarks(plan: Plan, site: LocalSite) -> list[str]:
    """A sentence for each request beyond this machine. None is refused: tasks can share cores, and may need less memory
    than asked for.
    """
    cores, memory = len(os.sched_getaffinity(0)), machine_memory_gib()
    remarks = []
    if site.cpus is not None and site.cpus > cores:
        remarks.append(f"site {site.name} has cpus: {site.cpus}, and this machine has {cores}: tasks will share cores")
    widest = max(plan.jobs, key=lambda job: job.resources.cpus)
    if (asked := widest.resources.cpus) > cores:
        remarks.append(
            f"a task of {widest.name} asks for {asked} cores, and this machine has {cores}: it will take longer; "
            "lower resources.*.cpus, or add --site SITE"
        )
    largest = max(tasks_together(plan), key=_memory_gib)
    if _memory_gib(largest) > memory:
        names = " and ".join(job.name for job, _ in largest)
        remarks.append(
            f"the tasks of {names} that run at a time ask for {_memory_gib(largest):,.0f} GiB of memory, and this "
            f"machine has {memory:,.0f}: they may be killed; lower resources.*.memory_gib, or add --site SITE"
        )
    return remarks


def _memory_gib(tasks: list[tuple[Job, int]]) -> float:
    return sum(n * job.resources.memory_gib_per_node * job.resources.nodes for job, n in tasks)


def machine_memory_gib() -> float:
    """The memory of this machine, or of this process's control group, where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = (path.read_text().strip() for path in MEMORY_LIMITS if path.is_file())
    return min([total, *(int(limit) for limit in limits if limit.isdecimal())]) / 2**30


def visible_gpus() -> list[str]:
    """GPUs by the names that CUDA_VISIBLE_DEVICES takes; none without a driver."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        words = map(str.strip, os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        return list(dict.fromkeys(takewhile(_GPU.fullmatch, words)))  # CUDA ends the list there, too
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listing = run_program(["nvidia-smi", "--list-gpus"], LISTING_S)
    except (OSError, TimeoutExpired):
        return []
    # none where a GPU is lost, or the driver has failed; the lines of their parts (MIG) are indented
    return [] if listing.returncode else re.findall(r"^GPU (\d+):", listing.stdout, re.MULTILINE)
