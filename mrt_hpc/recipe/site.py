"""What every site profile says: where jobs run, and what the plan of a run has to keep to there. It never changes a
run's result.

What is particular to one kind of site (this machine, a Slurm cluster) stands with its back end, see
:mod:`mrt_hpc.launch.backend`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from mrt_hpc.recipe.base import VARIABLE, Name, PositiveFloat, Section

EnvironmentName = Annotated[str, Field(pattern=VARIABLE)]


class MeasuredThroughput(Section):
    """Rates that were measured on this site, for the estimate of ``mrt-hpc plan``; the report of a run tells them."""

    sampled_tokens_per_second: PositiveFloat | None = None
    """The tokens per second that one inference process samples; null takes a stated rate of the GPU, if any."""
    trained_tokens_per_second: PositiveFloat | None = None
    """The tokens per second that one rank of the trainer computes; null takes a stated rate of the GPU, if any."""
    checkpoint_gb_per_second: PositiveFloat = 1.0
    """The gigabytes per second at which the ranks of the trainer together write a checkpoint into the run directory and
    compute its checksums; a checkpoint has 12 bytes for each parameter.
    """


@dataclass(frozen=True)
class SiteLimits:
    """What a plan has to keep to on a site; None where the profile states no limit."""

    array_size: int | None = None
    """Tasks of one job, at most."""
    tasks: int | None = None
    """Tasks of all jobs together that one user may have queued at a time."""
    minutes: int | None = None
    """Time limit of a job, at most."""
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
    group_access: bool = False
    """Whether members of your group may read the runs that are made with this profile; they may never write, and the
    run's secrets stay yours alone.
    """

    @property
    def limits(self) -> SiteLimits:
        """What a plan has to keep to."""
        return SiteLimits()

    @property
    def gpu_name(self) -> str:
        """The model of the site's GPUs, as in ``h100``; empty where the profile does not say."""
        return ""
