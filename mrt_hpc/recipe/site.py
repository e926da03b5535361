"""The site profile: where and how jobs run. It never changes a run's result."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mrt_hpc.recipe.section import Name, NotNegative, Positive, PositiveFloat, Section

EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
SbatchOption = Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")]


class GpuRequest(StrEnum):
    """How this cluster wants GPUs to be asked for."""

    GRES = "gres"
    """``--gres=gpu:k`` (a node)."""
    GPUS_PER_NODE = "gpus_per_node"
    """``--gpus-per-node=k``."""
    NONE = "none"
    """No request: whole nodes are given out."""


class Container(Section):
    """An Apptainer image in which every task runs."""

    image: str
    """The SIF file, on a filesystem that the compute nodes see."""
    executable: str = "apptainer"
    """The command, as found on the compute nodes."""
    binds: tuple[str, ...] = ()
    """More folders to bind, as in ``source:target``."""
    python: str = "python3"
    """Python in the container that has mrt-hpc installed."""


class MeasuredThroughput(Section):
    """Rates that were measured on this site, for the estimate of ``mrt-hpc plan``; the report of a run tells them."""

    sampled_tokens_per_second: PositiveFloat | None = None
    """Tokens per second that one inference process samples; null takes a stated rate of the GPU, where there is one."""
    trained_tokens_per_second: PositiveFloat | None = None
    """Tokens per second that one rank of the trainer computes; null takes a stated rate of the GPU, where there is one.
    """


class LocalSite(Section):
    """This machine, without Slurm."""

    type: Literal["local"] = "local"
    name: Name = "local"
    """Name of the profile."""
    cpus: Positive | None = None
    """CPU slots to give out; null takes the machine's cores, or what the largest pair of roles needs where that is
    more.
    """
    gpus: NotNegative | None = None
    """GPU slots to give out; null takes the GPUs that the machine has."""
    environment: dict[EnvironmentName, str] = Field(default_factory=dict)
    """Environment variables of every task."""
    throughput: MeasuredThroughput = MeasuredThroughput()
    """How fast processes sample and train here."""


class Partitions(Section):
    """Slurm partitions by kind of job; null leaves the choice to the cluster's default."""

    cpu: str | None = None
    """Partition of jobs without GPUs."""
    gpu: str | None = None
    """Partition of jobs with GPUs."""


class SlurmSite(Section):
    """A Slurm cluster."""

    type: Literal["slurm"] = "slurm"
    name: Name
    """Name of the profile."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    partitions: Partitions = Partitions()
    """Where jobs go."""
    gpu_request: GpuRequest = GpuRequest.GRES
    """How GPUs are asked for."""
    gpu_type: str | None = None
    """GPU model in the request, as in ``a100``."""
    setup: tuple[str, ...] = ()
    """Shell lines before each task, as in ``module load cuda``. Written to the job script as they stand."""
    environment: dict[EnvironmentName, str] = Field(default_factory=dict)
    """Environment variables of every task; values are quoted."""
    python: str | None = None
    """Python that runs the tasks; null is the one that runs this command."""
    container: Container | None = None
    """Apptainer image; null runs on the node itself."""
    scratch: str | None = None
    """Node-local folder for sockets and caches; null is the node's TMPDIR."""
    max_array_size: Positive = 1001
    """The cluster's MaxArraySize (``scontrol show config``); the largest array index is one less."""
    max_submit_jobs: Positive | None = None
    """Jobs and array tasks that you may have queued at a time (``sacctmgr show assoc``, MaxSubmit); null is no limit.
    """
    max_time_minutes: Positive | None = None
    """The partition's longest time limit, minutes; null is no limit."""
    memory_request: bool = True
    """Ask for memory; false where the cluster gives out whole nodes."""
    throughput: MeasuredThroughput = MeasuredThroughput()
    """How fast processes sample and train here."""
    sbatch: dict[SbatchOption, str] = Field(default_factory=dict)
    """More sbatch options, as in ``{constraint: a100}``."""


class SiteFile(BaseModel):
    """What a site file holds: one of the two kinds, told by ``type``."""

    model_config = ConfigDict(frozen=True)

    site: Annotated[LocalSite | SlurmSite, Field(discriminator="type")]


Site = LocalSite | SlurmSite
