"""Why a run, or a task of it, waits or has failed: in a sentence, with the next command to type."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from mrt_hpc.attempt.run_progress import newest_metrics, reason, warnings, written
from mrt_hpc.backends.backend import Hold, QueuedTask, QueueState
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.plan.jobs import DependencyKind, Job, Role, few_names
from mrt_hpc.run.retries import PAUSED, SHORTAGES, Shortage
from mrt_hpc.run.task_state import TaskRecord, TaskState
from mrt_hpc.run.weights import published_versions
from mrt_hpc.view.logs import last_traceback, tail
from mrt_hpc.view.run_history import RunHistory
from mrt_hpc.view.run_look import IN_WORDS, RunLook, RunState

# -- why one task is where it is: its record, the queue's reason and the end of its log are read in this order


NOTHING = "nothing"
LOG_TAIL = 4096
"""The bytes at the end of a log that show what a task does now."""
_NEXT = re.compile(r"^\s*next:\s+(?P<command>.+)$", re.MULTILINE)


class Cause(IntEnum):
    """What keeps a task, the worst first."""

    FAILED = 0
    FAILED_WITH = 1
    """It has failed because a job that it waits for has failed."""
    STUCK = 2
    """It is queued and can never start, or only after a command."""
    FULL_DISK = 3
    LOST = 4
    """It recorded that it runs, and it does not."""
    LEFT = 5
    """Work is left, and the task is not queued."""
    AGAIN = 6
    """Its last attempt ended early, and it is queued again."""
    QUEUED = 7
    WAITS = 8
    """It runs, and waits for tasks that do not run."""
    RUNS = 9
    LATER = 10
    """It waits for other jobs of the run."""
    DONE = 11


@dataclass(frozen=True)
class Explanation:
    """Why a task is where it is."""

    job: str
    index: int
    cause: Cause
    sentence: str
    """The sentence without its subject, as ``is queued, because ...``."""
    next: str
    """What to type next."""
    together: str = ""
    """The sentence for several tasks of the job that differ only in node and time; empty where it is the same."""
    failed_at: float = 0.0
    """When it failed, seconds since the epoch; 0 for others."""

    @property
    def group(self) -> str:
        """What tasks of a job share that are where they are for the same reason."""
        return self.together or self.sentence


def explained(look: RunLook, job: Job, index: int) -> Explanation:
    """Why one task is in its state."""
    record, queued = look.records[job.name][index], look.queued.get((job.name, index))
    if record.state is TaskState.DONE:
        return Explanation(job.name, index, Cause.DONE, f"is done since {clock(record.time)}", NOTHING)
    if (job.name, index) in look.running:
        return _running(look, job, index, record)
    if queued is not None:
        return _queued(look, job, index, record, queued)
    if record.state is TaskState.FAILED:
        return _failed(look, job, index, record)
    if record.state is TaskState.UNREADABLE:
        sentence = f"is in a state that is not known: {_first_line(record)}"
        return Explanation(job.name, index, Cause.LOST, sentence, _advised(record) or _again(look))
    if job.name in look.queues.ids and job.name not in look.queues.tasks:
        ids = ", ".join(look.queues.ids[job.name])
        sentence = f"was submitted as job {ids}, and the queue was not reached"
        return Explanation(job.name, index, Cause.QUEUED, sentence, f"mrt-hpc explain {look.layout.word}, later")
    return _unqueued(look, job, index, record)


def _again(look: RunLook) -> str:
    return f"{look.layout.again}, which submits what is missing; finished results stay"


def _failed(look: RunLook, job: Job, index: int, record: TaskRecord) -> Explanation:
    if record.awaited:
        cause, sentence = Cause.FAILED_WITH, f"has failed because it waits for {', '.join(record.awaited)}"
    else:
        cause, sentence = Cause.FAILED, f"has failed: {_first_line(record)}"
    advised = _advised(record) or f"mrt-hpc logs {look.layout.word} {job.role} -n 100"
    command = advised if "submit" in advised else f"{advised}; then {_again(look)}"
    return Explanation(job.name, index, cause, sentence, command, failed_at=record.time)


def _running(look: RunLook, job: Job, index: int, record: TaskRecord) -> Explanation:
    queued = look.queued.get((job.name, index))
    where = f" on {queued.nodes}" if queued is not None and queued.nodes else ""
    since = f" since {clock(record.time)}" if record.state is TaskState.RUNNING else ""
    if (lacking := _lacking(look, job.name, index)) is not None:
        waits = f"and waits for room: {lacking.what}"
        left = f"`{lacking.shown_by} {look.layout.root}` shows what is left"
        advice = f"{lacking.next}: the run continues by itself; {left}"
        return Explanation(job.name, index, Cause.FULL_DISK, f"runs{where}, {waits}", advice, f"runs, {waits}")
    if away := _peers_away(look, job):
        waits = f"and waits for {', '.join(away)}, of which no task runs"
        command = f"mrt-hpc explain {look.layout.word} {away[0]}"
        return Explanation(job.name, index, Cause.WAITS, f"runs{where}{since}, {waits}", command, f"runs, {waits}")
    watch = f"mrt-hpc status {look.layout.word} --watch"
    return Explanation(job.name, index, Cause.RUNS, f"runs{where}{since}", watch, "runs")


def _peers_away(look: RunLook, job: Job) -> list[str]:
    """The jobs of the other role of a segment that are not done and of which no task runs."""
    if job.role not in (Role.INFERENCE, Role.TRAINER) or job.segment is None:
        return []
    others = [
        peer
        for peer in look.plan.jobs
        if peer.segment == job.segment and peer.role in (Role.INFERENCE, Role.TRAINER) and peer.role is not job.role
    ]
    if any(peer.name in look.jobs_running for peer in others):
        return []
    return [peer.name for peer in others if peer.name not in look.jobs_done]


def _queued(look: RunLook, job: Job, index: int, record: TaskRecord, queued: QueuedTask) -> Explanation:
    """A task that waits in a queue, for the first time or again."""
    before = _before(record)
    meaning = look.queues.meaning(job.name, queued.reason)
    start = f"{before} and is queued again" if before else "is queued"
    if queued.reason == "Dependency" or (meaning is not None and meaning.hold is Hold.JOBS):
        sentence = f"{start}; it waits for {_awaited(look, job) or 'other jobs'}"
        return Explanation(job.name, index, Cause.LATER, sentence, _after_dependency(look, job, queued))
    if meaning is None:
        why = f", for the reason {queued.reason}" if queued.reason else ""
        return Explanation(job.name, index, Cause.QUEUED, f"{start}{why}", "nothing: it starts by itself")
    stuck = meaning.hold in (Hold.USER, Hold.ADMINISTRATOR, Hold.NEVER)
    cause = Cause.STUCK if stuck else Cause.AGAIN if before else Cause.QUEUED
    command = meaning.next.format(id=queued.task_id, run=look.layout.word)
    waits = " and waits" if before else ""
    sentence = f"{start}{waits}, because {meaning.means} ({queued.reason or 'no reason given'})"
    return Explanation(job.name, index, cause, sentence, command)


def _after_dependency(look: RunLook, job: Job, queued: QueuedTask) -> str:
    """What to type next for a task that waits for other jobs."""
    failed = [wait.job for wait in job.after if _has_failed(look, wait.job) and wait.kind is DependencyKind.AFTEROK]
    if failed:
        return f"mrt-hpc explain {look.layout.word} {failed[0]}"
    if not _awaited(look, job):
        return f"nothing: it starts by itself; `scontrol show job {queued.task_id}` names these jobs"
    return "nothing: it starts by itself"


def _has_failed(look: RunLook, job: str) -> bool:
    return any(record.state is TaskState.FAILED for record in look.records[job])


def _before(record: TaskRecord) -> str:
    """How the last attempt of a queued task ended, in words; empty where there was none."""
    return {
        TaskState.GAVE_BACK: f"returned its nodes ({_first_line(record).removeprefix('gave the nodes back: ')})",
        TaskState.RETRYING: f"has failed {record.failures} time(s) in a row ({_first_line(record)})",
        TaskState.STOPPED: "was stopped from outside (preempted, cancelled or interrupted)",
        TaskState.RUNNING: "was lost without a record (its node failed, or it was killed)",
        TaskState.FAILED: f"has failed ({_first_line(record)})",
    }.get(record.state, "")


def _unqueued(look: RunLook, job: Job, index: int, record: TaskRecord) -> Explanation:
    """A task that no queue holds and that does not run."""
    awaited = _awaited(look, job)
    if look.runs_here or look.runs_elsewhere:
        if awaited:
            return Explanation(job.name, index, Cause.LATER, f"waits for {awaited}", "nothing: it starts by itself")
        before = f"{words} and " if (words := _before(record)) else ""
        sentence = f"{before}waits for free cores, memory or GPUs of the machine that runs the plan"
        cause = Cause.AGAIN if before else Cause.QUEUED
        return Explanation(job.name, index, cause, sentence, "nothing: it starts by itself")
    if record.state is TaskState.WAITING and awaited:
        return Explanation(job.name, index, Cause.LATER, f"has not begun: it waits for {awaited}", _again(look))
    if look.sweeping is not None:
        sentence = f"waits for its turn in the sweep that process {look.sweeping.pid} runs"
        return Explanation(job.name, index, Cause.QUEUED, sentence, "nothing: it starts by itself")
    left = _how_it_left(look, job.name, index)
    if look.cancelled is not None:
        at_work = record.state in (TaskState.STOPPED, TaskState.RUNNING)
        words = "was stopped" if at_work else f"{_before(record) or 'has not begun'}, and was taken out of the queue"
        sentence = f"{words} by `mrt-hpc cancel` at {clock(look.cancelled)}"
        return Explanation(job.name, index, Cause.LEFT, sentence, _again(look))
    if record.state is TaskState.RUNNING:
        sentence = f"was lost: it recorded no end, and it does not run{left}"
        return Explanation(job.name, index, Cause.LOST, sentence, _again(look))
    words = _before(record) or "has not begun"
    return Explanation(job.name, index, Cause.LEFT, f"{words}, and is not queued{left}", _again(look))


def _how_it_left(look: RunLook, job: str, index: int) -> str:
    """How the queue says that a task ended, in words; empty where it does not."""
    ended = [
        task
        for task in look.queues.tasks.get(job, ())
        if task.ended and task.index == index and task.state is not QueueState.UNKNOWN
    ]
    return f" (the queue says: {ended[-1].state})" if ended else ""


def _awaited(look: RunLook, job: Job) -> str:
    """The jobs that a job waits for and that have not ended, each with what it does, in words."""
    names = [wait.job for wait in job.after if not _fulfilled(look, wait.job, wait.kind)]
    return " and ".join(f"{name}, {_doing(look, name)}" for name in names[:3])


def _fulfilled(look: RunLook, job: str, kind: DependencyKind) -> bool:
    """Whether the run's files say that a dependency is fulfilled."""
    if job in look.jobs_done:
        return True
    over = (TaskState.DONE, TaskState.FAILED)
    return kind is DependencyKind.AFTERANY and all(record.state in over for record in look.records[job])


def _doing(look: RunLook, job: str) -> str:
    """What a job does, in words."""
    records = look.records[job]
    if _has_failed(look, job):
        return "which has failed"
    if job in look.jobs_running:
        return "which runs"
    done = sum(record.state is TaskState.DONE for record in records)
    if done:
        return f"of which {done} of {len(records)} tasks are done"
    return "which is queued" if job in look.jobs_queued else "which has not ended"


def _first_line(record: TaskRecord) -> str:
    return reason(record).partition("\n")[0] or "no reason was recorded"


def _advised(record: TaskRecord) -> str | None:
    """What the reason of a task says to do next; None where it does not."""
    advices = _NEXT.findall(record.message)
    return advices[-1].strip() if advices else None


def paused(look: RunLook) -> list[Explanation]:
    """The tasks that run and wait for room on the disk."""
    waiting = [
        (job, index)
        for job, index, _ in look.tasks()
        if (job.name, index) in look.running and _lacking(look, job.name, index) is not None
    ]
    return [
        explanation
        for explanation in (explained(look, *task) for task in waiting)
        if explanation.cause is Cause.FULL_DISK
    ]


def _lacking(look: RunLook, job: str, index: int) -> Shortage | None:
    """What a task waits for that can write nothing; None for one that does not wait."""
    words = _last_words(look, job, index)
    return next((lacking for lacking in SHORTAGES if f"{PAUSED}: {lacking.what}" in words), None)


def _last_words(look: RunLook, job: str, index: int) -> str:
    """The last line that a task has logged."""
    logs = [log for log in look.logs.get((job, index), ()) if log.is_own]
    if not logs:
        return ""
    newest = max(logs, key=lambda log: written(log.path))
    return (tail(newest.path, LOG_TAIL).strip().splitlines() or [""])[-1]


def clock(at: float) -> str:
    """A moment by the clock of this machine."""
    return time.strftime("%a %d %b %H:%M", time.localtime(at))


# -- what is said of a run or a task: what stops a run is named before what only delays it

_TASK = re.compile(r"(?P<job>[^\[\]]+)(?:\[(?P<index>\d+)\])?")


@dataclass(frozen=True)
class Statement:
    """What is said about a run or a task."""

    sentence: str
    next: str
    details: tuple[str, ...] = ()
    """Further lines: the full reason, the last traceback, other tasks, earlier attempts."""


def task_named(look: RunLook, text: str) -> tuple[Job, int | None]:
    """The job and the index of a task of a run, as in ``segment-000.inference[3]``; no index means all tasks of a job.

    Raises:
        UserError: the plan has no such job or task.
    """
    match = _TASK.fullmatch(text)
    names = [job.name for job in look.plan.jobs]
    if match is None or match["job"] not in names:
        guess = nearest(text.partition("[")[0], names)
        raise UserError(
            "the run has no such job",
            value=text,
            expected=f"{guess} is the nearest" if guess else f"one of {', '.join(names)}",
            advice=f"mrt-hpc explain {look.layout.word} {guess or names[0]}",
        )
    job = look.plan.job(match["job"])
    index = None if match["index"] is None else int(match["index"])
    if index is not None and index >= job.tasks:
        raise UserError(
            f"job {job.name} has no such task",
            value=text,
            expected=f"an index from 0 to {job.tasks - 1}",
            advice=f"mrt-hpc explain {look.layout.word} '{job.name}[0]'",
        )
    return job, index


def explain_run(look: RunLook, history: RunHistory) -> Statement:
    """Why a run is in its state.

    Args:
        look: at the run.
        history: of its events, up to date.
    """
    measured, _ = newest_metrics(look.layout, max(published_versions(look.layout), default=0))
    warned = [f"warning: {warning}" for warning in warnings(look.layout, measured)]
    if look.state is RunState.FINISHED:
        done = sum(job.tasks for job in look.plan.jobs)
        sentence = f"The run is finished: all {done} tasks are done."
        return Statement(sentence, f"mrt-hpc report {look.layout.word}", tuple(warned))
    explanations = [
        explained(look, job, index) for job, index, record in look.tasks() if record.state is not TaskState.DONE
    ]
    groups = grouped(explanations)
    first = groups[0]
    details = [*_reasons(look, first[0]), *_set_aside(history), *warned]
    others = [_sentence(look, group) for group in groups[1:] if group[0].cause < Cause.LATER]
    later = Counter(explanation.job for explanation in explanations if explanation.cause is Cause.LATER)
    if later:
        others.append(f"{sum(later.values())} task(s) wait for these: {few_names(list(later))}.")
    for name, why in look.queues.unreached.items():
        others.append(f"The queue was not reached ({name}: {why}); all else is from the run's files.")
    state = "is paused" if first[0].cause is Cause.FULL_DISK else IN_WORDS[look.state]
    sentence = f"The run {state}: {_sentence(look, first)}"
    return Statement(sentence, first[0].next, (*details, *others, *look.unreadable, *history.stream.faults))


def explain_job(look: RunLook, history: RunHistory, text: str) -> list[Statement]:
    """Why one task is in its state, or all tasks of a job: those that are where they are for the same reason together.

    Args:
        look: as in :func:`explain_run`.
        history: as in :func:`explain_run`.
        text: the job or the task, as in :func:`task_named`.

    Raises:
        UserError: the plan has no such job or task.
    """
    job, index = task_named(look, text)
    if index is not None or job.tasks == 1:
        return [explain_task(look, history, job, index or 0)]
    groups = grouped(explained(look, job, number) for number in range(job.tasks))
    return [Statement(_sentence(look, group), group[0].next, tuple(_reasons(look, group[0]))) for group in groups]


def explain_task(look: RunLook, history: RunHistory, job: Job, index: int) -> Statement:
    """Why one task is in its state; arguments as in :func:`explain_run`."""
    explanation = explained(look, job, index)
    words = f"{job.name} task {index}"
    happenings = [happening for happening in history.all_happenings(look.record_of) if happening.task == words][-5:]
    attempts = history.attempts_of(job.name, index)
    lines = [f"{attempts} attempt(s) have begun."] if attempts else []
    lines += [
        f"{clock(happening.time)}  {happening.kind}{f' ({happening.detail})' if happening.detail else ''}"
        for happening in happenings
    ]
    sentence = _sentence(look, [explanation])
    return Statement(sentence, explanation.next, (*_reasons(look, explanation), *lines))


def grouped(explanations: Iterable[Explanation]) -> list[list[Explanation]]:
    """Tasks of a job that are where they are for the same reason, together; the worst reason first, the first
    failure before later ones, and else in the order of the plan.
    """
    groups: dict[tuple[str, str], list[Explanation]] = {}
    for explanation in explanations:
        groups.setdefault((explanation.job, explanation.group), []).append(explanation)
    return sorted(groups.values(), key=lambda group: (group[0].cause, group[0].failed_at))


def _sentence(look: RunLook, group: Sequence[Explanation]) -> str:
    """The whole sentence about a group."""
    return f"{_subject(look, group)} {group[0].group if len(group) > 1 else group[0].sentence}."


def _subject(look: RunLook, group: Sequence[Explanation]) -> str:
    """The tasks of a group in words, with the id of a single one that is queued."""
    first = group[0]
    tasks = look.plan.job(first.job).tasks
    if len(group) > 1:
        return f"{first.job} ({len(group)} of {tasks} tasks)"
    name = first.job if tasks == 1 else f"{first.job}[{first.index}]"
    queued = look.queued.get((first.job, first.index))
    return name if queued is None else f"{name} (job {queued.task_id})"


def _reasons(look: RunLook, explanation: Explanation) -> list[str]:
    """The whole reason of a failure and the last traceback in the logs of the task."""
    record = look.records[explanation.job][explanation.index]
    if explanation.cause not in (Cause.FAILED, Cause.FAILED_WITH) and record.state is not TaskState.RETRYING:
        return []
    whole = reason(record)
    lines = [whole] if "\n" in whole else []  # the sentence has its first line
    found_in = last_traceback(look.logs.get((explanation.job, explanation.index), []))
    return lines if found_in is None else [*lines, f"the last traceback, in {found_in[0].path}:\n{found_in[1]}"]


def _set_aside(history: RunHistory) -> list[str]:
    """What was damaged and moved away last, in words."""
    moved = [happening for happening in history.happenings if happening.kind == "set aside"]
    if not moved:
        return []
    last = moved[-1]
    return [f"{len(moved)} file(s) or folder(s) were set aside, the last at {clock(last.time)} ({last.detail})."]


def failure_text(look: RunLook, role: str | None) -> str | None:
    """The first failure of a run (of one role) with the last traceback in its logs; None where nothing has failed.

    A task that has failed for good comes before one that is to run again.
    """
    order = (TaskState.FAILED, TaskState.RETRYING)
    failed = [
        (order.index(record.state), bool(record.awaited), record.time, job, index)
        for job, index, record in look.tasks()
        if record.state in order and (role is None or job.does(Role(role)))
    ]
    if not failed:
        return None
    *_, job, index = min(failed, key=lambda place: place[:3])
    explanation = explained(look, job, index)
    return "\n".join([_sentence(look, [explanation]), *_reasons(look, explanation)])
