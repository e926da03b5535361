"""Reads the identity of a task from Slurm's environment variables, with the standard library and no command of Slurm:
tasks read it before anything heavy is imported.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from mrt_hpc.errors import UserError

BEGAN_AT = "MRT_HPC_BEGAN_AT"
"""Set when the job script starts: Slurm gives it from version 23.02 on only."""
ENDS_AT = "MRT_HPC_ENDS_AT"
"""See ``BEGAN_AT``."""


@dataclass(frozen=True)
class SlurmTask:
    """One process of an array task."""

    job_id: str
    """Differs from the id that sbatch printed for an array."""
    array_job_id: str | None
    """The id that sbatch printed."""
    array_index: int
    """0 for a job without an array."""
    rank: int
    """The number within the task."""
    world_size: int
    local_rank: int
    """The number within the node."""
    node: str
    restarts: int
    ends_at: float | None
    """The time limit, seconds since the epoch; None where the job script does not say."""
    began_at: float | None = None
    """Seconds since the epoch."""

    @property
    def task_id(self) -> str:
        """The id that squeue, sacct and scontrol know: ``1234`` or ``1234_5``."""
        return self.job_id if self.array_job_id is None else f"{self.array_job_id}_{self.array_index}"

    @property
    def attempt(self) -> str:
        return f"{self.task_id}.{self.restarts}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        variables = os.environ if environment is None else environment
        job_id = variables.get("SLURM_JOB_ID")
        if not job_id:
            return None
        return cls(
            job_id=job_id,
            array_job_id=variables.get("SLURM_ARRAY_JOB_ID"),
            array_index=_whole(variables, "SLURM_ARRAY_TASK_ID", 0),
            rank=_whole(variables, "SLURM_PROCID", 0),
            world_size=_whole(variables, "SLURM_NTASKS", 1),
            local_rank=_whole(variables, "SLURM_LOCALID", 0),
            node=variables.get("SLURMD_NODENAME") or os.uname().nodename,
            restarts=_whole(variables, "SLURM_RESTART_COUNT", 0),
            ends_at=_whole(variables, ENDS_AT, 0) or None,
            began_at=_whole(variables, BEGAN_AT, 0) or None,
        )


def slurm_task() -> SlurmTask:
    """A UserError outside Slurm."""
    task = SlurmTask.from_environment()
    if task is None:
        raise UserError("a Slurm task was started outside Slurm", advice="use `mrt-hpc submit`")
    return task


def _whole(variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise UserError(
            "a variable of Slurm's environment is not a whole number",
            value=text,
            where=name,
            advice="start tasks with `mrt-hpc submit`, without setting SLURM_* variables by hand",
        ) from None
