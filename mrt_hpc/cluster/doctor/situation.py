"""What the checks look at: site profile, recipe, run directory, the survey of the cluster and the answers of nodes."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mrt_hpc.backends.backend import Site
from mrt_hpc.backends.slurm.queued_as import Difference
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.backends.slurm.survey import PartitionFacts, Qos, Survey, survey
from mrt_hpc.cluster.doctor.node_half import NodeFacts
from mrt_hpc.cluster.job_rules import Preemption, preemption
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.jobs import Job, Plan
from mrt_hpc.recipe.schema import Recipe


def situation_of(site: Site, recipe: Recipe | None, root: Path) -> "Situation":
    """The situation without the answers of nodes; the cluster is surveyed where the profile is that of one."""
    return Situation(site, recipe, root, survey() if isinstance(site, SlurmSite) else None)


@dataclass(frozen=True)
class Situation:
    """All that a diagnosis starts from."""

    site: Site
    recipe: Recipe | None
    """None where no recipe is checked."""
    root: Path
    """The run directory, which need not exist yet."""
    cluster: Survey | None = None
    """None for a site that is no Slurm cluster."""
    answers: "tuple[NodeAnswer, ...]" = ()
    """What compute nodes answered; empty unless they were asked."""

    @property
    def slurm(self) -> SlurmSite | None:
        """The profile of a Slurm cluster; None for another kind of site."""
        return self.site if isinstance(self.site, SlurmSite) else None

    @cached_property
    def plan(self) -> Plan | None:
        """The plan of the recipe, also where it is beyond the site's limits; None without a recipe."""
        if self.recipe is None:
            return None
        return build_plan(self.recipe, max_array_size=self.site.limits.array_size)

    @property
    def uses_gpus(self) -> bool:
        """Whether the recipe, or without one the profile, sends jobs to GPUs."""
        return "gpu" in self.kinds

    @property
    def kinds(self) -> tuple[str, ...]:
        """The fields of ``partitions`` that there will be jobs for: by the recipe's plan, or else by the profile."""
        if self.plan is not None:
            return tuple(dict.fromkeys("gpu" if job.resources.gpus else "cpu" for job in self.plan.jobs))
        if self.slurm is None:
            return ("cpu",)
        return tuple(kind for kind in ("cpu", "gpu") if getattr(self.slurm.partitions, kind)) or ("cpu",)

    def jobs(self, kind: str) -> list[Job]:
        """The jobs of the plan that go to the partition of this kind."""
        return [job for job in (self.plan.jobs if self.plan else ()) if bool(job.resources.gpus) == (kind == "gpu")]

    def named_partitions(self, kind: str) -> list[str | None]:
        """The names in the profile's partition of this kind; None stands for the cluster's default."""
        named = None if self.slurm is None else getattr(self.slurm.partitions, kind)
        return list(named.split(",")) if named else [None]

    def partitions(self, kind: str) -> list[PartitionFacts]:
        """Those partitions of this kind that the cluster has."""
        if self.cluster is None:
            return []
        partitions = [self.cluster.partition(name) for name in self.named_partitions(kind)]
        return [partition for partition in partitions if partition is not None]

    @property
    def qos(self) -> Qos | None:
        """The QOS of the jobs; None where it is not known."""
        if self.cluster is None or self.slurm is None:
            return None
        return self.cluster.qos_of(self.slurm.account, self.slurm.qos)

    def preemption(self, partition: PartitionFacts) -> Preemption | None:
        """What a preemption does to jobs of a partition; None where it is not known."""
        return None if self.cluster is None else preemption(self.cluster, partition, self.qos)


# -- node answer -------------------------------------------------------------------------------------------------------
# What the login node knows of one job that asked a compute node.


@dataclass(frozen=True)
class NodeAnswer:
    """The answer of a node, or why there is none."""

    kind: str
    """``cpu`` or ``gpu``: the field of ``partitions`` whose partition the job went to."""
    partition: str
    """Its name; empty text for the default one."""
    facts: NodeFacts | None = None
    job_id: str = ""
    slurm_commands: tuple[str, ...] = ()
    """Those of scontrol and squeue that the node has."""
    changed: tuple[Difference, ...] = ()
    """What Slurm has made of the job that was asked for."""
    problem: str = ""
    """Why there is no answer."""
    waits: bool = False
    """Whether the job was still queued when the time to wait was over."""
    queued_s: float = 0.0
    """Seconds from sbatch to the first sign of the node, or to the end of the wait."""
