"""What the queue knows of submitted jobs, and how to take them out of it.

The states of any number of jobs cost one squeue and one sacct. squeue is right about what is queued or running (also
when accounting still shows the attempt before a requeue); sacct is right about what has ended. A cluster may have no
accounting: squeue then tells for some minutes how a job has ended.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mrt_hpc.launch.backend import QueuedTask, QueueState
from mrt_hpc.launch.slurm.commands import SlurmRefusedError, ask_slurm, run_slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_ARRAY_RANGE = re.compile(r"(?P<job>\d+)_\[(?P<ranges>[\d,:-]+)(?:%\d+)?\]")
_ENDING = "Ending"
"""Reason of a task whose processes are just being ended."""
CLOCKS_APART_S = 30.0
"""At most, between this machine's clock and the controller's; every time limit is longer."""
NO_ACCOUNTING = "accounting storage is disabled"
"""What sacct says on a cluster without accounting."""
_ALREADY_OVER = re.compile(r"invalid job id|already compl|job has finished|has already finished", re.IGNORECASE)


_SLURM_STATES = {
    "COMPLETED": QueueState.COMPLETED,
    "CANCELLED": QueueState.CANCELLED,
    "REVOKED": QueueState.CANCELLED,
    "TIMEOUT": QueueState.TIMEOUT,
    "OUT_OF_MEMORY": QueueState.OUT_OF_MEMORY,
    "NODE_FAIL": QueueState.NODE_FAIL,
    "BOOT_FAIL": QueueState.NODE_FAIL,
    "PREEMPTED": QueueState.PREEMPTED,
    "FAILED": QueueState.FAILED,
    "DEADLINE": QueueState.TIMEOUT,
    "PENDING": QueueState.PENDING,
    "REQUEUED": QueueState.PENDING,
    "REQUEUE_FED": QueueState.PENDING,
    "REQUEUE_HOLD": QueueState.PENDING,
    "SPECIAL_EXIT": QueueState.PENDING,
    "RESV_DEL_HOLD": QueueState.PENDING,
    "RUNNING": QueueState.RUNNING,
    "CONFIGURING": QueueState.RUNNING,
    "COMPLETING": QueueState.RUNNING,
    "STAGE_OUT": QueueState.RUNNING,
    "SIGNALING": QueueState.RUNNING,
    "RESIZING": QueueState.RUNNING,
    "SUSPENDED": QueueState.RUNNING,
    "STOPPED": QueueState.RUNNING,
}


_NEVER_BACK = frozenset({QueueState.COMPLETED, QueueState.FAILED, QueueState.CANCELLED, QueueState.TIMEOUT})


def queue_states(job_ids: Iterable[str], within_s: float | None = None) -> dict[str, QueuedTask]:
    """The state of every task of these jobs, by task id, from one squeue and one sacct.

    Args:
        job_ids: ids as sbatch printed them. An array gives one entry a task (``1234_5``). A job that neither command
            knows gives one entry under its own id, ``UNKNOWN``: accounting may lag by seconds behind a job's end.
        within_s: seconds after which Slurm counts as not reached; None to be patient with a controller that is busy.

    Raises:
        UserError: a command is missing, did not answer, or refused.
    """
    wanted = list(dict.fromkeys(job_ids))
    if not wanted:
        return {}
    ask = ask_slurm if within_s is None else _hurried(within_s)
    queued = _queued(wanted, ask)  # first: a task that ends between the two calls is then found in one of them
    states = _merged(_accounted(wanted, ask), queued)
    found = {task_id.split("_")[0] for task_id in states}
    return states | {job: QueuedTask(job, QueueState.UNKNOWN) for job in wanted if job not in found}


def unrecorded_jobs(root: Path, recorded: Iterable[str]) -> dict[str, str]:
    """Ids of a run's jobs that are queued or running and were never recorded, by job name: the submitting
    command ended between sbatch and the ledger. They are known by the run's directory, which is their comment.

    Raises:
        UserError: squeue is missing, did not answer, or refused.
    """
    known, found = set(recorded), {}
    for line in ask_slurm(["squeue", "--me", "--all", "--noheader", "--format=%F|%T|%e|%j|%k"]).splitlines():
        job_id, word, end, name, comment = line.strip().split("|", 4)
        if comment == str(root) and _queue_state(word, end) is not QueueState.ENDING and job_id not in known:
            found[name.removeprefix(f"{root.name}.")] = job_id
    return found


def cancel(job_ids: Iterable[str]) -> None:
    """Remove jobs from the queue so that they do not start again; jobs that have already ended are skipped.

    First the permission to start again is taken away: a task that answers the signal by asking to be run again, or
    whose node fails in that moment, would come back otherwise.

    Raises:
        UserError: a command is missing, did not answer, or refused.
    """
    wanted = list(dict.fromkeys(job_ids))
    if not wanted:
        return
    for job in wanted:  # one at a time: scontrol takes a list, but stops at the first job that has ended
        _unless_over(["scontrol", "update", f"JobId={job}", "Requeue=0"])
    _unless_over(["scancel", *wanted])


def _unless_over(command: list[str]) -> None:
    try:
        ask_slurm(command)
    except SlurmRefusedError as refusal:
        if not all(_ALREADY_OVER.search(line) for line in refusal.reason.splitlines()):
            raise


def _merged(accounted: dict[str, QueuedTask], queued: dict[str, QueuedTask]) -> dict[str, QueuedTask]:
    """Merge both answers: squeue's state for live tasks, and accounting's for tasks that have ended or are ending,
    because accounting may know that an ending task does not start again.
    """
    accounted = {
        task_id: state if state.ended or task_id in queued else replace(state, state=QueueState.UNKNOWN)
        for task_id, state in accounted.items()
    }  # a task that accounting reports as running and the queue does not know has ended; its outcome is not known yet
    better = {
        task_id: accounted[task_id]
        for task_id, state in queued.items()
        if task_id in accounted and _knows_better(accounted[task_id].state, state)
    }
    return accounted | queued | better


def _knows_better(accounted: QueueState, queued: QueuedTask) -> bool:
    """Whether accounting is right on a task that squeue still lists."""
    if queued.reason == _ENDING:
        return accounted in _NEVER_BACK
    return queued.ended and QueuedTask("", accounted).ended and accounted is not QueueState.UNKNOWN


def _hurried(within_s: float) -> Callable[[list[str]], str]:
    """Asks each command once, within one common time limit."""
    end = time.monotonic() + within_s
    return lambda command: run_slurm(command, timeout_s=max(0.1, end - time.monotonic()))


def _queued(job_ids: list[str], ask: Callable[[list[str]], str]) -> dict[str, QueuedTask]:
    listing = ["squeue", "--all", "--states=all", "--noheader", "--array", f"--jobs={','.join(job_ids)}"]
    try:
        lines = ask([*listing, "--format=%i|%T|%e|%r|%N"]).splitlines()
    except SlurmRefusedError as refusal:
        if _ALREADY_OVER.search(refusal.reason):
            return {}  # squeue forgets ended jobs after minutes, and then calls their ids invalid
        raise
    states = {}
    for line in lines:
        task_id, word, end, reason, nodes = line.strip().split("|", 4)
        reason = _ENDING if word == "COMPLETING" else "" if reason == "None" else reason
        states[task_id] = QueuedTask(task_id, _queue_state(word, end), reason, nodes, ends_at=_moment(end))
    return states


def _moment(text: str) -> float | None:
    """Seconds since the epoch, from squeue's word; None where Slurm knows none."""
    return float(text) if text.isdecimal() else None


def _queue_state(word: str, end: str) -> QueueState:
    """The state of a task from squeue's word and the end of the task, in seconds since the epoch.

    Slurm says COMPLETING as long as processes are left, and hides behind it whether the task is queued again. The end
    tells: that of a task which is over lies in the past, and that of a queued one at least its time limit from now.
    """
    if word == "COMPLETING" and end.isdecimal() and int(end) < time.time() + CLOCKS_APART_S:
        return QueueState.ENDING
    return queue_state(word)


def _accounted(job_ids: list[str], ask: Callable[[list[str]], str]) -> dict[str, QueuedTask]:
    fields = "JobID,State,ExitCode,NodeList,ElapsedRaw"
    command = ["sacct", "--noheader", "--parsable2", f"--jobs={','.join(job_ids)}", f"--format={fields}"]
    try:
        lines = ask(command).splitlines()
    except SlurmRefusedError as refusal:
        if NO_ACCOUNTING in refusal.reason:
            return {}  # such a cluster forgets what has ended
        raise
    states: dict[str, QueuedTask] = {}
    for line in lines:
        name, word, exit_code, nodes, elapsed = line.split("|")
        task, _, step = name.partition(".")
        if step:
            _learn_from_step(states, task, word)
            continue
        for task_id in _expand(task):
            nodes = "" if nodes == "None assigned" else nodes
            states[task_id] = QueuedTask(task_id, queue_state(word), exit_code, nodes, int(elapsed or 0))
    return states


def _learn_from_step(states: dict[str, QueuedTask], task_id: str, word: str) -> None:
    """A task that lacked memory is FAILED in accounting; only its step says why."""
    known = states.get(task_id)
    if known and known.state is QueueState.FAILED and queue_state(word) is QueueState.OUT_OF_MEMORY:
        states[task_id] = QueuedTask(task_id, QueueState.OUT_OF_MEMORY, known.reason, known.nodes, known.elapsed_s)


def queue_state(word: str) -> QueueState:
    """``CANCELLED by 1001`` and ``CANCELLED+`` count as ``CANCELLED``."""
    return _SLURM_STATES.get(re.split(r"[ +]", word, maxsplit=1)[0], QueueState.UNKNOWN)


def _expand(task: str) -> Iterator[str]:
    """Task ids of one accounting line: tasks that never started share one, as in ``12_[0-3,7%2]``."""
    match = _ARRAY_RANGE.fullmatch(task)
    if match is None:
        yield task
        return
    for part in match["ranges"].split(","):
        bounds, _, step = part.partition(":")
        first, _, last = bounds.partition("-")
        for index in range(int(first), int(last or first) + 1, int(step or 1)):
            yield f"{match['job']}_{index}"
