"""The profile of a Slurm cluster."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo
from pydantic_core import PydanticCustomError

from mrt_hpc.attempt.gpus import NO_SLICES, is_slice
from mrt_hpc.backends.backend import Site
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import JobKind
from mrt_hpc.recipe.base import GPU_TYPE, OPTION, PARTITION, Gpus, Line, NotNegative, Queued, Section, WholeMinutes
from mrt_hpc.recipe.site import SiteLimits
from mrt_hpc.run.atomic import checksum

_SHA256 = re.compile("[0-9a-f]{64}")

# sbatch's long options that the plan sets itself, and those that other fields state. Whether sbatch knows the rest, and
# takes them together, it says itself (``sbatch --test-only``).


_PLANNED = (
    "array cpus-per-task dependency error export-file help input job-name kill-on-invalid-dep no-requeue nodes "
    "ntasks ntasks-per-node open-mode output parsable requeue signal test-only time usage version wait wrap"
)
OF_THE_PLAN = frozenset(_PLANNED.split())
"""Options that the plan sets, or that change the behaviour of sbatch: a site profile must not replace them."""

_NAMED = {"constraint": "feature", "gres": "gres", "licenses": "license", "nodelist": "node list"}
"""Slurm's own words for options, in its refusals."""


def option_word(name: str, value: object) -> str:
    """An option as a word of a command; true adds no value."""
    return f"--{name}" if value is True else f"--{name}={value}"


OTHER_FIELDS = {
    "account": "account",
    "qos": "qos",
    "partition": "partitions",
    "mem": "memory_request",
    "mem-per-cpu": "memory_request: mem_per_cpu",
    "mem-per-gpu": "memory_request: mem_per_cpu",
    "cpus-per-gpu": "resources.ROLE.cpus of the recipe",
    **dict.fromkeys(
        ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "ntasks-per-gpu", "tres-per-task"),
        "gpu_request and gpu_type",
    ),
}
"""What states options whose amount the plan knows, or that have a field of their own."""


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
    if option in OTHER_FIELDS:
        raise PydanticCustomError(
            "other_field",
            "no --{option}, which would contradict what the plan asks for: {field} states it for each job",
            {"option": option, "field": OTHER_FIELDS[option]},
        )
    return option


def _normalise_options(options: Any) -> Any:
    """Leave out options that are switched off, and take numbers as text."""
    if not isinstance(options, dict):
        return str(options) if type(options) in (int, float) else options
    return {name: _normalise_options(v) for name, v in options.items() if v is not None and v is not False}


def _whole_gpu(name: str) -> str:
    if is_slice(name):
        raise PydanticCustomError("slice", "the type of {whole}", {"whole": NO_SLICES})
    return name


def _require_node_path(path: str) -> str:
    if not path.startswith(("/", "$")):
        raise PydanticCustomError(
            "relative", "a path that begins with / or with a variable of the nodes, as in $SCRATCH: no shell reads a ~"
        )
    return path


def _no_gpus(options: "dict[str, ValueByKind]") -> "dict[str, ValueByKind]":
    """Refuse GPUs as ``gres``: they would be asked for beside the plan's."""
    gres = options.get("gres")
    asked = f"{gres.cpu},{gres.gpu}" if isinstance(gres, ByKind) else str(gres)
    if any(re.match(r"(gres[:/])?gpu\b", one.strip()) for one in asked.split(",")):
        raise PydanticCustomError(
            "gpus_twice", "no GPUs in gres, which the plan asks for: gpu_request and gpu_type state how, for each job"
        )
    return options


SbatchOption = Annotated[str, Field(pattern=OPTION), AfterValidator(_not_of_the_plan)]
SbatchValue = Line | Literal[True]
T = TypeVar("T")


class ByKind(Section, Generic[T]):
    """Values by kind of job; null leaves the choice to the cluster's default."""

    cpu: T | None = None
    """That of jobs without GPUs."""
    gpu: T | None = None
    """That of jobs with GPUs."""


Partitions = ByKind[Annotated[str, Field(pattern=PARTITION)]]
_FORM = Discriminator(lambda value: "kinds" if isinstance(value, dict | ByKind) else "all")
LineByKind = Annotated[Annotated[Line, Tag("all")] | Annotated[ByKind[Line], Tag("kinds")], _FORM]
ValueByKind = Annotated[Annotated[SbatchValue, Tag("all")] | Annotated[ByKind[SbatchValue], Tag("kinds")], _FORM]


class GpuRequest(StrEnum):
    """The sbatch option with which a job asks this cluster for GPUs."""

    GRES = "gres"
    """``--gres=gpu:k`` (a node)."""
    GPUS_PER_NODE = "gpus_per_node"
    """``--gpus-per-node=k``."""
    NONE = "none"
    """No request, for clusters that allocate whole nodes."""


class MemoryRequest(StrEnum):
    """The sbatch option with which a job asks this cluster for memory."""

    MEM = "mem"
    """``--mem``, the amount of a node; ``true`` stands for it."""
    MEM_PER_CPU = "mem_per_cpu"
    """``--mem-per-cpu``, the same amount divided by the job's processors on a node."""
    NONE = "none"
    """No request, for clusters that allocate whole nodes; ``false`` stands for it."""


def _memory_request(value: Any) -> Any:
    return {True: MemoryRequest.MEM, False: MemoryRequest.NONE}[value] if isinstance(value, bool) else value


class Requeue(StrEnum):
    """Whether Slurm starts a job of a run again under the same id."""

    ALLOWED = "allowed"
    """``--requeue``."""
    EXPEDITE = "expedite"
    """``--requeue=expedite`` (since Slurm 25.11): a job whose node fails starts again before others."""
    FORBIDDEN = "forbidden"
    """``--no-requeue``, for clusters that forbid it."""


def _starts_image(words: tuple[str, ...]) -> tuple[str, ...]:
    for place in ("{image}", "{bind}") if words else ():
        if not any(place in word for word in words):
            raise PydanticCustomError("no_place", "words of which one holds {place}", {"place": place})
    return words


def _check_unpack(unpack: bool, info: ValidationInfo) -> bool:
    if unpack and info.data.get("command"):
        raise PydanticCustomError("of_apptainer", "false with words of your own (command): Apptainer unpacks images")
    return unpack


class Container(Section):
    """The image in which every task runs: one of Apptainer, or of what `command` starts."""

    image: Line
    """The path of the SIF file, on a filesystem that the compute nodes see; or the name of the image for `command`."""
    executable: Line = "apptainer"
    """The command of Apptainer, as the compute nodes find it."""
    command: Annotated[tuple[Line, ...], AfterValidator(_starts_image)] = ()
    """The words that start the image where Apptainer does not, as in ``[shifter, "--image={image}",
    "--volume={bind}"]``: ``{image}`` stands for the image, and a word with ``{bind}`` is repeated for each folder. If
    all words begin with ``--`` they are options of srun (Pyxis), and ``{bind}`` stands for all folders, with commas.
    """
    binds: tuple[Line, ...] = ()
    """Further folders to bind, as in ``source:target``; run directory, models and TMPDIR are bound anyway."""
    python: Line = "python3"
    """The Python in the container that has mrt-hpc installed."""
    unpack: Annotated[bool, AfterValidator(_check_unpack)] = False
    """Whether the image is unpacked into TMPDIR of each node before tasks start. This is needed where the kernel does
    not mount images: a process of the task then does, and the signal before a time limit or a preemption ends it.
    """

    @property
    def is_of_srun(self) -> bool:
        return bool(self.command) and all(word.startswith("--") for word in self.command)

    @property
    def python_words(self) -> list[str]:
        """The command that starts the Python of the image."""
        return [*self.words("exec"), self.python]

    def words(self, action: str, *folders: str, gpus: bool = False, image: str | None = None) -> list[str]:
        """A command on the image, or on its unpacked copy, with further folders bound."""
        if self.command:
            both = [bind if ":" in bind else f"{bind}:{bind}" for bind in (*folders, *self.binds)]
            binds = [",".join(both)] if self.is_of_srun else both  # srun passes on the last one of an option
            filled = [[word.replace("{bind}", bind) for bind in binds] for word in self.command]
            words = [word for each in filled for word in dict.fromkeys(each)]
            return [word.replace("{image}", image or self.image) for word in words]
        binds = [word for bind in (*folders, *self.binds) for word in ("--bind", bind)]
        return [self.executable, action, *(["--nv"] if gpus else []), *binds, image or self.image]


class SlurmSite(Site):
    """A Slurm cluster."""

    back_end: ClassVar[str] = "mrt_hpc.backends.slurm.backend:SlurmBackend"
    type: Literal["slurm"] = "slurm"
    account: LineByKind | None = None
    """The account that jobs are charged to; one for each kind of job, as in ``{cpu: lab@cpu, gpu: lab@h100}``."""
    qos: LineByKind | None = None
    """The quality of service of jobs; one for all or one for each kind, as account."""
    partitions: Partitions = Partitions()
    """The partitions that jobs go to."""
    gpu_request: GpuRequest = GpuRequest.GRES
    """The sbatch option that asks for GPUs."""
    node_gpus: Annotated[Gpus, Field(ge=1)] | None = None
    """The GPUs of a node, where jobs with GPUs get whole nodes: `mrt-hpc plan` then counts them all, as the cluster
    charges them. null counts the GPUs that jobs ask for.
    """
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
    scratch: Annotated[Line, AfterValidator(_require_node_path)] | None = None
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
    memory_request: Annotated[MemoryRequest, BeforeValidator(_memory_request)] = MemoryRequest.MEM
    """The sbatch option that asks for memory; the plan knows the amount."""
    sbatch: Annotated[
        dict[SbatchOption, ValueByKind], BeforeValidator(_normalise_options), AfterValidator(_no_gpus)
    ] = Field(default_factory=dict)
    """Further sbatch options, for all jobs or by kind of job, as in ``{exclusive: true, constraint: {gpu: a100}}``:
    with true an option has no value, and with false or null it is left out. ``gres`` is added to the GPUs of a job.
    Options that the plan of a run sets itself are refused.
    """

    def options(self, kind: JobKind) -> dict[str, SbatchValue]:
        """The profile's sbatch options for a kind of job."""
        stated = {"account": self.account, "qos": self.qos, "partition": self.partitions, **self.sbatch}
        chosen = {name: getattr(value, kind) if isinstance(value, ByKind) else value for name, value in stated.items()}
        return {name: value for name, value in chosen.items() if value is not None}

    def lines_behind(self, answer: str, kind: JobKind) -> str:
        """The profile's values that an answer of sbatch may be about: those whose option it names, or else all."""
        stated = {option: f"{option}: {value}" for option, value in self.options(kind).items()}
        stated |= {"gres": f"gpu_request: {self.gpu_request}, gpu_type: {self.gpu_type}"} if kind == "gpu" else {}
        stated |= {"memory": f"memory_request: {self.memory_request}"}
        stated |= {"time limit": f"max_time_minutes: {self.max_time_minutes}"} if self.max_time_minutes else {}
        named = [line for option, line in stated.items() if _NAMED.get(option, option) in answer.lower()]
        return f"site profile {self.name}, {kind} jobs: {'; '.join(named or stated.values())}"

    def text_of(self, option: str, kind: JobKind) -> str | None:
        value = self.options(kind).get(option)
        return value if isinstance(value, str) else None

    @property
    def limits(self) -> SiteLimits:
        sizes = (self.max_array_size, self.max_submit_jobs, self.max_time_minutes)
        return SiteLimits(*sizes, self.preemption_notice_s, self.node_gpus)

    @property
    def gets_whole_nodes(self) -> bool:
        """Whether the profile asks for whole nodes."""
        return self.gpu_request is GpuRequest.NONE or self.options("gpu").get("exclusive") is True

    @property
    def task_environment(self) -> dict[str, str]:
        """A Python of an image would prefer the packages of ~/.local."""
        return {**({} if self.container is None else {"PYTHONNOUSERSITE": "1"}), **self.environment}

    @property
    def gpu_name(self) -> str:
        return self.gpu_type or ""

    def image_digest(self) -> str | None:
        """The checksum in the file beside the image (from `mrt-hpc container build`), unless that file is older; else
        that of the image itself, which takes a second a gigabyte.
        """
        image = self.image_file()
        return None if image is None else stated_checksum(image) or checksum(image)

    def image_file(self) -> Path | None:
        """The image, where it is there."""
        image = None if self.container is None else Path(self.container.image)
        return image if image is not None and image.is_file() else None


def checksum_file(image: Path) -> Path:
    return image.with_name(f"{image.name}.sha256")


def checksum_in(file: Path) -> str:
    """The file's first word, if it has one."""
    return next(iter(file.read_text(encoding="utf-8", errors="replace").split()), "")


def stated_checksum(image: Path) -> str | None:
    """The SHA-256 in the file beside an image; None where there is none, or it may be of an earlier image."""
    stated = checksum_file(image)
    try:
        word = checksum_in(stated)
        is_of_image = stated.stat().st_mtime_ns >= image.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    return word if is_of_image and _SHA256.fullmatch(word) else None


def require_slurm(site: Site) -> SlurmSite:
    """Refuses a profile of another kind."""
    if not isinstance(site, SlurmSite):
        raise UserError(
            "this needs the profile of a Slurm cluster",
            value=site.name,
            where="--site",
            advice="the same command with --site SITE; mrt-hpc recipes list shows the profiles",
        )
    return site
