"""What the queue knows of submitted jobs, and how to take them out of it.

The states of any number of jobs cost one squeue and one sacct. squeue is right about what is queued or running (also
when accounting still shows the attempt before a requeue); sacct is right about what has ended. A cluster may have no
accounting: squeue then says for some minutes how a job has ended.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from mrt_hpc.analysis.spending import Allocation
from mrt_hpc.backends.backend import QueuedTask, QueueState
from mrt_hpc.backends.slurm import commands as slurm
from mrt_hpc.backends.slurm.parameters import NO_TOKEN, SCRIPT, queue_name
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.layout import RunLayout

_PART = r"\d{1,7}(?:-\d{1,7}(?::[1-9]\d{0,6})?)?"
_ARRAY_RANGE = re.compile(rf"(?P<job>\d+)_\[(?P<ranges>{_PART}(?:,{_PART})*)(?:%\d+)?\]")
_ENDING = "Ending"
"""Reason of a task whose processes are just being ended."""
CLOCKS_APART_S = 30.0
"""The most seconds between this machine's clock and the controller's; every time limit is longer."""
NO_ACCOUNTING = "accounting storage is disabled"
"""What sacct says on a cluster without accounting."""
ACCOUNTING_S = 20.0
"""Seconds in which sacct has to answer: squeue has said already what is queued or running."""
GONE_S = 15.0
"""Seconds in which jobs have to leave the queue that were cancelled."""
LOOK_EVERY_S = 1.0
_UNKNOWN_ID = re.compile(r"invalid job id", re.IGNORECASE)
_LIVE = ("%i", "%T", "%e", "%r", "%N")
_OWN = ("%F", "%T", "%e", "%j", "%o")
_ACCOUNTED = re.compile(rf"({slurm.TASK_ID.pattern})(\.\w+)?\|([A-Z_]+[^|]*)\|([\d:]*)\|([^|]*)\|(\d{{0,12}})")

_WORDS = {
    QueueState.PENDING: "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD",
    QueueState.RUNNING: "RUNNING CONFIGURING COMPLETING STAGE_OUT SIGNALING RESIZING SUSPENDED STOPPED",
    QueueState.COMPLETED: "COMPLETED",
    QueueState.FAILED: "FAILED",
    QueueState.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    QueueState.TIMEOUT: "TIMEOUT DEADLINE",
    QueueState.CANCELLED: "CANCELLED",
    QueueState.NODE_FAIL: "NODE_FAIL BOOT_FAIL",
    QueueState.PREEMPTED: "PREEMPTED",
}
_SLURM_STATES = {word: state for state, words in _WORDS.items() for word in words.split()}


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
    asked = [
        job for job in wanted if slurm.JOB_ID.fullmatch(job)
    ]  # one word that is no id would have all the others refused
    states: dict[str, QueuedTask] = {}
    if asked:
        ask = slurm.ask_slurm if within_s is None else _hurried(within_s)
        queued = _queued(asked, ask)  # first: a task that ends between the two calls is then found in one of them
        states = _merged(_accounted(asked, _hurried(ACCOUNTING_S) if within_s is None else ask), queued)
    known = {task_id.split("_")[0] for task_id in states}
    return states | {job: QueuedTask(job, QueueState.UNKNOWN) for job in wanted if job not in known}


def unrecorded_jobs(root: Path, recorded: Iterable[str]) -> dict[str, list[str]]:
    """Ids of a run's jobs that are queued or running and were never recorded, by job name, the oldest first: the
    submitting command ended between sbatch and the ledger.

    A job is known by the path of its script, and by its name, which holds a token of the run: sites rewrite some of
    what a job is submitted with, comments most of all.

    Raises:
        UserError: squeue is missing, did not answer, or refused.
    """
    layout, known = RunLayout(root), set(recorded)
    unrecorded: dict[str, list[str]] = {}
    printed = slurm.ask_slurm(["squeue", "--me", "--all", slurm.squeue_format(*_OWN)])
    for job_id, word, end, name, script in slurm.squeue_records(printed, len(_OWN)):
        if job_id in known or _queue_state(word, end) is QueueState.ENDING:
            continue
        if job := _job_of(layout, name, Path(script)):
            unrecorded[job] = sorted({*unrecorded.get(job, ()), job_id}, key=int)
    return unrecorded


def _job_of(layout: RunLayout, name: str, script: Path) -> str | None:
    """The job of a run that has this name in the queue and this script; None for a job of another run. Links in the
    path make no difference. A copy of a run directory has the token of the first, and its jobs have scripts elsewhere.
    """
    root = script.parents[2] if script.name == SCRIPT and len(script.parents) > 2 else None
    if root is not None and os.path.realpath(root) == os.path.realpath(layout.root):
        return script.parent.name
    before, _, after = queue_name("/", layout).partition("/")
    is_named = name.startswith(before) and name.endswith(after) and NO_TOKEN not in after
    if not is_named or (root is not None and RunLayout(root).identity.is_file()):
        return None
    return name.removeprefix(before).removesuffix(after)


def cancel(job_ids: Iterable[str]) -> list[str]:
    """Remove jobs from the queue so that they do not start again, and return those that were there. Afterwards the
    queue is asked what it still holds: what the commands answer decides nothing.

    First the permission to start again is taken away: a task that answers the signal by asking to be run again, or
    whose node fails in that moment, would come back otherwise. Each job has commands of its own, because a list is
    refused as a whole, or from the first job on that has ended.

    Raises:
        UserError: a command is missing, or the controller does not answer; or jobs are still in the queue.
    """
    wanted = list(dict.fromkeys(job_ids))
    ids = [job for job in wanted if slurm.JOB_ID.fullmatch(job)]
    if len(ids) < len(wanted):
        slurm.remark(f"these are no ids of Slurm, and name no job: {', '.join(sorted({*wanted}.difference(ids)))}")
    before = _live(ids)
    updates = [[["scontrol", "update", f"JobId={job}", "Requeue=0"], ["scancel", job]] for job in ids]
    words = [_refusal(command) for commands in updates for command in commands]
    end = time.monotonic() + GONE_S
    while (left := _live(ids)) and time.monotonic() < end:
        time.sleep(LOOK_EVERY_S)
    if left:
        raise _not_cancelled(left, before, filter(None, words))
    return before


def _live(job_ids: list[str]) -> list[str]:
    """Those of these jobs that are queued or running."""
    tasks = _queued(job_ids, slurm.ask_slurm).values() if job_ids else ()
    return sorted({task.job_id for task in tasks if not task.ended}, key=int)


def _refusal(command: list[str]) -> str:
    """Run a command, and return the words with which it was refused; empty text if it was not."""
    try:
        slurm.ask_slurm(command)
    except slurm.SlurmRefusedError as refusal:
        if slurm.is_unreachable(refusal):
            raise
        return refusal.reason
    return ""


def _not_cancelled(left: list[str], before: list[str], words: Iterable[str]) -> UserError:
    said = "; ".join(dict.fromkeys(words))
    return UserError(
        f"{len(left)} of {len({*before, *left})} job(s) are still in the queue",
        value=f"{', '.join(left)}" + (f" ({said})" if said else ""),
        expected=f"that scancel has taken them out of the queue within {GONE_S:.0f} s",
        advice=f"`scontrol show job {left[0]}` shows its state; then the same command, or scancel {' '.join(left)}",
        exit_code=ExitCode.RETRYABLE,
    )


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
    return lambda command: slurm.run_slurm(command, timeout_s=max(0.1, end - time.monotonic()))


def _queued(job_ids: list[str], ask: Callable[[list[str]], str]) -> dict[str, QueuedTask]:
    listing = ["squeue", "--all", "--states=all", "--array", f"--jobs={','.join(job_ids)}", slurm.squeue_format(*_LIVE)]
    try:
        printed = ask(listing)
    except slurm.SlurmRefusedError as refusal:
        if not _UNKNOWN_ID.search(refusal.reason):
            raise
        if len(job_ids) == 1:
            return {}  # squeue forgets ended jobs after minutes, and then calls their ids invalid
        return {task_id: task for job in job_ids for task_id, task in _queued([job], ask).items()}
    states, asked = dict[str, QueuedTask](), set(job_ids)
    for task_id, word, end, reason, nodes in slurm.squeue_records(printed, len(_LIVE)):
        if task_id.partition("_")[0] not in asked:
            continue
        why = _ENDING if word == "COMPLETING" else "" if reason == "None" else reason
        task = QueuedTask(task_id, _queue_state(word, end), why, nodes, ends_at=float(end) if end.isdecimal() else None)
        if task_id not in states or states[task_id].ended:  # of several clusters one may hold what another has given up
            states[task_id] = task
    return states


def _queue_state(word: str, end: str) -> QueueState:
    """The state of a task from squeue's word and the end of the task, in seconds since the epoch.

    Slurm says COMPLETING as long as processes are left, and hides behind it whether the task is queued again. The end
    says: that of a task which is over lies in the past, and that of a queued one at least its time limit from now.
    What squeue lists with a word that is not known here is not over; a revoked task runs on another cluster.
    """
    if word == "COMPLETING" and end.isdecimal() and int(end) < time.time() + CLOCKS_APART_S:
        return QueueState.ENDING
    if word == "REVOKED":
        return QueueState.RUNNING
    known = queue_state(word)
    if known is QueueState.UNKNOWN:
        slurm.remark(f"squeue calls a job {word}, which is not known here: it counts as queued")
        return QueueState.PENDING
    return known


def _accounted(job_ids: list[str], ask: Callable[[list[str]], str]) -> dict[str, QueuedTask]:
    """What accounting knows; nothing where it does not answer, because squeue's answer is good without it."""
    fields = "JobID,State,ExitCode,NodeList,ElapsedRaw"
    command = ["sacct", "--noheader", "--parsable2", f"--jobs={','.join(job_ids)}", f"--format={fields}"]
    try:
        printed = ask(command)
    except UserError as error:
        if not (isinstance(error, slurm.SlurmRefusedError) and NO_ACCOUNTING in error.reason):
            said = " ".join(str(error.value or "").split())
            slurm.remark(f"sacct gave no answer, so how jobs ended is known from the run only: {error.what}: {said}")
        return {}  # such a cluster forgets what has ended
    states: dict[str, QueuedTask] = {}
    for line in slurm.matching_lines(printed, _ACCOUNTED, "sacct"):
        task, step, word, exit_code, nodes, elapsed = line.groups()
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
        if "[" in task:
            slurm.remark(
                f"sacct names tasks of an array in a way that is not known here, and they are passed over: {task}"
            )
        else:
            yield task
        return
    for part in match["ranges"].split(","):
        bounds, _, step = part.partition(":")
        first, _, last = bounds.partition("-")
        for index in range(int(first), int(last or first) + 1, int(step or 1)):
            yield f"{match['job']}_{index}"


# -- accounting --------------------------------------------------------------------------------------------------------
# What Slurm's accounting knows of the attempts of jobs: when each held resources, and how many.


FIELDS = ("JobID", "State", "Submit", "Eligible", "Start", "ElapsedRaw", "AllocCPUS", "AllocTRES")
"""sacct prints times as seconds since the epoch (see ``commands``), or as a word where there is none."""
NOT_LOST = frozenset({QueueState.COMPLETED, QueueState.RUNNING})
"""The states of an attempt that has not ended, or has ended well."""
_TIME, _COUNT = r"\|(\d{1,12}|[A-Za-z]*)", r"\|(\d{0,12})"
_LINE = re.compile(rf"({slurm.TASK_ID.pattern})\|([A-Z_]+[^|]*){_TIME * 3}{_COUNT * 2}\|([^|]*)")


def accounted_attempts(job_ids: Iterable[str]) -> list[Allocation] | None:
    """Every attempt of every task of these jobs that held resources, also those before a requeue.

    Args:
        job_ids: ids as sbatch printed them.

    Returns:
        The attempts in the order of sacct; None on a cluster without accounting.

    Raises:
        UserError: sacct is missing, did not answer, or refused.
    """
    wanted = [job for job in dict.fromkeys(job_ids) if slurm.JOB_ID.fullmatch(job)]
    if not wanted:
        return []
    command = ["sacct", "--duplicates", "--allocations", "--noheader", "--parsable2"]
    try:
        printed = slurm.ask_slurm([*command, f"--jobs={','.join(wanted)}", f"--format={','.join(FIELDS)}"])
    except slurm.SlurmRefusedError as refusal:
        if NO_ACCOUNTING in refusal.reason:
            return None
        raise
    return attempts_of(printed)


def attempts_of(printed: str) -> list[Allocation]:
    """The attempts of sacct's lines."""
    attempts = (_attempt(*line.groups()) for line in slurm.matching_lines(printed, _LINE, "sacct"))
    return [attempt for attempt in attempts if attempt is not None]


def _attempt(
    task_id: str, word: str, submit: str, eligible: str, start: str, elapsed: str, cpus: str, resources: str
) -> Allocation | None:
    """The attempt of one line; None for a task that held nothing."""
    if not start.isdecimal() or not int(elapsed or 0):
        return None
    ready = max((int(time) for time in (submit, eligible) if time.isdecimal()), default=int(start))
    return Allocation(
        task_id=task_id,
        began=float(start),
        seconds=float(elapsed),
        gpus=_gpus(resources),
        cpus=int(cpus or 0) or None,
        queued_s=max(0.0, float(int(start) - ready)),
        failed=queue_state(word) not in NOT_LOST,
    )


def _gpus(resources: str) -> int | None:
    """The GPUs of ``billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1``. Where only kinds of GPUs are tracked,
    their sum.
    """
    pairs = [item.partition("=") for item in resources.split(",")]
    counts = {name: count for name, _, number in pairs if (count := slurm.count_of(number)) is not None}
    if "gres/gpu" in counts:
        return counts["gres/gpu"]
    kinds = [number for name, number in counts.items() if name.startswith("gres/gpu:")]
    return sum(kinds) if kinds else None
