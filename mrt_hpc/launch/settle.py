"""What becomes of a task whose attempt has ended: whether whoever started it starts it again.

The local backend asks in its own process; on Slurm the job script asks after srun, because an attempt that was killed
for want of memory cannot speak for itself any more:

    python -m mrt_hpc.launch.settle RUN_DIR JOB INDEX EXIT_CODE      ends with a Verdict

It prints the Slurm tasks of which one has to run before this one can go on, a line each; none where it can go on alone.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

from mrt_hpc.launch.ledger import latest_ids
from mrt_hpc.launch.slurm_environment import slurm_task
from mrt_hpc.plan.model import read_plan
from mrt_hpc.recipe.errors import ExitCode, UserError
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.events import event_file, has_progressed, outcomes
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.patience import patiently
from mrt_hpc.run.tasks import TaskRecord, TaskState, read_task, write_task


class Verdict(IntEnum):
    """What the job script is told, as an exit code; any other means that this module itself failed."""

    AGAIN = 0
    """The task is to be run again."""
    OVER = 1
    """It is not."""
    DONE = 3
    """It is done, whatever its process ended with afterwards."""


TOLD_TO_LEAVE = frozenset({128 + signal.SIGTERM, 128 + signal.SIGALRM})
"""Ends without a word that are no failures: SIGTERM came before a process could listen, or another rank was faster to
leave, or leaving took too long (see ``launch.signals``)."""
MOST_AWAITED = 100
"""Tasks named in a dependency: Slurm looks at each of them whenever it schedules."""
RUNS_AGAIN = frozenset({TaskState.GAVE_BACK, TaskState.RETRYING, TaskState.STOPPED})
"""A task that was stopped from outside is started again only by those who know that nobody meant it to stay away."""


def settled(layout: RunLayout, job: str, index: int, attempt: str, exit_code: int, retries: int) -> TaskRecord:
    """The last word on an attempt that has ended: its own, or else that it ended without one, which counts as a
    failure.

    Args:
        layout: the run directory.
        job: the job's name in the plan.
        index: the task's index within the job.
        attempt: its name.
        exit_code: of the attempt; 128 and the signal's number for one that was killed.
        retries: failures in a row that a task may have.
    """
    record = read_task(layout, job, index)
    if comes_after(record.attempt, attempt):
        return record
    if exit_code == ExitCode.GIVE_BACK and record.state not in (TaskState.DONE, TaskState.RETRYING, TaskState.FAILED):
        return replace(record, state=TaskState.GAVE_BACK)  # also where a full disk has kept it from saying so
    silent = record.attempt != attempt or record.state in (TaskState.RUNNING, TaskState.WAITING)
    if silent and record.state is not TaskState.DONE:
        message = f"ended with exit code {exit_code} without a word (137: killed, often for want of memory)"
        progressed = has_progressed(event_file(layout.events, job, index, 0, attempt))
        record = replace(record, attempt=attempt)
        if exit_code in TOLD_TO_LEAVE and not _any_failed(layout, job, index, attempt):
            record = replace(record, state=TaskState.STOPPED, failures=0 if progressed else record.failures)
        else:
            record = record.failed(message, ExitCode.RETRYABLE, retries, progressed=progressed)
        patiently(lambda: write_task(layout, job, index, record), "the state of the task")
    return record


def _any_failed(layout: RunLayout, job: str, index: int, attempt: str) -> bool:
    """Whether some rank of the attempt said that it failed."""
    said = outcomes(layout.events, job, index, attempt)
    return not said.isdisjoint({TaskState.FAILED.value, TaskState.RETRYING.value})


def awaited_tasks(layout: RunLayout, record: TaskRecord) -> list[str]:
    """Slurm's names of the tasks that a task which gave its nodes back waits for, without those that are over.

    Raises:
        UserError: the plan, or the state of a task, cannot be read.
    """
    if record.state is not TaskState.GAVE_BACK or not record.awaited:
        return []
    ids = latest_ids(layout)
    jobs = [job for job in read_plan(layout.plan).jobs if job.name in record.awaited and job.name in ids]
    return [
        f"{ids[job.name]}_{index}" if job.tasks > 1 else ids[job.name]
        for job in jobs
        for index in range(job.tasks)
        if read_task(layout, job.name, index).state not in (TaskState.DONE, TaskState.FAILED)
    ][:MOST_AWAITED]


def comes_after(attempt: str, other: str) -> bool:
    """Whether an attempt is a later one of the same Slurm task: their names end in how often it was started again."""
    (task, _, restarts), (other_task, _, other_restarts) = attempt.rpartition("."), other.rpartition(".")
    return bool(task) and task == other_task and int(restarts) > int(other_restarts)


def main(arguments: list[str]) -> int:
    """A Verdict."""
    run_dir, job, index, exit_code = arguments
    layout = RunLayout(Path(run_dir))
    try:
        retries = read_recipe_lock(layout.recipe_lock).resilience.retries
        record = settled(layout, job, int(index), slurm_task().attempt, int(exit_code), retries)
        print(*awaited_tasks(layout, record), sep="\n")
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return Verdict.OVER
    print(f"task {index} of {job}: {record.state}, {record.failures} failure(s)", file=sys.stderr)
    if record.state is TaskState.DONE:
        return Verdict.DONE
    return Verdict.AGAIN if record.state in RUNS_AGAIN else Verdict.OVER


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
