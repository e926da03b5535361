"""The processes of one task on this machine: a child of this process for each rank."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.attempt.early_end import settle
from mrt_hpc.attempt.placement import Placement, task_command
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import Job, read_plan
from mrt_hpc.recipe.find import absolute
from mrt_hpc.recipe.lock import look_at_lock
from mrt_hpc.run.access import cache_variables
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.process import end_or_kill, start_process
from mrt_hpc.run.task_state import RUNS_AGAIN, TaskRecord, TaskState

THREADS_THAT_WAIT = {"OMP_WAIT_POLICY": "passive"}
"""By default the threads of a computation spin while they wait for each other: on shared cores this takes 5 to 20 times
as long.
"""
STOP_DEADLINE_S = 30.0
"""Seconds for a child to unwind after SIGTERM, before it is killed."""


@dataclass
class Running:
    job: Job
    index: int
    attempt: str
    children: list[subprocess.Popen[bytes]]
    gpus: list[str] = field(default_factory=list)

    def exit_codes(self) -> list[int | None]:
        """A rank that runs has None."""
        return [child.poll() for child in self.children]


def start_ranks(
    layout: RunLayout, job: Job, index: int, environment: Mapping[str, str], gpus: Sequence[str] = ()
) -> Running:
    """Each rank has a log of its own, and its placement added to ``environment``. ``gpus`` are names of the GPUs that
    the task has taken.
    """
    task = Running(job, index, uuid.uuid4().hex[:8], [], list(gpus))
    words, whole = task_command(layout, job.name, index), {**THREADS_THAT_WAIT, **cache_variables(), **environment}
    for rank in range(job.resources.ranks):
        log = layout.logs / f"{job.name}.{index:05d}.{task.attempt}.rank{rank}.log"
        place = Placement(rank, job.resources.ranks, rank, task.attempt)
        task.children.append(start_process(words, log, {**whole, **place.environment()}))
    return task


def task_code(codes: Sequence[int]) -> int:
    """The code is 128 and the signal's number where a rank was killed."""
    return max(128 - code if code < 0 else code for code in codes)  # a child killed by signal n ends with -n


def ask_to_stop(task: Running) -> None:
    for child in task.children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)


def stop(task: Running) -> None:
    """Ask a task's processes to end, and kill those that do not within the deadline."""
    ask_to_stop(task)
    end = time.monotonic() + STOP_DEADLINE_S
    for child in task.children:
        end_or_kill(child, max(0.0, end - time.monotonic()))


# -- one task ----------------------------------------------------------------------------------------------------------
# Runs one task of a plan to its end, all of its ranks on this machine, as often as the recipe's retries allow.
#
#     python -m mrt_hpc.attempt.ranks RUN_DIR JOB INDEX
#
# This is what the jobs of a back end start whose queue knows a job script and its exit code, and nothing more. (Slurm's
# job scripts do more: they queue a task again under its id.) The exit code is 0 for a task that is done.


LOOK_EVERY_S = 0.1


def run_one_task(layout: RunLayout, job: Job, index: int, retries: int) -> TaskRecord:
    """Run a task until it is done, or has failed more often than its retries allow, and return its last record. A
    KeyboardInterrupt for SIGINT or SIGTERM comes after the processes of the task have ended.
    """
    while True:
        attempt, code = _run_attempt(layout, job, index)
        record = settle(layout, job.name, index, attempt, code, retries)
        if record.state not in RUNS_AGAIN:
            return record


def _run_attempt(layout: RunLayout, job: Job, index: int) -> tuple[str, int]:
    """If one rank fails, all ranks are stopped."""
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
    run_dir, name, index = arguments
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    layout = RunLayout(absolute(Path(run_dir)))
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
