"""Reads the identity of a task from Slurm's environment variables. Standard library only, and no command of Slurm is
run: tasks read it before anything heavy is imported, and the job script in between.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from mrt_hpc.errors import UserError

BEGAN_AT = "MRT_HPC_BEGAN_AT"
"""Set by the job script when it starts: Slurm itself gives the start of a job from version 23.02 on only."""
ENDS_AT = "MRT_HPC_ENDS_AT"
"""Set by the job script when it starts: Slurm itself gives the end of a job from version 23.02 on only."""


@dataclass(frozen=True)
class SlurmTask:
    """One process of one array task."""

    job_id: str
    """Slurm's own id of this task; for an array task it differs from the id that sbatch printed."""
    array_job_id: str | None
    """Id that sbatch printed, for a task of an array."""
    array_index: int
    """Index in the array; 0 for a job without one."""
    rank: int
    """Number of this process among all of the task."""
    world_size: int
    """Processes of the task."""
    local_rank: int
    """Number of this process among those on its node."""
    node: str
    """Name of the node, as Slurm knows it."""
    restarts: int
    """How often Slurm has started this task again."""
    ends_at: float | None
    """Seconds since the epoch, when the time limit is reached; None where the job script does not say."""
    began_at: float | None = None
    """Seconds since the epoch, when the job started; None where the job script does not say."""

    @property
    def task_id(self) -> str:
        """Id in the form that squeue, sacct and scontrol print and accept: ``1234`` or ``1234_5``."""
        return self.job_id if self.array_job_id is None else f"{self.array_job_id}_{self.array_index}"

    @property
    def attempt(self) -> str:
        """Name of this attempt: the task's id and how often it was started again."""
        return f"{self.task_id}.{self.restarts}"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """The task this process belongs to, or None outside Slurm.

        Raises:
            UserError: a variable that Slurm sets to a whole number holds something else.
        """
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
    """The task this process belongs to.

    Raises:
        UserError: called outside Slurm.
    """
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
