"""Faults, resumes and changes of a run, in words, from the events of its tasks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mrt_hpc.analysis.report.content import Happening
from mrt_hpc.run.events import EventKind, EventStream, Process, ProcessEvent
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.task_state import TaskRecord, TaskState, shown_task

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


@dataclass
class Happenings:
    """What the event logs of a run say of faults, resumes and changes so far."""

    stream: EventStream
    happenings: list[Happening] = field(default_factory=list)
    _open: dict[Process, float] = field(default_factory=dict)
    """When the attempts began that have no end. Of the ranks of a task, rank 0 reports its attempts."""

    def update(self) -> None:
        """Take in the events that were written since the last call."""
        for event in self.stream.new():
            self._take(event)

    def _take(self, recorded: ProcessEvent) -> None:
        process = recorded.process
        self.happenings += happenings_of(recorded.event, task_of(process))
        if process is not None and process.rank == 0 and recorded.kind == EventKind.TASK_STARTED:
            self._open[process] = recorded.time
        elif process is not None and recorded.kind == EventKind.TASK_ENDED:
            self._open.pop(process, None)

    def all_happenings(self, record_of: Callable[[str, int], TaskRecord]) -> list[Happening]:
        """Faults, resumes and changes, by time, with the attempts that have neither an end nor a task that is in them.

        Args:
            record_of: the record of the task of a job and an index.
        """
        lost = [
            Happening(began, "attempt lost: it recorded no end", task_of(process), "its begin is shown")
            for process, began in self._open.items()
            if (record := record_of(process.job, process.index)).state is not TaskState.RUNNING
            or record.attempt != process.attempt
        ]
        return sorted((*self.happenings, *lost), key=lambda happening: happening.time)


def happenings(layout: RunLayout) -> tuple[Happening, ...]:
    """All happenings of a run, by time."""
    found = Happenings(EventStream(layout.events))
    found.update()
    return tuple(found.all_happenings(partial(shown_task, layout)))


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


def _detail(event: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in event.items() if name not in _EMITTER)
