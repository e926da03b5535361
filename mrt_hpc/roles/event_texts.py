"""Faults, resumes and changes of a run, in words, from the events of its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mrt_hpc.analysis.report.content import Happening
from mrt_hpc.run.events import EventKind, read_events
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
    attempts = _Attempts()
    texts = [
        happening for event in read_events(layout.events) for happening in happenings_of(event, attempts.task_of(event))
    ]
    ends = [lost(event["time"], _task(event)) for event in attempts.without_end if not _is_running(layout, event)]
    return tuple(sorted((*texts, *ends), key=lambda h: h.time))


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


def _is_running(layout: RunLayout, event: Mapping[str, Any]) -> bool:
    """Whether an attempt that began with this event is the one that its task is in now."""
    record = shown_task(layout, event["job"], event["task"])
    return record.state is TaskState.RUNNING and record.attempt == event["attempt"]


class _Attempts:
    """The attempts that events name, by process."""

    def __init__(self) -> None:
        self._of: dict[tuple[Any, Any], Mapping[str, Any]] = {}
        self._open: dict[str, Mapping[str, Any]] = {}

    def task_of(self, event: Mapping[str, Any]) -> str:
        """Take an event into account, and return the task of its process."""
        process = (event.get("host"), event.get("pid"))
        if event["kind"] == EventKind.TASK_STARTED:
            self._of[process] = event
        began = self._of.get(process)
        if began is None:
            return "submission"
        if began["rank"] == 0 and event["kind"] == EventKind.TASK_ENDED:
            self._open.pop(began["attempt"], None)
        elif event is began and began["rank"] == 0:
            self._open[began["attempt"]] = event
        return _task(began)

    @property
    def without_end(self) -> list[Mapping[str, Any]]:
        """The events with which the attempts began that have no end."""
        return list(self._open.values())


def _task(event: Mapping[str, Any]) -> str:
    return f"{event['job']} task {event['task']}"


def _detail(event: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in event.items() if name not in _EMITTER)
