"""Decides what becomes of a task when an attempt at it has ended: :func:`next_state`, and the facts that it needs.

Three places gather the facts and write the record: the process of the role (``attempt.entry``); its starter, where that
recorded no end (``attempt.early_end``); the job script, where Slurm does not start the task again
(``backends.slurm.after_srun``). ARCHITECTURE.md has the table.
"""

import signal
from dataclasses import dataclass, replace
from enum import StrEnum

from mrt_hpc.attempt.ledger import job_of
from mrt_hpc.errors import ExitCode
from mrt_hpc.run.layout import AGAIN
from mrt_hpc.run.task_state import RUNS_AGAIN, TaskRecord, TaskState

MOST_RETURNS = 24
"""Attempts in a row that may return their nodes and finish nothing: a task that waits for others, or for room on a
disk, waits for minutes to hours in each.
"""
TOLD_TO_LEAVE = frozenset({128 + signal.SIGTERM, 128 + signal.SIGALRM})
"""Exit codes that are no failures although the attempt recorded no end: SIGTERM arrived before the process had its
handlers, another rank ended first, or leaving took too long.
"""


class EndKind(StrEnum):
    DONE = "done"
    RETURNED = "returned"
    """It was asked for its nodes, or waits for room on a disk or for others."""
    STOPPED = "stopped"
    """It was stopped from outside (preempted, cancelled, Ctrl-C), and says so."""
    LEFT = "left"
    """It was told to leave, and recorded no end."""
    FAILED = "failed"
    """It failed, and another attempt may help."""
    FATAL = "fatal"
    """It failed, and another attempt cannot help."""
    NOT_QUEUED = "not queued"
    """Slurm does not start it again, or nothing that it waits for is queued any more."""


@dataclass(frozen=True)
class Ending:
    kind: EndKind
    attempt: str
    message: str = ""
    """The error, or the reason why the attempt returned its nodes."""
    progressed: bool = False
    """Whether it has produced a result that stays."""
    retries: int = 0
    """Failures in a row that a task may have."""
    awaited: tuple[str, ...] = ()
    """The jobs that do not run (it returned its nodes), or that failed (it failed)."""
    finished: int = 0
    """The number of results of its segment, where it awaits jobs."""
    worked: bool = False
    """Whether it worked when it was asked for its nodes, and did not wait."""
    near_limit: str = ""
    """The recipe's field with the time limit, where that was near."""


_STATES = {
    EndKind.DONE: TaskState.DONE, EndKind.RETURNED: TaskState.GAVE_BACK, EndKind.STOPPED: TaskState.STOPPED,
    EndKind.LEFT: TaskState.STOPPED, EndKind.FAILED: TaskState.RETRYING, EndKind.FATAL: TaskState.FAILED,
    EndKind.NOT_QUEUED: TaskState.FAILED,
}  # fmt: skip
"""The state after each kind of end, unless it has come too often."""


def next_state(record: TaskRecord, ending: Ending) -> TaskRecord:
    """A final record stays as it is."""
    was_to_run = record.attempt == ending.attempt and record.state in RUNS_AGAIN
    if not (was_to_run if ending.kind is EndKind.NOT_QUEUED else is_open(record, ending.attempt)):
        return record
    if ending.kind is EndKind.RETURNED and ending.near_limit and ending.worked and not ending.progressed:
        # a second attempt would end in the same way
        longer = f"{AGAIN} --set {ending.near_limit}=MINUTES, more than now"
        why = f"the time limit came before anything was finished\n  next:     {longer}"
        ending = replace(ending, kind=EndKind.FAILED, message=why)
    state = _STATES[ending.kind]
    message = stop_message(ending.attempt) if state is TaskState.STOPPED else ending.message
    after = replace(record, state=state, attempt=ending.attempt, message=message, awaited=ending.awaited)
    if ending.kind in (EndKind.FAILED, EndKind.FATAL):
        failures = 1 if ending.progressed else record.failures + 1
        return replace(after, state=state if failures <= ending.retries else TaskState.FAILED, failures=failures)
    return _bounded_record(replace(after, failures=0, returns=0) if ending.progressed else after, ending)


def stop_message(attempt: str) -> str:
    """Why an attempt was stopped, and what to type next."""
    if job_of(attempt) is None:
        return f"interrupted, or cancelled\n  next:     {AGAIN}, which continues the run"
    return (
        "stopped from outside: preempted, cancelled, interrupted by its user, or at its time limit\n"
        f"  next:     nothing where Slurm queues it again; otherwise {AGAIN}, which continues the run"
    )


def _bounded_record(after: TaskRecord, ending: Ending) -> TaskRecord:
    """The record after an end that is no failure; too many in a row that finish nothing are one."""
    times, most = 0, MOST_RETURNS
    if ending.kind is EndKind.RETURNED and ending.awaited:
        times = after.waits + 1 if after.finished == ending.finished else 1
        after = replace(after, waits=times, finished=ending.finished)
    elif ending.kind in (EndKind.RETURNED, EndKind.LEFT) and not ending.progressed:
        times, most = after.returns + 1, 2 * max(1, ending.retries) if ending.worked else most
        after = replace(after, returns=times)
    if times <= most:
        return after
    why = after.message.partition("\n")[0] or "no reason was recorded"
    advice = f"{AGAIN}; if it had work, with --set resources.ROLE.time_limit_minutes=MINUTES, more than now"
    message = f"{times} attempts in a row have finished nothing; the last one: {why}\n  next:     {advice}"
    return replace(after, state=TaskState.FAILED, message=message)


def is_open(record: TaskRecord, attempt: str) -> bool:
    """Whether the end has yet to be recorded: the first record is kept."""
    is_other = record.attempt != attempt
    return record.state in (TaskState.RUNNING, TaskState.WAITING) or (is_other and record.state is not TaskState.DONE)


def kind_of_code(exit_code: int, said: set[str]) -> EndKind:
    """A code of 128 and more names a signal. ``said`` is what the ranks recorded: one that failed is not hidden by one
    that leaves.
    """
    if exit_code == ExitCode.GIVE_BACK:
        return EndKind.RETURNED
    failed = said & {TaskState.FAILED, TaskState.RETRYING}
    return EndKind.LEFT if exit_code in TOLD_TO_LEAVE and not failed else EndKind.FAILED
