"""The rank of a process within its task, and the attempt that it belongs to."""

import os
from dataclasses import dataclass

from mrt_hpc.errors import UserError

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
        return {
            RANK: str(self.rank),
            WORLD_SIZE: str(self.world_size),
            LOCAL_RANK: str(self.local_rank),
            ATTEMPT: self.attempt,
            PARENT: str(os.getpid()),
        }


def local_placement() -> Placement:
    if ATTEMPT not in os.environ:
        raise UserError("this process was not started as a task of a run", advice="mrt-hpc submit RECIPE")
    rank, world_size, local_rank = (int(os.environ[name]) for name in (RANK, WORLD_SIZE, LOCAL_RANK))
    return Placement(rank, world_size, local_rank, os.environ[ATTEMPT])
