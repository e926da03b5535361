"""Decides whether a task whose attempt has ended is started again.

Without a queue the process that runs the plan asks here; on Slurm the job script does (see
:mod:`mrt_hpc.backends.slurm.after_srun`), because an attempt that was killed, by the kernel for lack of memory for
example, cannot record its own outcome.
"""

import re
import signal
from contextlib import suppress
from dataclasses import replace

from mrt_hpc.errors import ExitCode
from mrt_hpc.run.events import has_progressed, outcomes
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import retrying
from mrt_hpc.run.task_state import MOST_RETURNS, TaskRecord, TaskState, read_task, write_task

TOLD_TO_LEAVE = frozenset({128 + signal.SIGTERM, 128 + signal.SIGALRM})
"""Exit codes that are no failures even though the attempt recorded no outcome: SIGTERM arrived before the process had
its handlers, another rank ended first, or leaving took too long (see ``attempt.entry``).
"""
MEANINGS = (
    "137: killed, often because memory ran out; 135: a bus error, because /dev/shm is full, or because a signal has "
    "ended the mount of the image: container.unpack of the site profile"
)
"""What exit codes of attempts that were killed often mean."""
_ATTEMPT = re.compile(r"(\d+)(?:_\d+)?\.(\d+)")
STOPPED = (
    "stopped from outside: preempted, cancelled, or interrupted by its user\n"
    "  next:     nothing where Slurm queues it again; otherwise mrt-hpc submit RUN continues the run"
)
RUNS_AGAIN = frozenset({TaskState.GAVE_BACK, TaskState.RETRYING, TaskState.STOPPED})
"""The states after which a task is started again; a stopped task only if no user stopped it."""


def settled(layout: RunLayout, job: str, index: int, attempt: str, exit_code: int, retries: int) -> TaskRecord:
    """Return the final record of an attempt that has ended: its own record, or a failure where it recorded no outcome.

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
    said = record.attempt == attempt and record.state in (TaskState.DONE, TaskState.RETRYING, TaskState.FAILED)
    if exit_code == ExitCode.GIVE_BACK and not said and record.state is not TaskState.DONE:
        return _gave_back(layout, job, index, replace(record, attempt=attempt), record)
    silent = record.attempt != attempt or record.state in (TaskState.RUNNING, TaskState.WAITING)
    if silent and record.state is not TaskState.DONE:
        message = f"ended with exit code {exit_code} and wrote no reason ({MEANINGS})"
        progressed = has_progressed(layout.events, job, index, attempt)
        record = replace(record, attempt=attempt)
        if exit_code in TOLD_TO_LEAVE and not _any_failed(layout, job, index, attempt):
            record = record.returned(TaskState.STOPPED, STOPPED, MOST_RETURNS, progressed=progressed)
        else:
            record = record.failed(message, ExitCode.RETRYABLE, retries, progressed=progressed)
        retrying(lambda: write_task(layout, job, index, record), "the state of the task")
    return record


def _gave_back(layout: RunLayout, job: str, index: int, record: TaskRecord, said: TaskRecord) -> TaskRecord:
    """The record of an attempt that returned its nodes, also where a full disk has kept it from saying so."""
    if said == replace(record, state=TaskState.GAVE_BACK):
        return said
    progressed = has_progressed(layout.events, job, index, record.attempt)
    record = record.returned(TaskState.GAVE_BACK, record.message, MOST_RETURNS, progressed=progressed)
    with suppress(OSError):
        write_task(layout, job, index, record)
    return record


def _any_failed(layout: RunLayout, job: str, index: int, attempt: str) -> bool:
    """Whether some rank of the attempt recorded a failure."""
    said = outcomes(layout.events, job, index, attempt)
    return not said.isdisjoint({TaskState.FAILED.value, TaskState.RETRYING.value})


def job_of(attempt: str) -> str | None:
    """The id of the job of an attempt in the queue; None for an attempt of the local backend."""
    match = _ATTEMPT.fullmatch(attempt)
    return None if match is None else match[1]


def comes_after(attempt: str, other: str) -> bool:
    """Return whether an attempt is a later one of the same Slurm task, or of a task that was submitted later: their
    names are the id of the job, the index in its array, and how often it was started again.
    """
    first, second = _ATTEMPT.fullmatch(attempt), _ATTEMPT.fullmatch(other)
    if first is None or second is None:  # of the local backend, which has one attempt at a time
        return False
    return tuple(map(int, first.groups())) > tuple(map(int, second.groups()))
