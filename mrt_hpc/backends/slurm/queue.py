"""What the queue knows of submitted jobs, and how to take them out of it.

An id is no proof: another cluster on the same filesystem, or a controller that has lost its state, may reuse it. So
:func:`is_own` compares name, script and time of the submission.

squeue is right about what is queued or running, sacct about what has ended. Without accounting, squeue says for some
minutes how a job has ended.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from mrt_hpc.attempt.ledger import Submission
from mrt_hpc.backends.backend import JobMarks, QueuedTask, QueueState
from mrt_hpc.backends.slurm import commands as slurm
from mrt_hpc.backends.slurm import slurm_output
from mrt_hpc.backends.slurm.parameters import NO_TOKEN, SCRIPT, queue_name
from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.run.layout import RunLayout

_PART = r"\d{1,7}(?:-\d{1,7}(?::[1-9]\d{0,6})?)?"
_ARRAY_RANGE = re.compile(rf"(?P<job>\d+)_\[(?P<ranges>{_PART}(?:,{_PART})*)(?:%\d+)?\]")
_ENDING = "Ending"
CLOCKS_APART_S = 30.0
"""Every time limit is longer."""
NO_ACCOUNTING = "accounting storage is disabled"
ACCOUNTING_S = 20.0
"""squeue has already said what is queued or running."""
GONE_S = 15.0
"""The time for cancelled jobs to leave the queue."""
LOOK_EVERY_S = 1.0
A_DAY_S = 86400.0
"""Clocks may be wrong by minutes; an id comes again after months."""
_UNKNOWN_ID = re.compile(r"invalid job id", re.IGNORECASE)
_LISTED = ("%i", "%T", "%e", "%r", "%N", "%j", "%o", "%V")
TIME_FIELD, COUNT_FIELD, NAME_FIELD = r"\|(\d{1,12}|[A-Za-z]*)", r"\|(\d{0,12})", r"\|(.*)"
_ACCOUNTED = re.compile(
    rf"({slurm_output.TASK_ID.pattern})(\.\w+)?\|([A-Z_]+[^|]*)\|([\d:]*)\|([^|]*)\|\d{{0,12}}{TIME_FIELD}{NAME_FIELD}"
)

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
    """States by task id (``1234_5`` in an array). A job that neither command knows gives one ``UNKNOWN`` under its own
    id: accounting may lag by seconds. ``within_s`` of None is patient with a busy controller.
    """
    wanted = list(dict.fromkeys(job_ids))
    # one word that is no id would have all the others refused
    asked = [job for job in wanted if slurm_output.JOB_ID.fullmatch(job)]
    states: dict[str, QueuedTask] = {}
    if asked:
        ask = slurm.ask_slurm if within_s is None else _ask_within(within_s)
        queued = _ask_squeue(asked, ask)  # first: a task that ends between the two calls is then found in one of them
        states = _merge_answers(_ask_sacct(asked, _ask_within(ACCOUNTING_S) if within_s is None else ask), queued)
    known = {task_id.split("_")[0] for task_id in states}
    return states | {job: QueuedTask(job, QueueState.UNKNOWN) for job in wanted if job not in known}


def own_jobs(layout: RunLayout, ask: Callable[[list[str]], str] = slurm.ask_slurm) -> dict[str, list[str]]:
    """Ids by job name, the oldest first, also of jobs that an interrupted submission has not recorded."""
    own: dict[str, list[str]] = {}
    for task in _tasks(ask(["squeue", "--me", "--all", slurm_output.squeue_format(*_LISTED)])):
        if task.state is not QueueState.ENDING and (job := job_of(layout, task.marks)):
            own[job] = sorted({*own.get(job, ()), task.job_id}, key=int)
    return own


def is_own(layout: RunLayout, submission: Submission, marks: JobMarks) -> bool:
    """Whether a queued job is that of a submission. Queueing again makes its time later."""
    is_later = marks.submitted is None or marks.submitted >= submission.time - A_DAY_S
    return is_later and job_of(layout, marks) == submission.job


def marks_of(name: str, script: str, submitted: str) -> JobMarks:
    return JobMarks(name, script, float(submitted) if submitted.isdecimal() else None)


def job_of(layout: RunLayout, marks: JobMarks) -> str | None:
    """The run's job that a queued job is, by its script's path, or by its name with the run's token: sites rewrite
    comments and more. A copy of a run directory has the same token, but other scripts.
    """
    name, script = marks.name, Path(marks.script)
    root = script.parents[2] if script.name == SCRIPT and len(script.parents) > 2 else None
    if root is not None and os.path.realpath(root) == os.path.realpath(layout.root):
        return script.parent.name
    before, _, after = queue_name("/", layout).partition("/")
    is_named = name.startswith(before) and name.endswith(after) and NO_TOKEN not in after
    if not is_named or (root is not None and RunLayout(root).identity.is_file()):
        return None
    return name.removeprefix(before).removesuffix(after)


def cancel(job_ids: Iterable[str]) -> list[str]:
    """Remove jobs from the queue for good, and return those that were there.

    The permission to start again goes first: a task that asks to be run again, or whose node fails in that moment,
    would come back. Each job has its own commands, because Slurm refuses a list as a whole, or from the first ended job
    on.

    Raises:
        UserError: no answer; or jobs are still in the queue.
    """
    wanted = list(dict.fromkeys(job_ids))
    ids = [job for job in wanted if slurm_output.JOB_ID.fullmatch(job)]
    if others := sorted({*wanted}.difference(ids)):
        slurm_output.remark(f"these are no ids of Slurm, and name no job: {', '.join(others)}")
    before = _live(ids)
    words = {}
    for job in ids:
        commands = (["scontrol", "update", f"JobId={job}", "Requeue=0"], ["scancel", job])
        words[job] = [_refusal(command) for command in commands]
    unknown = {job for job, (_, refusal) in words.items() if _UNKNOWN_ID.search(refusal)}
    end = time.monotonic() + GONE_S
    while (left := _live(ids, unknown)) and time.monotonic() < end:
        time.sleep(LOOK_EVERY_S)
    if left:
        raise _not_cancelled(left, before, [word for job in left for word in words[job] if word])
    return before


def _live(job_ids: list[str], unknown: Collection[str] = ()) -> list[str]:
    """Queued or running by either listing: squeue's may be a minute old. What accounting calls cancelled cannot come
    back, and accounting may never learn of the end of ``unknown`` jobs.
    """
    if not job_ids:
        return []
    queued, accounted = _ask_squeue(job_ids, slurm.ask_slurm), _ask_sacct(job_ids, _ask_within(ACCOUNTING_S))
    cancelled = {name for name, task in accounted.items() if task.state is QueueState.CANCELLED}
    unlisted = {name: task for name, task in accounted.items() if task.job_id not in unknown}
    live = [task for name, task in {**unlisted, **queued}.items() if not task.has_ended and name not in cancelled]
    return sorted({task.job_id for task in live}, key=int)


def _refusal(command: list[str]) -> str:
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
        advice=Advice(
            "`scontrol show job {job}` shows its state; then the same command, or scancel {ids}", job=left[0], ids=left
        ),
        exit_code=ExitCode.RETRYABLE,
    )


def _merge_answers(accounted: dict[str, QueuedTask], queued: dict[str, QueuedTask]) -> dict[str, QueuedTask]:
    """squeue is right on live tasks, accounting on ended ones and on ending ones that do not start again."""
    accounted = {
        task_id: state if state.has_ended or task_id in queued else replace(state, state=QueueState.UNLISTED)
        for task_id, state in accounted.items()
        if task_id not in queued or state.marks.name == queued[task_id].marks.name  # else it is of an earlier job
    }
    better = {
        task_id: accounted[task_id]
        for task_id, state in queued.items()
        if task_id in accounted and _knows_better(accounted[task_id].state, state)
    }
    return accounted | queued | better


def _knows_better(accounted: QueueState, queued: QueuedTask) -> bool:
    if queued.reason == _ENDING:
        return accounted in _NEVER_BACK
    return queued.has_ended and QueuedTask("", accounted).has_ended and accounted is not QueueState.UNKNOWN


def _ask_within(within_s: float) -> Callable[[list[str]], str]:
    end = time.monotonic() + within_s
    return lambda command: slurm.run_slurm(command, timeout_s=max(0.1, end - time.monotonic()))


def _ask_squeue(job_ids: list[str], ask: Callable[[list[str]], str]) -> dict[str, QueuedTask]:
    listing = ["squeue", "--all", "--states=all", "--array", f"--jobs={','.join(job_ids)}"]
    try:
        printed = ask([*listing, slurm_output.squeue_format(*_LISTED)])
    except slurm.SlurmRefusedError as refusal:
        if not _UNKNOWN_ID.search(refusal.reason):
            raise
        if len(job_ids) == 1:
            return {}  # squeue forgets ended jobs after minutes, and then calls their ids invalid
        return {task_id: task for job in job_ids for task_id, task in _ask_squeue([job], ask).items()}
    states, asked = dict[str, QueuedTask](), set(job_ids)
    for task in (task for task in _tasks(printed) if task.job_id in asked):
        before = states.get(task.task_id, task)
        key = task.task_id if before.marks.name == task.marks.name else f"{task.task_id} {task.marks.name}"
        if key not in states or states[key].has_ended:  # of several clusters one may hold what another has given up
            states[key] = task
    return states


def _tasks(printed: str) -> Iterator[QueuedTask]:
    """Without ``--array`` one entry stands for all tasks of an array that have not begun."""
    for task_id, word, end, reason, nodes, *marks in slurm_output.squeue_records(printed, len(_LISTED)):
        why = _ENDING if word == "COMPLETING" else "" if reason == "None" else reason
        ends_at = float(end) if end.isdecimal() else None
        yield QueuedTask(task_id, _queue_state(word, end), why, nodes, ends_at=ends_at, marks=marks_of(*marks))


def _queue_state(word: str, end: str) -> QueueState:
    """COMPLETING hides whether a task is queued again. The end (seconds since the epoch) is past for an ended task, and
    at least the time limit ahead for a queued one. An unknown word counts as not over; a revoked task runs elsewhere.
    """
    if word == "COMPLETING" and end.isdecimal() and int(end) < time.time() + CLOCKS_APART_S:
        return QueueState.ENDING
    if word == "REVOKED":
        return QueueState.RUNNING
    known = queue_state(word)
    if known is QueueState.UNKNOWN:
        slurm_output.remark(f"squeue calls a job {word}, which is not known here: it counts as queued")
        return QueueState.PENDING
    return known


def _ask_sacct(job_ids: list[str], ask: Callable[[list[str]], str]) -> dict[str, QueuedTask]:
    """Nothing where accounting does not answer: squeue's answer is good without it."""
    fields = "JobID,State,ExitCode,NodeList,ElapsedRaw,Submit,JobName"
    command = ["sacct", "--noheader", "--parsable2", f"--jobs={','.join(job_ids)}", f"--format={fields}"]
    try:
        printed = ask(command)
    except UserError as error:
        if not (isinstance(error, slurm.SlurmRefusedError) and NO_ACCOUNTING in error.reason):
            said = f"{error.what}: {' '.join(str(error.value or '').split())}"
            slurm_output.remark(f"sacct gave no answer, so how jobs ended is known from the run only: {said}")
        return {}  # such a cluster forgets what has ended
    states: dict[str, QueuedTask] = {}
    for line in slurm_output.matching_lines(printed, _ACCOUNTED, "sacct"):
        task, step, word, exit_code, nodes, submitted, name = line.groups()
        if step:
            _learn_from_step(states, task, word)
            continue
        nodes, marks = "" if nodes == "None assigned" else nodes, marks_of(name, "", submitted)
        for task_id in _expand(task):
            states[task_id] = QueuedTask(task_id, queue_state(word), exit_code, nodes, marks=marks)
    return states


def _learn_from_step(states: dict[str, QueuedTask], task_id: str, word: str) -> None:
    """A task that lacked memory is FAILED in accounting; only its step says why."""
    known = states.get(task_id)
    if known and known.state is QueueState.FAILED and queue_state(word) is QueueState.OUT_OF_MEMORY:
        states[task_id] = replace(known, state=QueueState.OUT_OF_MEMORY)


def queue_state(word: str) -> QueueState:
    """``CANCELLED by 1001`` and ``CANCELLED+`` count as ``CANCELLED``."""
    return _SLURM_STATES.get(re.split(r"[ +]", word, maxsplit=1)[0], QueueState.UNKNOWN)


def _expand(task: str) -> Iterator[str]:
    """Tasks that never started share a line, as ``12_[0-3,7%2]``."""
    if "[" not in task:
        yield task
        return
    if (match := _ARRAY_RANGE.fullmatch(task)) is None:
        unknown = "sacct names tasks of an array in a way that is not known here, and they are passed over"
        slurm_output.remark(f"{unknown}: {task}")
        return
    for part in match["ranges"].split(","):
        bounds, _, step = part.partition(":")
        first, _, last = bounds.partition("-")
        for index in range(int(first), int(last or first) + 1, int(step or 1)):
            yield f"{match['job']}_{index}"
