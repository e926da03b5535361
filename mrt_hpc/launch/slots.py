"""The CPU and GPU slots of this machine, given out to local tasks."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.plan.model import Role
from mrt_hpc.recipe.errors import UserError

if TYPE_CHECKING:
    from mrt_hpc.plan.model import Job, JobResources, Plan
    from mrt_hpc.recipe.site import LocalSite


@dataclass
class Slots:
    """What is free. CPU slots are counted, GPUs are named, since each task must get its own."""

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

    Where nothing is said, CPU slots are the machine's cores, or what the largest segment needs where that is more: its
    roles mostly take turns, so sharing cores costs less than not running.

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
                where="resources",
                advice="lower resources.*.gpus and .cpus, or schedule.coupling: sequential, or --site SITE",
            )
    return Slots(cpus, gpus)


def largest_need(plan: Plan) -> tuple[int, int]:
    """CPU slots and GPUs that must be free at a time: of one job's task, or of an inference task beside its segment's
    trainer.
    """
    needs = [(job.resources.cpus, job.resources.gpus) for job in plan.jobs]
    for trainer in (job for job in plan.jobs if job.role is Role.TRAINER):
        beside = [job for job in plan.jobs if runs_beside(job, trainer)]
        cpus = trainer.resources.cpus + sum(job.tasks * job.resources.cpus for job in beside)
        gpus = trainer.resources.gpus + sum(job.tasks * job.resources.gpus for job in beside)
        needs.append((cpus, gpus))
    return max(c for c, _ in needs), max(g for _, g in needs)


def runs_beside(job: Job, trainer: Job) -> bool:
    """Whether an inference job works hand in hand with this trainer."""
    return job.role is Role.INFERENCE and job.segment == trainer.segment and job.after == trainer.after


def visible_gpus() -> list[str]:
    """The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES takes; none without a driver."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [g for g in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if g]
    if shutil.which("nvidia-smi") is None:
        return []
    listing = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=False)
    return [str(n) for n, line in enumerate(listing.stdout.splitlines()) if line.startswith("GPU ")]
