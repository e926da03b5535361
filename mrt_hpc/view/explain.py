"""Why a run or a task waits or has failed: one sentence, and the next command to type."""

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from mrt_hpc.attempt.early_end import EarlyEnd, ScriptNotes
from mrt_hpc.attempt.ledger import comes_after
from mrt_hpc.attempt.run_progress import newest_metrics, warnings, write_time
from mrt_hpc.backends.backend import Hold, QueuedTask, QueueState
from mrt_hpc.errors import Advice, UserError, nearest
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
"""Bytes at the end of a log that show what a task does now."""
LONGEST_QUOTE = 200
"""Characters of a log's last line."""
_NEXT = re.compile(r"^\s*next:\s+(?P<command>.+)$", re.MULTILINE)


class Cause(IntEnum):
    """What keeps a task, worst first."""

    FAILED = 0
    FAILED_WITH = 1
    """A job that it waits for has failed."""
    STUCK = 2
    """Queued, and can never start, or only after a command."""
    FULL_DISK = 3
    LOST = 4
    """It recorded that it runs, and does not."""
    SILENT = 5
    """It should run, and its heart does not beat."""
    LEFT = 6
    """Work is left, and it is not queued."""
    AGAIN = 7
    """Its last attempt ended early, and it is queued again."""
    QUEUED = 8
    WAITS = 9
    """It runs, and waits for tasks that do not."""
    RUNS = 10
    LATER = 11
    """It waits for other jobs of the run."""
    DONE = 12


@dataclass(frozen=True)
class Explanation:
    job: str
    index: int
    cause: Cause
    sentence: str
    """Without its subject, as ``is queued, because ...``."""
    next: str
    """What to type next."""
    together: str = ""
    """For several tasks of the job that differ in node and time only; empty where the same."""
    failed_at: float = 0.0
    """Seconds since the epoch; 0 for other causes."""

    @property
    def group(self) -> str:
        """Shared by tasks of a job with the same reason."""
        return self.together or self.sentence


def explain_state(look: RunLook, job: Job, index: int) -> Explanation:
    record, queued = look.records[job.name][index], look.queued_tasks.get((job.name, index))
    if record.state is TaskState.DONE:
        return Explanation(job.name, index, Cause.DONE, f"is done since {clock(record.time)}", NOTHING)
    if (job.name, index) in look.running_tasks:
        return _explain_running(look, job, index, record)
    if queued is not None:
        return _explain_queued(look, job, index, record, queued)
    if record.state is TaskState.FAILED:
        return _explain_failure(look, job, index, record)
    if record.state is TaskState.UNREADABLE:
        sentence = f"is in a state that is not known: {_first_line(record)}"
        return Explanation(job.name, index, Cause.LOST, sentence, _recorded_advice(record) or _again(look))
    if job.name in look.queues.ids and job.name not in look.queues.tasks:
        sentence = f"was submitted as job {', '.join(look.queues.ids[job.name])}, of which the queue says nothing"
        later = Advice("mrt-hpc explain {run}, later", run=look.layout.root)
        return Explanation(job.name, index, Cause.QUEUED, sentence, later)
    return _explain_unqueued(look, job, index, record)


def _again(look: RunLook) -> str:
    if not look.layout.recipe_lock.is_file():
        return Advice(
            "restore {lock} from a backup, without which the run cannot go on; mrt-hpc status {run} works without it",
            lock=look.layout.recipe_lock,
            run=look.layout.root,
        )
    return f"{look.layout.again}, which submits what is missing; finished results stay"


def _explain_failure(look: RunLook, job: Job, index: int, record: TaskRecord) -> Explanation:
    if record.awaited:
        cause, sentence = Cause.FAILED_WITH, f"has failed because it waits for {', '.join(record.awaited)}"
    else:
        cause, sentence = Cause.FAILED, f"has failed: {_first_line(record)}"
    advised = _recorded_advice(record) or _log_advice(look, job)
    command = advised if "submit" in advised else f"{advised}; then {_again(look)}"
    if job.role is Role.REPORT and any(one.name not in look.jobs_done for one in look.plan.jobs if one is not job):
        cause = Cause.LEFT  # it is incomplete because others are
    return Explanation(job.name, index, cause, sentence, command, failed_at=record.time)


def _log_advice(look: RunLook, job: Job) -> str:
    return Advice("mrt-hpc logs {run} {role} -n 100", run=look.layout.root, role=job.role)


def _explain_running(look: RunLook, job: Job, index: int, record: TaskRecord) -> Explanation:
    queued, run = look.queued_tasks.get((job.name, index)), look.layout.root
    where = f" on {queued.nodes}" if queued is not None and queued.nodes else ""
    since = f" since {clock(record.time)}" if record.state is TaskState.RUNNING else ""
    if (lacking := _task_shortage(look, job.name, index)) is not None:
        waits = f"and has no room to write: {lacking.what}"
        advice = f"{lacking.next}: the run continues by itself; `{lacking.shown_by} {run}` shows what is left"
        return Explanation(job.name, index, Cause.FULL_DISK, f"runs{where}, {waits}", advice, f"runs, {waits}")
    if (job.name, index) in look.tasks_between_attempts:
        words = f"{_last_end(record)}; the queue says that it runs{where}: it is about to leave, or to begin again"
        command = Advice("mrt-hpc explain {run} {name}, in a minute", run=run, name=job.name)
        return Explanation(job.name, index, Cause.AGAIN, words, command)
    if (age_s := look.standstill_s.get((job.name, index))) is not None:
        sentence = f"runs{where}{since}, and has given no sign of life for {age_s:.0f} s"
        command = Advice(
            "mrt-hpc explain {run} {name}, in a minute: where its node is lost, it runs again", run=run, name=job.name
        )
        return Explanation(job.name, index, Cause.SILENT, sentence, command, "runs, and gives no sign of life")
    if away := _peers_away(look, job):
        waits = f"and waits for {', '.join(away)}, of which no task is at work"
        command = Advice("mrt-hpc explain {run} {away}", run=run, away=away[0])
        return Explanation(job.name, index, Cause.WAITS, f"runs{where}{since}, {waits}", command, f"runs, {waits}")
    watch, again = str(Advice("mrt-hpc status {run} --watch", run=run)), ""
    if record.failures and record.message:
        again = f", after {record.failures} attempt(s) that failed ({_first_line(record)})"
        watch = f"{watch}; where this attempt fails in the same way: {_recorded_advice(record) or _again(look)}"
    return Explanation(job.name, index, Cause.RUNS, f"runs{where}{since}{again}", watch, f"runs{again}")


def _peers_away(look: RunLook, job: Job) -> list[str]:
    """The segment's jobs of the other role, not done and without a task at work."""
    if job.role not in (Role.INFERENCE, Role.TRAINER) or job.segment is None:
        return []
    role = Role.TRAINER if job.role is Role.INFERENCE else Role.INFERENCE
    others = [peer for peer in look.plan.jobs if peer.segment == job.segment and peer.role is role]
    if any(peer.name in look.jobs_at_work for peer in others):
        return []
    return [peer.name for peer in others if peer.name not in look.jobs_done]


def _explain_queued(look: RunLook, job: Job, index: int, record: TaskRecord, queued: QueuedTask) -> Explanation:
    """A queued task, for the first time or again."""
    before = _last_end(record)
    meaning = look.queues.meaning(job.name, queued.reason)
    start = f"{before} and is queued again" if before else "is queued"
    if queued.reason == "Dependency" or (meaning is not None and meaning.hold is Hold.JOBS):
        sentence = f"{start}; it waits for {_awaited_jobs_text(look, job) or 'other jobs'}"
        return Explanation(job.name, index, Cause.LATER, sentence, _dependency_advice(look, job, queued))
    if meaning is None:
        why = f", for the reason {queued.reason}, which is not known here" if queued.reason else ""
        see = f"`scontrol show job {queued.task_id}` shows more" if queued.reason else "nothing; look again in a minute"
        return Explanation(job.name, index, Cause.QUEUED, f"{start}{why}", see)
    stuck = meaning.hold in (Hold.USER, Hold.ADMINISTRATOR, Hold.NEVER)
    cause = Cause.STUCK if stuck else Cause.AGAIN if before else Cause.QUEUED
    array = queued.task_id.partition("_")[0]
    command = Advice(meaning.next, id=queued.task_id, array=array, run=look.layout.root, role=job.role.section)
    waits = " and waits" if before else ""
    sentence = f"{start}{waits}, because {meaning.means} ({queued.reason or 'no reason given'})"
    return Explanation(job.name, index, cause, sentence, command)


def _dependency_advice(look: RunLook, job: Job, queued: QueuedTask) -> str:
    """What to type for a task that waits for other jobs."""
    failed = [wait.job for wait in job.after if _has_failed(look, wait.job) and wait.kind is DependencyKind.AFTEROK]
    if failed:
        return Advice("mrt-hpc explain {run} {failed}", run=look.layout.root, failed=failed[0])
    if not _awaited_jobs_text(look, job):
        return f"nothing: it starts by itself; `scontrol show job {queued.task_id}` names these jobs"
    return "nothing: it starts by itself"


def _has_failed(look: RunLook, job: str) -> bool:
    return any(record.state is TaskState.FAILED for record in look.records[job])


def _last_end(record: TaskRecord) -> str:
    """How a queued task's last attempt ended; empty without one."""
    return {
        TaskState.GAVE_BACK: f"returned its nodes ({_first_line(record).removeprefix('gave the nodes back: ')})",
        TaskState.RETRYING: f"has failed {record.failures} time(s) in a row ({_first_line(record)})",
        TaskState.STOPPED: "was stopped from outside (preempted, cancelled, interrupted or at its time limit)",
        TaskState.RUNNING: "was lost without a record (its node failed, or it was killed)",
        TaskState.FAILED: f"has failed ({_first_line(record)})",
    }.get(record.state, "")


def _explain_unqueued(look: RunLook, job: Job, index: int, record: TaskRecord) -> Explanation:
    awaited = _awaited_jobs_text(look, job)
    if look.runs_here or look.runs_elsewhere:
        if awaited:
            return Explanation(job.name, index, Cause.LATER, f"waits for {awaited}", "nothing: it starts by itself")
        before = f"{words} and " if (words := _last_end(record)) else ""
        sentence = f"{before}waits for free cores, memory or GPUs of the machine that runs the plan"
        cause = Cause.AGAIN if before else Cause.QUEUED
        return Explanation(job.name, index, cause, sentence, "nothing: it starts by itself")
    if record.state is TaskState.WAITING and awaited:
        return Explanation(job.name, index, Cause.LATER, f"has not begun: it waits for {awaited}", _again(look))
    if look.sweeping is not None:
        sentence = f"waits for its turn in the sweep that process {look.sweeping.pid} runs"
        return Explanation(job.name, index, Cause.QUEUED, sentence, "nothing: it starts by itself")
    if look.cancelled is not None:
        at_work = record.state in (TaskState.STOPPED, TaskState.RUNNING)
        words = "was stopped" if at_work else f"{_last_end(record) or 'has not begun'}, and was taken out of the queue"
        sentence = f"{words} by `mrt-hpc cancel` at {clock(look.cancelled)}"
        return Explanation(job.name, index, Cause.LEFT, sentence, _again(look))
    facts, command = _early_end(look, job, index, record)
    left = f" ({'; '.join(facts)})" if facts else ""
    if record.state is TaskState.RUNNING:
        sentence = f"was lost: it recorded no end, and it does not run{left}"
        return Explanation(job.name, index, Cause.LOST, sentence, command)
    words = _last_end(record) or ("ended before it began its work" if facts else "has not begun")
    return Explanation(job.name, index, Cause.LEFT, f"{words}, and is not queued{left}", command)


def _early_end(look: RunLook, job: Job, index: int, record: TaskRecord) -> tuple[list[str], str]:
    """How the last attempt ended, by queue, job script and log, and what to type next."""
    notes = look.scripts.get((job.name, index), ScriptNotes())
    tasks = [task for task in look.queues.tasks.get(job.name, ()) if task.has_ended and task.index == index]
    # a job of the run that has completed has recorded it: an account that says so is of a job that had this id before
    unsaid = (QueueState.UNKNOWN, QueueState.COMPLETED)
    queued = next((task for task in reversed(tasks) if task.state not in unsaid), None)
    facts = [f"the queue says: {queued.state}"] if queued is not None else []
    if record.state not in (TaskState.WAITING, TaskState.RUNNING) and not comes_after(notes.attempt, record.attempt):
        advised = _recorded_advice(record) if record.state is TaskState.RETRYING else None
        return facts, advised or _again(look)  # the attempt has recorded how it ended
    if record.attempt == notes.attempt:
        notes = replace(notes, setup="", lacks=set())  # its Python has begun
    early = EarlyEnd(notes, notes.code or (0 if queued is None else queued.exit_code))
    if queued is None and not early.code and not (notes.setup and notes.code is None):
        return [], _again(look)
    facts += early.facts
    if node := (queued.nodes if queued is not None else "") or notes.node:
        facts.append(f"its node was {node}")
    if words := _last_words(look, job.name, index):
        facts.append(f"its log ends: {words[:LONGEST_QUOTE]}")
    shown = _log_advice(look, job) if words else ""
    if queued is not None and early.code and not words:
        shown = f"`sacct -j {queued.job_id} -o jobid,state,exitcode,maxrss,nodelist`"
    return facts, early.next(look.layout) or (f"{shown} shows more; then {_again(look)}" if shown else _again(look))


def _awaited_jobs_text(look: RunLook, job: Job) -> str:
    """The unfinished jobs that a job waits for, in words."""
    names = [wait.job for wait in job.after if not _is_dependency_fulfilled(look, wait.job, wait.kind)]
    return " and ".join(f"{name}, {_activity(look, name)}" for name in names[:3])


def _is_dependency_fulfilled(look: RunLook, job: str, kind: DependencyKind) -> bool:
    if job in look.jobs_done:
        return True
    over = (TaskState.DONE, TaskState.FAILED)
    return kind is DependencyKind.AFTERANY and all(record.state in over for record in look.records[job])


def _activity(look: RunLook, job: str) -> str:
    records = look.records[job]
    if _has_failed(look, job):
        return "which has failed"
    if job in look.jobs_running:
        return "which runs"
    if done := sum(record.state is TaskState.DONE for record in records):
        return f"of which {done} of {len(records)} tasks are done"
    return "which is queued" if job in look.jobs_queued else "which has not ended"


def _first_line(record: TaskRecord) -> str:
    return record.message.strip().partition("\n")[0] or "no reason was recorded"


def _recorded_advice(record: TaskRecord) -> str | None:
    advices = _NEXT.findall(record.message)
    return advices[-1].strip() if advices else None


def stuck_tasks(look: RunLook) -> list[Explanation]:
    """Running tasks that cannot go on, for lack of room, a sign of life, or awaited tasks."""
    causes = (Cause.FULL_DISK, Cause.SILENT, Cause.WAITS)
    running = (explain_state(look, job, n) for job, n, _ in look.tasks() if (job.name, n) in look.running_tasks)
    return [explanation for explanation in running if explanation.cause in causes]


def _task_shortage(look: RunLook, job: str, index: int) -> Shortage | None:
    """The shortage that stops a waiting task's writes. Its log, perhaps on the same disk, also tells of a quota."""
    words = _last_words(look, job, index)
    said = next((lacking for lacking in SHORTAGES if f"{PAUSED}: {lacking.what} (" in words), None)
    return said or look.disk_shortage


def _last_words(look: RunLook, job: str, index: int) -> str:
    """The last line of a task's log."""
    logs = [log for log in look.logs.get((job, index), ()) if log.is_own]
    if not logs:
        return ""
    newest = max(logs, key=lambda log: write_time(log.path))
    return (tail(newest.path, LOG_TAIL).strip().splitlines() or [""])[-1]


def clock(at: float) -> str:
    """A moment by this machine's clock."""
    return time.strftime("%a %d %b %H:%M", time.localtime(at))


# -- what is said of a run or a task: what stops a run is named before what only delays it

_TASK = re.compile(r"(?P<job>[^\[\]]+)(?:\[(?P<index>\d+)\])?")


@dataclass(frozen=True)
class Statement:
    sentence: str
    next: str
    details: tuple[str, ...] = ()
    """The full reason, last traceback, other tasks and earlier attempts."""


def task_named(look: RunLook, text: str) -> tuple[Job, int | None]:
    """A job and index from ``segment-000.inference[3]``; without an index all tasks."""
    match = _TASK.fullmatch(text)
    names = [job.name for job in look.plan.jobs]
    if match is None or match["job"] not in names:
        guess = nearest(text.partition("[")[0], names)
        raise UserError(
            "the run has no such job",
            value=text,
            expected=f"{guess} is the nearest" if guess else f"one of {', '.join(names)}",
            advice=Advice("mrt-hpc explain {run} {guess}", run=look.layout.root, guess=guess or names[0]),
        )
    job = look.plan.job(match["job"])
    index = None if match["index"] is None else int(match["index"])
    if index is not None and index >= job.tasks:
        raise UserError(
            f"job {job.name} has no such task",
            value=text,
            expected=f"an index from 0 to {job.tasks - 1}",
            advice=Advice("mrt-hpc explain {run} {task}", run=look.layout.root, task=f"{job.name}[0]"),
        )
    return job, index


def explain_run(look: RunLook, history: RunHistory) -> Statement:
    measured, _ = newest_metrics(look.layout, max(published_versions(look.layout), default=0))
    warned = [f"warning: {warning}" for warning in warnings(look.layout, measured)]
    if look.state is RunState.FINISHED:
        sentence = f"The run is finished: all {sum(job.tasks for job in look.plan.jobs)} tasks are done."
        return Statement(sentence, Advice("mrt-hpc report {run}", run=look.layout.root), tuple(warned))
    left = ((job, index) for job, index, record in look.tasks() if record.state is not TaskState.DONE)
    groups = group_explanations(explain_state(look, job, index) for job, index in left)
    first = groups[0]
    details = [*_reasons(look, first[0]), *_set_aside(history), *warned]
    others = [_sentence(look, group) for group in groups[1:] if group[0].cause < Cause.LATER]
    if later := Counter(one.job for group in groups[1:] for one in group if one.cause is Cause.LATER):
        others.append(f"{sum(later.values())} task(s) wait for these: {few_names(list(later))}.")
    for name, why in look.queues.unreached.items():
        others.append(f"The queue was not reached ({name}: {why}); all else is from the run's files.")
    state = "is paused" if first[0].cause is Cause.FULL_DISK else IN_WORDS[look.state]
    details += [*others, *look.unreadable, *look.unread_logs, *history.stream.faults]
    return Statement(f"The run {state}: {_sentence(look, first)}", first[0].next, tuple(details))


def explain_job(look: RunLook, history: RunHistory, text: str) -> list[Statement]:
    """One task, or a job's tasks grouped by the same reason.

    Args:
        text: a job, task (:func:`task_named`) or role, which means all its jobs.
    """
    of_role = [job.name for job in look.plan.jobs if job.role == text]
    if of_role and text not in of_role:
        return [said for name in of_role for said in explain_job(look, history, name)]
    job, index = task_named(look, text)
    if index is not None or job.tasks == 1:
        return [explain_task(look, history, job, index or 0)]
    groups = group_explanations(explain_state(look, job, number) for number in range(job.tasks))
    return [Statement(_sentence(look, group), group[0].next, tuple(_reasons(look, group[0]))) for group in groups]


def explain_task(look: RunLook, history: RunHistory, job: Job, index: int) -> Statement:
    explanation = explain_state(look, job, index)
    happenings = [h for h in history.all_happenings(look.record_of) if (h.job, h.index) == (job.name, index)][-5:]
    attempts = history.attempts_of(job.name, index)
    lines = [*_reasons(look, explanation), *([f"{attempts} attempt(s) have begun."] if attempts else [])]
    lines += [f"{clock(h.time)}  {h.kind}{f' ({h.detail})' if h.detail else ''}" for h in happenings]
    return Statement(_sentence(look, [explanation]), explanation.next, tuple(lines))


def group_explanations(explanations: Iterable[Explanation]) -> list[list[Explanation]]:
    """Tasks of a job grouped by reason: worst first, first failure first, else in plan order."""
    groups: dict[tuple[str, str], list[Explanation]] = {}
    for explanation in explanations:
        groups.setdefault((explanation.job, explanation.group), []).append(explanation)
    return sorted(groups.values(), key=lambda group: (group[0].cause, group[0].failed_at))


def _sentence(look: RunLook, group: Sequence[Explanation]) -> str:
    return f"{_subject(look, group)} {group[0].group if len(group) > 1 else group[0].sentence}."


def _subject(look: RunLook, group: Sequence[Explanation]) -> str:
    """A group's tasks in words, with the id of a single queued one."""
    first = group[0]
    tasks = look.plan.job(first.job).tasks
    if len(group) > 1:
        return f"{first.job} ({len(group)} of {tasks} tasks)"
    name = first.job if tasks == 1 else f"{first.job}[{first.index}]"
    queued = look.queued_tasks.get((first.job, first.index))
    return name if queued is None else f"{name} (job {queued.task_id})"


def _reasons(look: RunLook, explanation: Explanation) -> list[str]:
    """A failure's whole reason, and the last traceback in the task's logs."""
    record = look.records[explanation.job][explanation.index]
    if explanation.cause not in (Cause.FAILED, Cause.FAILED_WITH) and record.state is not TaskState.RETRYING:
        return []
    whole = record.message.strip()
    lines = [whole] if "\n" in whole else []  # the sentence has its first line
    found_in = last_traceback(look.logs.get((explanation.job, explanation.index), []))
    return lines if found_in is None else [*lines, f"the last traceback, in {found_in[0].path}:\n{found_in[1]}"]


def _set_aside(history: RunHistory) -> list[str]:
    """What was damaged and moved away last."""
    if not (moved := [one for one in history.happenings if one.kind == "set aside"]):
        return []
    last = moved[-1]
    return [f"{len(moved)} file(s) or folder(s) were set aside, the last at {clock(last.time)} ({last.detail})."]


def failure_text(look: RunLook, role: str | None) -> str | None:
    """A run's (or role's) first failure with its last traceback, or None.

    A final failure comes before one that runs again.
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
    explanation = explain_state(look, job, index)
    return "\n".join([_sentence(look, [explanation]), *_reasons(look, explanation)])
