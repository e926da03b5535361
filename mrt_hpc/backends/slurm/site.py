"""The profile of a Slurm cluster."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from mrt_hpc.attempt.gpus import NO_SLICES, is_slice
from mrt_hpc.backends.backend import Site
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.recipe.base import GPU_TYPE, OPTION, PARTITION, Line, NotNegative, Queued, Section, WholeMinutes
from mrt_hpc.recipe.site import SiteLimits
from mrt_hpc.run.atomic import checksum

_SHA256 = re.compile("[0-9a-f]{64}")

# -- sbatch options ----------------------------------------------------------------------------------------------------
# sbatch's long options: which the plan sets itself, and which there are (Slurm 20.11 to 25.05).


_PLANNED = (
    "array cpus-per-task dependency error export-file help input job-name kill-on-invalid-dep no-requeue nodes "
    "ntasks ntasks-per-node open-mode output parsable requeue signal test-only time usage version wait wrap"
)
_OTHERS = (
    "account acctg-freq batch bb bbf begin chdir cluster-constraint clusters comment consolidate-segments constraint "
    "container container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot "
    "distribution exclude exclusive export external extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus "
    "gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint hold ignore-pbs licenses mail-type mail-user "
    "mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill nodefile nodelist ntasks-per-core "
    "ntasks-per-gpu ntasks-per-socket oom-kill-step overcommit oversubscribe partition power prefer priority profile "
    "propagate qos quiet reboot reservation resv-ports segment sockets-per-node spread-job spread-segments stepmgr "
    "switches thread-spec threads-per-core time-min tmp tres-bind tres-per-task uid use-min-nodes verbose "
    "wait-all-nodes wckey x11"
)

OF_THE_PLAN = frozenset(_PLANNED.split())
"""The options that the plan sets, or that change the behaviour of sbatch: a site profile must not replace them."""

OPTIONS = OF_THE_PLAN | frozenset(_OTHERS.split())
"""All of them."""


def as_word(name: str, value: object) -> str:
    """An option as a word of a command; one whose value is true has none."""
    return f"--{name}" if value is True else f"--{name}={value}"


def _not_of_the_plan(option: str) -> str:
    if option == "clusters":
        raise PydanticCustomError(
            "another_cluster",
            "no --clusters: squeue and scancel would ask this cluster for the jobs of another; `export "
            "SLURM_CLUSTERS=NAME` in the shell of all commands chooses the cluster",
        )
    if option in OF_THE_PLAN:
        raise PydanticCustomError(
            "owned",
            "no --{option}: the plan of a run sets it for each of its jobs, and this would replace it in all",
            {"option": option},
        )
    return option


def _as_written(options: Any) -> Any:
    """Leave out options that are switched off, and take numbers as text."""
    if not isinstance(options, dict):
        return options
    kept = {name: value for name, value in options.items() if value is not None and value is not False}
    return {name: str(value) if type(value) in (int, float) else value for name, value in kept.items()}


def _whole_gpu(name: str) -> str:
    if is_slice(name):
        raise PydanticCustomError("slice", "the type of {whole}", {"whole": NO_SLICES})
    return name


def _on_each_node(path: str) -> str:
    if not path.startswith(("/", "$")):
        raise PydanticCustomError(
            "relative", "a path that begins with / or with a variable of the nodes, as in $SCRATCH: no shell reads a ~"
        )
    return path


def _whole_gpus(options: dict[str, str | Literal[True]]) -> dict[str, str | Literal[True]]:
    for option, value in options.items():
        if isinstance(value, str) and option.startswith(("gres", "gpus", "tres")):
            _whole_gpu(value)
    return options


SbatchOption = Annotated[str, Field(pattern=OPTION), AfterValidator(_not_of_the_plan)]


class GpuRequest(StrEnum):
    """The sbatch option with which a job asks this cluster for GPUs."""

    GRES = "gres"
    """``--gres=gpu:k`` (a node)."""
    GPUS_PER_NODE = "gpus_per_node"
    """``--gpus-per-node=k``."""
    NONE = "none"
    """No request, for clusters that allocate whole nodes."""


class Requeue(StrEnum):
    """Whether Slurm starts a job of a run again under the same id."""

    ALLOWED = "allowed"
    """``--requeue``."""
    EXPEDITE = "expedite"
    """``--requeue=expedite`` (since Slurm 25.11): a job whose node fails starts again before others."""
    FORBIDDEN = "forbidden"
    """``--no-requeue``, for clusters that forbid it."""


class Container(Section):
    """An Apptainer image in which every task runs."""

    image: Line
    """The path of the SIF file, on a filesystem that the compute nodes see."""
    executable: Line = "apptainer"
    """The command of Apptainer, as the compute nodes find it."""
    binds: tuple[Line, ...] = ()
    """Further folders to bind, as in ``source:target``; the run directory, models and TMPDIR are bound anyway.
    """
    python: Line = "python3"
    """The Python in the container that has mrt-hpc installed."""
    unpack: bool = False
    """Whether the image is unpacked into TMPDIR of each node before tasks start. This is needed where the kernel does
    not mount images: a process of the task then does, and the signal before a time limit or a preemption ends it.
    """

    @property
    def python_words(self) -> list[str]:
        """The command that starts the Python of the image, with the folders of this profile bound."""
        return [*self.words("exec"), self.python]

    def words(self, action: str, *folders: str, gpus: bool = False, image: str | None = None) -> list[str]:
        """A command of Apptainer on the image, or on what it was unpacked to, with further folders bound."""
        binds = [word for bind in (*folders, *self.binds) for word in ("--bind", bind)]
        return [self.executable, action, *(["--nv"] if gpus else []), *binds, image or self.image]


class Partitions(Section):
    """Slurm partitions by kind of job; null leaves the choice to the cluster's default."""

    cpu: Annotated[str, Field(pattern=PARTITION)] | None = None
    """The partition of jobs without GPUs."""
    gpu: Annotated[str, Field(pattern=PARTITION)] | None = None
    """The partition of jobs with GPUs."""


class SlurmSite(Site):
    """A Slurm cluster."""

    back_end: ClassVar[str] = "mrt_hpc.backends.slurm.backend:SlurmBackend"
    type: Literal["slurm"] = "slurm"
    account: Line | None = None
    """The account that jobs are charged to."""
    qos: Line | None = None
    """The quality of service of jobs."""
    partitions: Partitions = Partitions()
    """The partitions that jobs go to."""
    gpu_request: GpuRequest = GpuRequest.GRES
    """The sbatch option that asks for GPUs."""
    gpu_type: Annotated[str, Field(pattern=GPU_TYPE), AfterValidator(_whole_gpu)] | None = None
    """The GPU model in the request, as in ``a100`` or ``"3090"``; parts of GPUs (MIG, ``1g.10gb``) are refused."""
    setup: tuple[str, ...] = ()
    """Shell lines that run before each task, as in ``module load gcc``. The job script contains them unchanged. No CUDA
    module is needed: the locked environment has its own libraries.
    """
    python: Line | None = None
    """The Python that runs the tasks; null takes the Python that runs this command."""
    container: Container | None = None
    """The Apptainer image that tasks run in; null runs them on the node itself."""
    scratch: Annotated[Line, AfterValidator(_on_each_node)] | None = None
    """A folder on each node for sockets, temporary files and what vLLM, Triton and torch compile; null takes the node's
    own folder for temporary files.
    """
    max_array_size: Queued = 1001
    """The cluster's MaxArraySize (``scontrol show config``); the largest array index is one less."""
    max_submit_jobs: Queued | None = None
    """The number of jobs and array tasks that you may have queued at a time (``sacctmgr show assoc``, MaxSubmit); null
    is no limit.
    """
    max_time_minutes: WholeMinutes | None = None
    """The longest time limit of the partition, minutes; null is no limit."""
    preemption_notice_s: NotNegative | None = None
    """The seconds between the signal of a preemption and the end of the task: GraceTime of the partition (``scontrol
    show partition``) and KillWait (``scontrol show config``) together. `mrt-hpc plan` warns where a checkpoint is
    expected to take longer; null compares nothing.
    """
    requeue: Requeue = Requeue.ALLOWED
    """Whether Slurm starts a job again after a preemption, a lost node or its time limit. Where the cluster forbids
    it, a task that must run again ends, and `mrt-hpc submit RUN` continues the run.
    """
    memory_request: bool = True
    """Whether jobs ask for memory; set false if the cluster allocates whole nodes."""
    sbatch: Annotated[
        dict[SbatchOption, Line | Literal[True]], BeforeValidator(_as_written), AfterValidator(_whole_gpus)
    ] = Field(default_factory=dict)
    """Further sbatch options, as in ``{constraint: a100, exclusive: true}``: with true an option has no value, and with
    false or null it is left out. Options that the plan of a run sets itself are refused.
    """

    @property
    def limits(self) -> SiteLimits:
        """The limits that the profile states."""
        return SiteLimits(self.max_array_size, self.max_submit_jobs, self.max_time_minutes, self.preemption_notice_s)

    @property
    def gpu_name(self) -> str:
        """``gpu_type``"""
        return self.gpu_type or ""

    def image_digest(self) -> str | None:
        """The checksum of the image: the one in the file beside it that `mrt-hpc container build` writes, unless that
        file is older than the image; otherwise that of the image itself, which takes a second a gigabyte. A run
        remembers it (see :mod:`mrt_hpc.submit.submission`).
        """
        if (image := self.image_file()) is None:
            return None
        return stated_checksum(image) or checksum(image)

    def image_file(self) -> Path | None:
        """The image, where it is there; None without a container."""
        image = None if self.container is None else Path(self.container.image)
        return image if image is not None and image.is_file() else None


def checksum_file(image: Path) -> Path:
    """The file beside an image that holds its checksum."""
    return image.with_name(f"{image.name}.sha256")


def checksum_in(file: Path) -> str:
    """The first word of a file that holds a checksum; empty text where it has none."""
    return next(iter(file.read_text(encoding="utf-8", errors="replace").split()), "")


def stated_checksum(image: Path) -> str | None:
    """The SHA-256 in the file beside an image; None where there is none, or it may be that of an earlier image."""
    stated = checksum_file(image)
    try:
        word = checksum_in(stated)
        is_of_image = stated.stat().st_mtime_ns >= image.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return word if is_of_image and _SHA256.fullmatch(word) else None


def required(site: Site) -> SlurmSite:
    """The profile, where it is that of a Slurm cluster.

    Raises:
        UserError: it is of another kind.
    """
    if not isinstance(site, SlurmSite):
        raise UserError(
            "this needs the profile of a Slurm cluster",
            value=site.name,
            where="--site",
            advice="the same command with --site SITE; mrt-hpc recipes list shows the profiles",
        )
    return site


def unknown_options(site: SlurmSite) -> list[str]:
    """Return a sentence for each option of a site profile that sbatch does not know, according to the list of this
    package.
    """
    hints = {option: nearest(option, OPTIONS) for option in site.sbatch if option not in OPTIONS}
    return [
        f"site {site.name}: sbatch knows no option --{option} ({f'the nearest is --{hint}' if hint else 'man sbatch'})"
        for option, hint in hints.items()
    ]
