"""The fields of every site profile: where jobs run, and the limits of a plan there. A site profile never changes a
run's results. Fields of one kind of site are defined with its back end, see :mod:`mrt_hpc.backends.backend`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PrivateAttr

from mrt_hpc.errors import word
from mrt_hpc.recipe import find
from mrt_hpc.recipe.base import VARIABLE, Gib, Name, Rate, Section
from mrt_hpc.recipe.ownership import Opened, refuse_changeable
from mrt_hpc.recipe.registry import Registry

_SECRET = re.compile("TOKEN|KEY|SECRET|PASS", re.IGNORECASE)
EnvironmentName = Annotated[str, Field(pattern=VARIABLE)]


class MeasuredThroughput(Section):
    """Rates that were measured on this site, for the estimate of ``mrt-hpc plan``; the report of a run shows them."""

    sampled_tokens_per_second: Rate | None = None
    """The tokens per second that one inference task samples on all its GPUs; null takes a stated rate of the GPU, if
    any. An evaluation's task is expected to sample in proportion to its GPUs, and 2.4 times as fast, as it keeps all
    slots of its servers taken.
    """
    trained_tokens_per_second: Rate | None = None
    """The tokens per second that one rank of the trainer computes; null takes a stated rate of the GPU, if any."""
    checkpoint_gb_per_second: Rate = 1.0
    """The gigabytes per second at which the ranks of the trainer together write a checkpoint into the run directory and
    compute its checksums; a checkpoint has 12 bytes for each parameter.
    """


@dataclass(frozen=True)
class SiteLimits:
    """The limits of a plan on a site; None if the profile states none."""

    array_size: int | None = None
    """The most tasks of one job."""
    tasks: int | None = None
    """The most tasks of all jobs that one user may have queued."""
    minutes: int | None = None
    """The longest time limit of a job."""
    preemption_notice_s: int | None = None
    """The seconds between the signal of a preemption and the end of the task."""
    node_gpus: int | None = None
    """GPUs of a node that a job is charged for; None where it is charged for those it asks for."""


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

    _read_from: Path | None = PrivateAttr(default=None)
    _file: Opened | None = PrivateAttr(default=None)

    @property
    def read_from(self) -> Path | None:
        """The profile's file; None where no file was read."""
        return self._read_from

    @property
    def file(self) -> Opened | None:
        """The file as it was opened."""
        return self._file

    @property
    def text(self) -> str | None:
        return None if self._file is None else self._file.content.decode()

    def note_file(self, path: Path, file: Opened | None) -> None:
        """Note the profile's file, which a run remembers with its content."""
        self._read_from, self._file = find.absolute(path), file

    def refuse_foreign(self, what: str, instead: str = "type the same command with") -> None:
        """Refuse this profile where another user can change its file, as it names commands. Those of the package are as
        safe as the package.

        Args:
            what: a sentence about the profile.
            instead: what to do beside making a copy of it.
        """
        path = self._read_from
        if self._file is not None and path is not None and not find.is_of_the_package(path):
            copy = find.configuration() / find.SITES.folder / path.name
            own = f"a copy of your own: cp {word(path)} {word(copy)}"
            refuse_changeable(self._file, what, f"read what is there; then {instead} {own}")

    def refuse_to_run_here(self) -> None:
        """Refuse to run commands of this profile on the machine on which it was named, as :meth:`refuse_foreign`. Whose
        path the user has typed is taken for jobs alone.
        """
        self.refuse_foreign("no command of this site profile is run on this machine")

    def hide_secrets(self) -> Self:
        """For display: values are hidden of variables whose names say that they are secret."""
        shown = {name: "..." if _SECRET.search(name) else value for name, value in self.environment.items()}
        return self.model_copy(update={"environment": shown})

    @property
    def limits(self) -> SiteLimits:
        return SiteLimits()

    @property
    def gpu_name(self) -> str:
        """As in ``h100``; empty where the profile does not say."""
        return ""


SITES: Registry[SiteSettings] = Registry(
    "site",
    "mrt_hpc.backends.backend:Site",
    {"local": "mrt_hpc.backends.local.site:LocalSite", "slurm": "mrt_hpc.backends.slurm.site:SlurmSite"},
)
