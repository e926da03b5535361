"""What the checks look at: site profile, recipe, run directory, the survey of the cluster and the answers of nodes."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from mrt_hpc.backends.backend import Site
from mrt_hpc.backends.slurm.queued_as import Difference
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.backends.slurm.survey import PartitionFacts, Survey, survey
from mrt_hpc.cluster.doctor.node_half import NodeFacts
from mrt_hpc.cluster.job_rules import Preemption, preemption
from mrt_hpc.plan.compile import build_plan
from mrt_hpc.plan.jobs import Job, JobKind, Plan
from mrt_hpc.recipe.schema import Recipe


def situation_of(site: Site, recipe: Recipe | None, root: Path) -> "Situation":
    """The situation without the answers of nodes; surveys the profile's cluster, if any."""
    return Situation(site, recipe, root, survey() if isinstance(site, SlurmSite) else None)


@dataclass(frozen=True)
class Situation:
    site: Site
    recipe: Recipe | None
    """None where no recipe is checked."""
    root: Path
    """The run directory, which need not exist yet."""
    cluster: Survey | None = None
    """None for a site that is no Slurm cluster."""
    answers: "tuple[NodeAnswer, ...]" = ()
    """Answers of compute nodes; empty unless they were asked."""

    @property
    def slurm(self) -> SlurmSite | None:
        """None for another kind of site."""
        return self.site if isinstance(self.site, SlurmSite) else None

    @cached_property
    def plan(self) -> Plan | None:
        """The plan, also beyond the site's limits; None without a recipe."""
        return None if self.recipe is None else build_plan(self.recipe, max_array_size=self.site.limits.array_size)

    @property
    def uses_gpus(self) -> bool:
        """Whether the recipe, or without one the profile, uses them."""
        return "gpu" in self.kinds

    @property
    def kinds(self) -> tuple[JobKind, ...]:
        """Kinds of the recipe's plan, or else of the profile's partitions."""
        if self.plan is not None:
            return tuple(dict.fromkeys(job.resources.kind for job in self.plan.jobs))
        site = self.slurm
        return tuple(kind for kind in get_args(JobKind) if site and site.text_of("partition", kind)) or ("cpu",)

    def jobs(self, kind: JobKind) -> list[Job]:
        return [job for job in (self.plan.jobs if self.plan else ()) if job.resources.kind == kind]

    def named_partitions(self, kind: JobKind) -> list[str | None]:
        named = None if self.slurm is None else self.slurm.text_of("partition", kind)
        return list(named.split(",")) if named else [None]

    def partitions(self, kind: JobKind) -> list[PartitionFacts]:
        """The profile's partitions that the cluster has."""
        known = map(self.cluster.partition, self.named_partitions(kind)) if self.cluster is not None else ()
        return [partition for partition in known if partition is not None]

    def preemption(self, kind: JobKind, partition: PartitionFacts) -> Preemption | None:
        """What a preemption does to jobs of a kind in a partition; None where it is not known."""
        if self.cluster is None or self.slurm is None:
            return None
        qos = self.cluster.qos_of(self.slurm.text_of("account", kind), self.slurm.text_of("qos", kind))
        return preemption(self.cluster, partition, qos)


# What the login node knows of one job that asked a compute node.


@dataclass(frozen=True)
class NodeAnswer:
    """The answer of a node, or why there is none."""

    kind: JobKind
    partition: str
    """Empty for the default one."""
    facts: NodeFacts | None = None
    job_id: str = ""
    slurm_commands: tuple[str, ...] = ()
    """Commands that the node has, of scontrol and squeue."""
    changed: tuple[Difference, ...] = ()
    """What Slurm has made of the job."""
    problem: str = ""
    """Why there is no answer."""
    setup_problem: str = ""
    """The profile's first failed setup line there, with its exit code."""
    waits: bool = False
    """Whether the job was still queued at the end of the wait."""
    queued_s: float = 0.0
    """Seconds from sbatch to the node's first sign, or to the end of the wait."""
