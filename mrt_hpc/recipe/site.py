"""The fields of every site profile: where jobs run, and the limits of a plan there. A site profile never changes a
run's results. The fields of one kind of site (this machine, a Slurm cluster) are defined with its back end, see
:mod:`mrt_hpc.backends.backend`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr

from mrt_hpc.recipe.base import VARIABLE, Gib, Line, Name, Rate, Section
from mrt_hpc.recipe.registry import Registry

EnvironmentName = Annotated[str, Field(pattern=VARIABLE)]


class MeasuredThroughput(Section):
    """Rates that were measured on this site, for the estimate of ``mrt-hpc plan``; the report of a run shows them."""

    sampled_tokens_per_second: Rate | None = None
    """The tokens per second that one inference task samples on all its GPUs; null takes a stated rate of the GPU, if
    any. A task of an evaluation is expected to sample in proportion to its GPUs, and 2.4 times as fast, as it keeps
    all slots of its servers taken.
    """
    trained_tokens_per_second: Rate | None = None
    """The tokens per second that one rank of the trainer computes; null takes a stated rate of the GPU, if any."""
    checkpoint_gb_per_second: Rate = 1.0
    """The gigabytes per second at which the ranks of the trainer together write a checkpoint into the run directory and
    compute its checksums; a checkpoint has 12 bytes for each parameter.
    """


@dataclass(frozen=True)
class SiteLimits:
    """The limits of a plan on a site; None if the profile states no limit."""

    array_size: int | None = None
    """The maximum number of tasks of one job."""
    tasks: int | None = None
    """The maximum number of tasks of all jobs together that one user may have queued at a time."""
    minutes: int | None = None
    """The maximum time limit of a job, minutes."""
    preemption_notice_s: int | None = None
    """Seconds between the signal of a preemption and the end of the task."""


class SiteSettings(Section):
    """The fields that every site profile has."""

    type: str
    """The kind of site: one that comes with the package, or module:Class of your own."""
    name: Name
    """The name of the profile."""
    environment: dict[EnvironmentName, str] = Field(default_factory=dict)
    """The environment variables of every task; in job scripts their values are quoted."""
    throughput: MeasuredThroughput = MeasuredThroughput()
    """The measured speed of processes on this site."""
    gpu_memory_gib: Gib | None = None
    """The memory of one GPU that a program can use, GiB, as ``nvidia-smi`` shows it. `mrt-hpc plan` compares it with
    what a recipe needs; null takes that of gpu_type, where the name is known.
    """
    group_access: bool = False
    """Whether members of your group may read the runs that are made with this profile; they may never write, and the
    run's secrets stay yours alone.
    """

    notify: tuple[Line, ...] = ()
    """A command that notifies you of a run, as a list of words, as in ``[/home/me/bin/notify]``. It gets two more
    words, the run directory and ``finished``, ``failed`` or ``stuck``, and the reason in ``MRT_HPC_REASON``. The last
    task of a run calls it at the end; other tasks call it once for each cause for which a person should look at the
    run. It runs on the node of the task, which may have no network; Slurm's own mail needs none (``sbatch: {mail-type:
    END}``).
    """

    _read_from: Path | None = PrivateAttr(default=None)

    @property
    def read_from(self) -> Path | None:
        """The file of the profile; None where no file was read."""
        return self._read_from

    def note_file(self, path: Path) -> None:
        """Note the file that the profile was read from, which a run remembers."""
        self._read_from = path.absolute()

    @property
    def limits(self) -> SiteLimits:
        """The limits of a plan on this site."""
        return SiteLimits()

    @property
    def gpu_name(self) -> str:
        """The model of the site's GPUs, as in ``h100``; empty where the profile does not say."""
        return ""


SITES: Registry[SiteSettings] = Registry(
    "site",
    "mrt_hpc.backends.backend:Site",
    {"local": "mrt_hpc.backends.local.site:LocalSite", "slurm": "mrt_hpc.backends.slurm.site:SlurmSite"},
)
