"""Runs one task of a plan to its end, all of its ranks on this machine, as often as the recipe's retries allow.

    python -m mrt_hpc.launch.one_task RUN_DIR JOB INDEX

This is what the jobs of a back end start whose queue knows a job script and its exit code, and nothing more. (Slurm's
job scripts do more: they queue a task again under its id.) The exit code is 0 for a task that is done.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.launch.attempt_end import RUNS_AGAIN, settled
from mrt_hpc.launch.ranks import start_ranks, stop, task_code
from mrt_hpc.launch.stuck import tell_failure
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.lock import look_at_lock
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import Job
    from mrt_hpc.run.task_state import TaskRecord

LOOK_EVERY_S = 0.1
"""The seconds between two checks of the task's processes."""


def run_one_task(layout: RunLayout, job: Job, index: int, retries: int) -> TaskRecord:
    """Run a task until it is done, or has failed more often than its retries allow.

    Args:
        layout: of the run.
        job: of the plan.
        index: of the task within the job.
        retries: failures in a row that the task may have.

    Returns:
        The last record of the task.

    Raises:
        KeyboardInterrupt: this process got SIGINT or SIGTERM; the processes of the task have ended.
    """
    while True:
        attempt, code = _run_attempt(layout, job, index)
        record = settled(layout, job.name, index, attempt, code, retries)
        if record.state not in RUNS_AGAIN:
            tell_failure(layout, job.name, index, record)
            return record


def _run_attempt(layout: RunLayout, job: Job, index: int) -> tuple[str, int]:
    """Run one attempt, and return its name and exit code; if one rank fails, all ranks are stopped."""
    safe_path = {"PYTHONSAFEPATH": "1"}  # the working directory of the job holds no modules of ours
    threads = {"OMP_NUM_THREADS": str(job.resources.cpus_per_rank)}
    task = start_ranks(layout, job, index, {**safe_path, **threads, **os.environ})
    try:
        while None in (codes := task.exit_codes()) and not any(codes):
            time.sleep(LOOK_EVERY_S)
    finally:
        stop(task)
    return task.attempt, task_code([code for code in codes if code is not None])


def main(arguments: list[str]) -> int:
    """Run the task that the arguments name; returns the exit code."""
    run_dir, name, index = arguments
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    layout = RunLayout(Path(run_dir).absolute())
    try:
        retries = look_at_lock(layout.recipe_lock).resilience.retries
        record = run_one_task(layout, read_plan(layout.plan).job(name), int(index), retries)
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK if record.state is TaskState.DONE else ExitCode.RETRYABLE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
