"""Where a process stands among the ranks of its task, and which attempt it is part of."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mrt_hpc.launch.slurm_environment import SlurmTask
from mrt_hpc.recipe.errors import UserError

RANK, WORLD_SIZE, LOCAL_RANK, ATTEMPT, PARENT = (
    "MRT_HPC_RANK",
    "MRT_HPC_WORLD_SIZE",
    "MRT_HPC_LOCAL_RANK",
    "MRT_HPC_ATTEMPT",
    "MRT_HPC_PARENT",
)
"""Set by the local backend for each process that it starts."""


@dataclass(frozen=True)
class Placement:
    """One process of an attempt."""

    rank: int
    world_size: int
    local_rank: int
    attempt: str
    """The same for all ranks of the attempt, another for the next attempt."""

    def environment(self) -> dict[str, str]:
        """What tells a child process its placement."""
        return {
            RANK: str(self.rank),
            WORLD_SIZE: str(self.world_size),
            LOCAL_RANK: str(self.local_rank),
            ATTEMPT: self.attempt,
            PARENT: str(os.getpid()),
        }


def find_placement() -> Placement:
    """The placement that the backend gave this process, the local one or Slurm.

    Raises:
        UserError: neither started it.
    """
    if ATTEMPT in os.environ:
        rank, world_size, local_rank = (int(os.environ[name]) for name in (RANK, WORLD_SIZE, LOCAL_RANK))
        return Placement(rank, world_size, local_rank, os.environ[ATTEMPT])
    task = SlurmTask.from_environment()
    if task is None:
        raise UserError("array tasks are started by the local backend or by Slurm", advice="mrt-hpc submit RECIPE")
    return Placement(task.rank, task.world_size, task.local_rank, f"{task.task_id}-{task.restarts}")
