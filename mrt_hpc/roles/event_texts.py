"""Faults, resumes and changes of a run, in words, from the events of its tasks."""

from collections.abc import Iterator, Mapping
from typing import Any

from mrt_hpc.analysis.report.content import Happening
from mrt_hpc.run.events import EventKind, EventStream, Process
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskState, shown_task

_WORDS = {
    EventKind.RESUMED: "resumed from a checkpoint",
    EventKind.SET_ASIDE: "set aside",
    EventKind.SERVER_RESTARTED: "vLLM server started again",
    EventKind.GROUP_DISCARDED: "result came second and was dropped",
    EventKind.SHARD_DISCARDED: "result came second and was dropped",
    EventKind.RECIPE_CHANGED: "recipe changed",
    EventKind.STEP_SKIPPED: "optimiser step skipped, as loss or gradient was not finite",
    EventKind.GRADING: "answers that the grader could not judge",
}
"""The events that are shown besides the ends of attempts."""
_EMITTER = frozenset({"time", "kind", "host", "pid", "job", "task", "rank", "attempt"})


def happenings(layout: RunLayout) -> tuple[Happening, ...]:
    """What the event logs say of faults and resumes, by time. Of the ranks of a task, rank 0 reports its attempts."""
    recorded = EventStream(layout.events).new()
    texts = [text for each in recorded for text in happenings_of(each.event, task_of(each.process))]
    ended = {each.process for each in recorded if each.kind == EventKind.TASK_ENDED}
    begun = {p: e.time for e in recorded if e.kind == EventKind.TASK_STARTED and (p := e.process) and p.rank == 0}
    left = [process for process in begun if process not in ended and not _is_running(layout, process)]
    ends = [lost(begun[process], task_of(process)) for process in left]
    return tuple(sorted((*texts, *ends), key=lambda h: h.time))


def task_of(process: Process | None) -> str:
    """The task of a process in words, as happenings name it."""
    return "submission" if process is None else f"{process.job} task {process.index}"


def happenings_of(event: Mapping[str, Any], task: str) -> Iterator[Happening]:
    """What an event is to a reader, if anything. Every rank resumes and ends, and the first one reports it.

    Args:
        event: of a process.
        task: the job and the index of its task.
    """
    kind, first = event["kind"], not event.get("rank")
    if kind in _WORDS and (first or kind != EventKind.RESUMED):
        yield Happening(event["time"], _WORDS[EventKind(kind)], task, _detail(event))
    elif kind == EventKind.TASK_ENDED and first and event.get("outcome") != TaskState.DONE:
        yield Happening(event["time"], f"attempt ended: {event.get('outcome')}", task, "")


def lost(began: float, task: str) -> Happening:
    """An attempt that was lost: it began at this time, and recorded no end."""
    return Happening(began, "attempt lost: it recorded no end", task, "its begin is shown")


def _is_running(layout: RunLayout, process: Process) -> bool:
    """Whether the attempt of a process is the one that its task is in now."""
    record = shown_task(layout, process.job, process.index)
    return record.state is TaskState.RUNNING and record.attempt == process.attempt


def _detail(event: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in event.items() if name not in _EMITTER)
