"""The signal handlers of a task: SIGTERM stops it, SIGUSR2 makes it return its nodes.

Slurm sends SIGTERM before it preempts or cancels, and SIGUSR2 some time before the time limit (on some sites also
before a preemption). Both unwind the task, so that servers end and leases are free at once; a role may ask for a safe
point first (:mod:`mrt_hpc.roles.task.shutdown`).
"""

import signal

from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested

UNWIND_DEADLINE_S = 30
"""The task's seconds to stop its server and end; then the kernel ends it, in case a library has caught the exception.
"""
LAST_MOMENT_S = 40.0
"""Seconds before the time limit at which a task must end without its safe point: a job that Slurm ends at its limit is
not queued again.
"""


def heed_signals(task: Task) -> None:
    """Install the handlers, for the rest of this process."""
    signal.signal(signal.SIGTERM, lambda number, _: _stop(task, number))
    signal.signal(signal.SIGUSR2, lambda _number, _frame: _give_back(task))


def _stop(task: Task, number: int) -> None:
    if _ask_to_leave(task, Interrupted(128 + number)):
        signal.alarm(0)  # the sender of the signal ends what takes too long


def _ask_to_leave(task: Task, request: Interrupted) -> bool:
    """Whether the task leaves at a safe point."""
    if task.shutdown.leaving:
        return False
    _unwind_in_time()
    return task.shutdown.interrupt(request)


def _give_back(task: Task) -> None:
    why = "gave the nodes back: the time limit is near, or Slurm needs them for another job"
    if _ask_to_leave(task, RequeueRequested(why)):
        signal.signal(signal.SIGALRM, lambda _number, _frame: _force(task))
        signal.alarm(max(1, int(min(task.seconds_left - LAST_MOMENT_S, 24 * 3600))))


def _force(task: Task) -> None:
    _unwind_in_time()
    task.shutdown.force()


def _unwind_in_time() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(UNWIND_DEADLINE_S)
