"""What submitit pickles for an array: the path of a function and two strings, nothing of the run itself.

One pickle serves all tasks of an array; each takes its index from Slurm. A task that is signalled before preemption or
its time limit asks to be run again as it is: roles are idempotent, so there is no state to carry over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from submitit.core.utils import DelayedSubmission

from mrt_hpc.launch.slurm_environment import SlurmTask
from mrt_hpc.recipe.errors import UserError

TaskFunction = Callable[[str, str, int], int | None]
"""``run_task(run_dir, job_name, task_index) -> exit code``; None is success."""

RUN_TASK = "mrt_hpc.launch.task:run_task"
"""The function that every job of a plan runs."""


@dataclass(frozen=True)
class TaskCall:
    """Calls ``function(run_dir, job_name, index)`` in each task of an array."""

    function: str
    """As in ``package.module:name``."""
    run_dir: str
    job_name: str

    def __call__(self) -> None:
        """Run the task; an exit code other than 0 ends the process with it, so that Slurm records it.

        Raises:
            UserError: called outside Slurm.
            SystemExit: the function returned an exit code other than 0.
        """
        task = SlurmTask.from_environment()
        if task is None:
            raise UserError(
                "a Slurm task was started outside Slurm", value=self.job_name, advice="use `mrt-hpc submit`"
            )
        code = self.resolve()(self.run_dir, self.job_name, task.array_index)
        if code:
            sys.exit(int(code))

    def resolve(self) -> TaskFunction:
        """Import the function.

        Raises:
            ImportError: no such module; AttributeError: no such name in it.
        """
        module, _, name = self.function.partition(":")
        return cast("TaskFunction", getattr(import_module(module), name))

    def checkpoint(self) -> DelayedSubmission:
        """For submitit, before a requeue: the same call again."""
        return DelayedSubmission(self)
