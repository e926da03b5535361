"""The rank of a process within its task, and the attempt that it belongs to."""

import os
import sys
from dataclasses import dataclass

from mrt_hpc.errors import UserError
from mrt_hpc.run.layout import RunLayout

RANK, WORLD_SIZE, LOCAL_RANK = "MRT_HPC_RANK", "MRT_HPC_WORLD_SIZE", "MRT_HPC_LOCAL_RANK"
ATTEMPT, PARENT = "MRT_HPC_ATTEMPT", "MRT_HPC_PARENT"
"""Set by the local backend for each process that it starts."""


@dataclass(frozen=True)
class Placement:
    rank: int
    world_size: int
    local_rank: int
    attempt: str
    """The same for all its ranks, and different for the next attempt."""
    time_left_s: float | None = None
    """Seconds to the time limit; None where there is none."""
    began: float | None = None
    """When the attempt's job started, seconds since the epoch; None where that is not known."""

    def environment(self) -> dict[str, str]:
        numbers = {RANK: self.rank, WORLD_SIZE: self.world_size, LOCAL_RANK: self.local_rank, PARENT: os.getpid()}
        return {ATTEMPT: self.attempt, **{name: str(number) for name, number in numbers.items()}}


def task_command(layout: RunLayout, job: str, index: int) -> list[str]:
    """What starts a rank of a task on this machine."""
    return [sys.executable, "-m", "mrt_hpc.attempt.entry", str(layout.root), job, str(index)]


def local_placement() -> Placement:
    if ATTEMPT not in os.environ:
        raise UserError("this process was not started as a task of a run", advice="mrt-hpc submit RECIPE")
    rank, world_size, local_rank = (int(os.environ[name]) for name in (RANK, WORLD_SIZE, LOCAL_RANK))
    return Placement(rank, world_size, local_rank, os.environ[ATTEMPT])
