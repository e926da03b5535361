"""Faults, resumes and changes of a run in words, from its tasks' events."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mrt_hpc.analysis.report.content import Happening
from mrt_hpc.run.event_stream import EventStream, Process, ProcessEvent
from mrt_hpc.run.events import EventKind
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
"""Events shown besides the ends of attempts."""
_EMITTER = frozenset({"time", "kind", "host", "pid", "job", "task", "rank", "attempt"})


@dataclass
class Happenings:
    stream: EventStream
    happenings: list[Happening] = field(default_factory=list)
    _open: dict[Process, float] = field(default_factory=dict)
    """Start times of attempts without an end; rank 0 reports for all ranks."""

    def update(self) -> None:
        for event in self.stream.new():
            self._take(event)

    def _take(self, recorded: ProcessEvent) -> None:
        process = recorded.process
        self.happenings += happenings_of(recorded.event, process)
        if process is not None and process.rank == 0 and recorded.kind == EventKind.TASK_STARTED:
            self._open[process] = recorded.time
        elif process is not None and recorded.kind == EventKind.TASK_ENDED:
            self._open.pop(process, None)

    def all_happenings(self, record_of: Callable[[str, int], TaskRecord]) -> list[Happening]:
        """An attempt without an end counts as lost, unless it is its task's last one, whose record has the end before
        the event is written.
        """
        lost = [
            Happening(began, "attempt lost: it recorded no end", process.job, process.index, "its begin is shown")
            for process, began in self._open.items()
            if record_of(process.job, process.index).attempt != process.attempt
        ]
        return sorted((*self.happenings, *lost), key=lambda happening: happening.time)


def happenings(layout: RunLayout) -> tuple[Happening, ...]:
    found = Happenings(EventStream(layout.events))
    found.update()
    return tuple(found.all_happenings(partial(shown_task, layout)))


def happenings_of(event: Mapping[str, Any], process: Process | None) -> Iterator[Happening]:
    """An event's meaning to a reader, if it has one. The first rank reports for all; ``process`` is None for a
    submission.
    """
    kind, first = event["kind"], not event.get("rank")
    job, index = ("submission", None) if process is None else (process.job, process.index)
    if kind in _WORDS and (first or kind != EventKind.RESUMED):
        detail = "; ".join(f"{name}: {value}" for name, value in event.items() if name not in _EMITTER)
        yield Happening(event["time"], _WORDS[EventKind(kind)], job, index, detail)
    elif kind == EventKind.TASK_ENDED and first and event.get("outcome") != TaskState.DONE:
        yield Happening(event["time"], f"attempt ended: {event.get('outcome')}", job, index, "")
