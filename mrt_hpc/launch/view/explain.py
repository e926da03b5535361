"""Why a run, or a task of it, waits or has failed: in a sentence, with the next command to type.

The records of the tasks, the queue's reasons and the ends of logs are read in this order; of a whole run, what stops it
is named before what only delays it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError, nearest
from mrt_hpc.launch.run_progress import newest_metrics, reason, warnings
from mrt_hpc.launch.view.log_files import last_traceback
from mrt_hpc.launch.view.run_look import IN_WORDS, RunState
from mrt_hpc.launch.view.task_cause import Cause, Explanation, clock, explained
from mrt_hpc.plan.jobs import Role
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mrt_hpc.launch.view.run_history import RunHistory
    from mrt_hpc.launch.view.run_look import RunLook
    from mrt_hpc.plan.jobs import Job, Plan

_TASK = re.compile(r"(?P<job>[^\[\]]+)(?:\[(?P<index>\d+)\])?")


@dataclass(frozen=True)
class Finding:
    """What is said about a run or a task."""

    sentence: str
    next: str
    details: tuple[str, ...] = ()
    """Further lines: the full reason, the last traceback, other tasks, earlier attempts."""


def task_named(plan: Plan, text: str) -> tuple[Job, int | None]:
    """The job and the index of a task, as in ``segment-000.inference[3]``; no index means all tasks of a job.

    Raises:
        UserError: the plan has no such job or task.
    """
    match = _TASK.fullmatch(text)
    names = [job.name for job in plan.jobs]
    if match is None or match["job"] not in names:
        guess = nearest(text.partition("[")[0], names)
        raise UserError(
            "the run has no such job",
            value=text,
            expected=f"{guess} is the nearest" if guess else f"one of {', '.join(names)}",
            advice=f"mrt-hpc explain RUN {guess or names[0]}",
        )
    job = plan.job(match["job"])
    index = None if match["index"] is None else int(match["index"])
    if index is not None and index >= job.tasks:
        raise UserError(
            f"job {job.name} has no such task",
            value=text,
            expected=f"an index from 0 to {job.tasks - 1}",
            advice=f"mrt-hpc explain RUN '{job.name}[0]'",
        )
    return job, index


def explain_run(look: RunLook, history: RunHistory) -> Finding:
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
        return Finding(sentence, f"mrt-hpc report {look.layout.word}", tuple(warned))
    found = [explained(look, job, index) for job, index, record in look.tasks() if record.state is not TaskState.DONE]
    groups = grouped(found)
    first = groups[0]
    details = [*_reasons(look, first[0]), *_set_aside(history), *warned]
    others = [_told(look, group) for group in groups[1:] if group[0].cause < Cause.LATER]
    later = sum(one.cause is Cause.LATER for one in found)
    if later:
        others.append(f"{later} task(s) wait for these.")
    for name, why in look.queues.unreached.items():
        others.append(f"The queue was not reached ({name}: {why}); all else is from the run's files.")
    state = "is paused" if first[0].cause is Cause.FULL_DISK else IN_WORDS[look.state]
    sentence = f"The run {state}: {_told(look, first)}"
    return Finding(sentence, first[0].next, (*details, *others, *look.unreadable, *history.faults))


def explain_job(look: RunLook, history: RunHistory, text: str) -> list[Finding]:
    """Why one task is in its state, or all tasks of a job: those that are where they are for the same reason together.

    Args:
        look: as in :func:`explain_run`.
        history: as in :func:`explain_run`.
        text: the job or the task, as in :func:`task_named`.

    Raises:
        UserError: the plan has no such job or task.
    """
    job, index = task_named(look.plan, text)
    if index is not None or job.tasks == 1:
        return [explain_task(look, history, job, index or 0)]
    groups = grouped(explained(look, job, number) for number in range(job.tasks))
    return [Finding(_told(look, group), group[0].next, tuple(_reasons(look, group[0]))) for group in groups]


def explain_task(look: RunLook, history: RunHistory, job: Job, index: int) -> Finding:
    """Why one task is in its state; arguments as in :func:`explain_run`."""
    found = explained(look, job, index)
    words = f"{job.name} task {index}"
    told = [one for one in history.all_happenings(look.records) if one.task == words][-5:]
    attempts = history.attempts_of(job.name, index)
    lines = [f"{attempts} attempt(s) have begun."] if attempts else []
    lines += [f"{clock(one.time)}  {one.kind}{f' ({one.detail})' if one.detail else ''}" for one in told]
    sentence = _told(look, [found])
    return Finding(sentence, found.next, (*_reasons(look, found), *lines))


def grouped(found: Iterable[Explanation]) -> list[list[Explanation]]:
    """Tasks of a job that are where they are for the same reason, together; the worst reason first, the first
    failure before later ones, and else in the order of the plan.
    """
    groups: dict[tuple[str, str], list[Explanation]] = {}
    for one in found:
        groups.setdefault((one.job, one.group), []).append(one)
    return sorted(groups.values(), key=lambda group: (group[0].cause, group[0].failed_at))


def _told(look: RunLook, group: Sequence[Explanation]) -> str:
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


def _reasons(look: RunLook, found: Explanation) -> list[str]:
    """The whole reason of a failure and the last traceback in the logs of the task."""
    record = look.records[found.job][found.index]
    if found.cause not in (Cause.FAILED, Cause.FAILED_WITH) and record.state is not TaskState.RETRYING:
        return []
    whole = reason(record)
    told = [whole] if "\n" in whole else []  # the sentence has its first line
    found_in = last_traceback(look.logs.get((found.job, found.index), []))
    return told if found_in is None else [*told, f"the last traceback, in {found_in[0].path}:\n{found_in[1]}"]


def _set_aside(history: RunHistory) -> list[str]:
    """What was damaged and moved away last, in words."""
    moved = [one for one in history.happenings if one.kind == "set aside"]
    if not moved:
        return []
    last = moved[-1]
    return [f"{len(moved)} file(s) or folder(s) were set aside, the last at {clock(last.time)} ({last.detail})."]


def failure_text(look: RunLook, role: str | None = None) -> str | None:
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
    *_, job, index = min(failed, key=lambda one: one[:3])
    found = explained(look, job, index)
    return "\n".join([_told(look, [found]), *_reasons(look, found)])
