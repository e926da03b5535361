"""submitit pickles for an array only the path of a function and two strings, no part of the run itself. One pickle
serves all tasks of an array; each takes its index from Slurm. Roles are idempotent, so no state is passed from one
attempt to the next.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from submitit.core.utils import DelayedSubmission

from mrt_hpc.errors import UserError
from mrt_hpc.launch.entry import RoleFunction, run_task
from mrt_hpc.launch.placement import Placement
from mrt_hpc.launch.slurm.environment import slurm_task
from mrt_hpc.launch.slurm.watch import QueueWatch
from mrt_hpc.run.layout import RunLayout

TaskFunction = Callable[[str, str, int], None]
"""``function(run directory, job name, index in the job's array)``."""

RUN_TASK = "mrt_hpc.launch.slurm.call:run_plan_task"
"""The function that every job of a plan runs."""


def run_plan_task(run_dir: str, job_name: str, index: int, role: RoleFunction | None = None) -> None:
    """Run this process's part of a plan's task; ``role`` as in :func:`mrt_hpc.launch.entry.run_task`.

    Raises:
        SystemExit: the role failed in a way that it can explain; the exit code says whether running again may help.
    """
    try:
        run_task(run_dir, job_name, index, slurm_placement(), role, queue_watch(run_dir))
    except UserError as error:
        print(error.message(), file=sys.stderr, flush=True)
        sys.exit(int(error.exit_code))


def queue_watch(run_dir: str) -> QueueWatch:
    """Return the watch that checks whether the jobs that this task waits for have left the queue.

    Raises:
        UserError: called outside Slurm.
    """
    task = slurm_task()
    return QueueWatch(RunLayout(Path(run_dir)), task.array_job_id or task.job_id)


def slurm_placement() -> Placement:
    """This process among the ranks of its task.

    Raises:
        UserError: called outside Slurm.
    """
    task = slurm_task()
    left = None if task.ends_at is None else task.ends_at - time.time()
    return Placement(task.rank, task.world_size, task.local_rank, task.attempt, left, task.began_at)


@dataclass(frozen=True)
class TaskCall:
    """Calls ``function(run_dir, job_name, index)`` in each task of an array."""

    function: str
    """As in ``package.module:name``."""
    run_dir: str
    job_name: str

    def __call__(self) -> None:
        """Call the function in this task.

        Raises:
            UserError: called outside Slurm.
        """
        self.resolve()(self.run_dir, self.job_name, slurm_task().array_index)

    def resolve(self) -> TaskFunction:
        """Import the function.

        Raises:
            ImportError: no such module; AttributeError: no such name in it.
        """
        module, _, name = self.function.partition(":")
        return cast("TaskFunction", getattr(import_module(module), name))

    def checkpoint(self) -> DelayedSubmission:
        """For submitit: repeat the same call if a signal arrives before the task has its own handlers."""
        return DelayedSubmission(self)
