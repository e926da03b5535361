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
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import Job, JobResources, Plan, Role
from mrt_hpc.run.process import finished

MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""The files with the memory limit of a container, bytes, in the two versions of control groups; "max" is no limit."""
_GPU = re.compile(r"\d+|(?:GPU|MIG)-\S+")
"""What CUDA_VISIBLE_DEVICES calls a GPU, or a part of one, which a task refuses."""
LISTING_S = 60.0
"""The time-out of nvidia-smi, seconds."""


@dataclass
class Slots:
    """The free slots. CPU slots are counted; GPUs are named, since each task must get its own."""

    cpus: int
    gpus: list[str] = field(default_factory=list)

    def fit(self, resources: JobResources) -> bool:
        """Whether a task can start now."""
        return resources.cpus <= self.cpus and resources.gpus <= len(self.gpus)

    def take(self, resources: JobResources) -> list[str]:
        """Take a task's slots; returns the names of its GPUs."""
        self.cpus -= resources.cpus
        taken, self.gpus = self.gpus[: resources.gpus], self.gpus[resources.gpus :]
        return taken

    def give_back(self, resources: JobResources, gpus: list[str]) -> None:
        """Return a task's slots."""
        self.cpus += resources.cpus
        self.gpus += gpus


def machine_slots(plan: Plan, site: LocalSite) -> Slots:
    """The slots of this machine for a plan.

    Where the profile sets no number, CPU slots are the machine's cores, or what the largest segment needs where that is
    more: its roles mostly take turns, so sharing cores costs less than not running.

    Raises:
        UserError: a segment needs more than there is, so the plan could never run here.
    """
    gpus = visible_gpus() if site.gpus is None else [str(n) for n in range(site.gpus)]
    need_cpus, need_gpus = largest_need(plan)
    cpus = site.cpus if site.cpus is not None else max(os.cpu_count() or 1, need_cpus)
    for what, need, have in (("GPUs", need_gpus, len(gpus)), ("CPU slots", need_cpus, cpus)):
        if need > have:
            raise UserError(
                f"a segment needs {need} {what} at a time, and this machine has {have}",
                value=f"{need} {what}",
                where="resources",
                expected=f"at most {have}",
                advice=f"{_less(plan, have) if what == 'GPUs' else 'lower resources.*.cpus'}, or add --site SITE",
            )
    return Slots(cpus, gpus)


def _less(plan: Plan, have: int) -> str:
    """The options with which a segment needs no more GPUs than there are, or the fields to lower where none is known:
    one job on the GPUs of the trainer, where each task by itself would find enough.
    """
    trainer = next((job for job in plan.jobs if job.role is Role.TRAINER), None)
    if trainer is None or max(job.resources.gpus for job in plan.jobs) > have:
        return "lower resources.*.gpus"
    gpus = f"resources.inference.gpus={trainer.resources.gpus}"
    return f"--set schedule.coupling=colocated --set resources.inference.tasks=1 --set {gpus}"


def largest_need(plan: Plan) -> tuple[int, int]:
    """CPU slots and GPUs that must be free at a time: of one job's task, or of the inference tasks beside their
    segment's trainer.
    """
    needs = [
        (sum(n * job.resources.cpus for job, n in tasks), sum(n * job.resources.gpus for job, n in tasks))
        for tasks in at_a_time(plan)
    ]
    return max(c for c, _ in needs), max(g for _, g in needs)


def at_a_time(plan: Plan) -> Iterator[list[tuple[Job, int]]]:
    """Jobs with numbers of their tasks that need their places together: one task of each job, and each trainer with
    the inference tasks of its segment that run together with it.
    """
    inference: dict[int | None, list[Job]] = {}
    for job in plan.jobs:
        yield [(job, 1)]
        if job.role is Role.INFERENCE:
            inference.setdefault(job.segment, []).append(job)
    for trainer in (job for job in plan.jobs if job.role is Role.TRAINER):
        beside = [job for job in inference.get(trainer.segment, []) if runs_beside(job, trainer)]
        yield [(trainer, 1), *((job, job.tasks) for job in beside)]


def beyond_machine(plan: Plan, site: LocalSite) -> list[str]:
    """Return a sentence for each request for cores or memory that exceeds this machine. None of them is refused: tasks
    can share cores, and a task may need less memory than its recipe asks for.
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
    largest = max(at_a_time(plan), key=_memory_gib)
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
    """Memory of this machine, GiB, or of the control group that this process is in, where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = (path.read_text().strip() for path in MEMORY_LIMITS if path.is_file())
    return min([total, *(int(limit) for limit in limits if limit.isdecimal())]) / 2**30


def runs_beside(job: Job, trainer: Job) -> bool:
    """Whether an inference job belongs to the same segment as this trainer."""
    return job.role is Role.INFERENCE and job.segment == trainer.segment and job.after == trainer.after


def visible_gpus() -> list[str]:
    """The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES takes; none without a driver."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        words = map(str.strip, os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        return list(dict.fromkeys(takewhile(_GPU.fullmatch, words)))  # CUDA ends the list there, too
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listing = finished(["nvidia-smi", "--list-gpus"], LISTING_S)
    except (OSError, TimeoutExpired):
        return []
    if listing.returncode:  # a GPU is lost, or the driver has failed
        return []
    return re.findall(r"^GPU (\d+):", listing.stdout, re.MULTILINE)  # the lines of their parts (MIG) are indented
