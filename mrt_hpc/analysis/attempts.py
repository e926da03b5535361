"""The attempts of a run's tasks, as their events tell of them: begin, end, and what the time between was used for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mrt_hpc.run.events import PROGRESS, EventKind, events_by_process
from mrt_hpc.run.heartbeats import last_beat
from mrt_hpc.run.task_state import TaskState, shown_task
from mrt_hpc.run.uses import Use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mrt_hpc.run.layout import RunLayout

    Event = Mapping[str, Any]

Uses = tuple[tuple[float, Use], ...]
"""When each use of the time of a process began, by time."""
OF_NO_WORK = frozenset({Use.WAITING, Use.ENDING})
"""Uses that are not lost with an attempt: another attempt does not have to do them again."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at an array task. Times are seconds since the epoch, by the clock of its node."""

    job: str
    task: int
    """The index of the task within its job."""
    name: str
    """On Slurm the task's id, a dot, and how often it was started again."""
    started: float
    """When its process began to run the task."""
    began: float
    """When its job began; where the job script did not tell, the same as ``started``."""
    ended: float
    """When its job ended; where nothing tells, the last sign of life."""
    uses: tuple[tuple[float, Use], ...]
    """When each use began. The first one began with the attempt."""
    kept: float
    """When it had its last result that stays; ``began`` where it had none."""
    loses: bool
    """Whether its work after ``kept`` is lost."""
    branch_share: float
    """The share of the prover's branches in the tokens that it sampled."""

    @property
    def task_id(self) -> str:
        """The id of its task in the queue, as ``1234_5``."""
        return self.name.rpartition(".")[0]

    def time_by_use(self, began: float, seconds: float) -> dict[Use, float]:
        """The seconds of each use, which add up to all seconds.

        Args:
            began: the start of the time that is divided; ``began`` of this attempt, or of its job by accounting.
            seconds: the length of that time.
        """
        ended, spent = began + seconds, dict.fromkeys(Use, 0.0)
        changes = (min(time, ended) for time, _ in self.uses[1:])
        times = [*accumulate([began, *changes], max), ended]  # a clock may have been set back
        for (_, use), start, end in zip(self.uses, times[:-1], times[1:], strict=True):
            safe = min(max(self.kept, start), end) if self.loses and use not in OF_NO_WORK else end
            spent[use] += safe - start
            spent[Use.LOST] += end - safe
        spent[Use.BRANCHING] = self.branch_share * spent[Use.GENERATING]
        spent[Use.GENERATING] -= spent[Use.BRANCHING]
        return {use: time for use, time in spent.items() if time}


def attempts(layout: RunLayout) -> list[Attempt]:
    """All attempts of a run, as the first rank of each wrote them, by their begin."""
    processes = list(events_by_process(layout.events))
    signs = _signs_of_life(processes)
    begun = [events for events in processes if events[0]["kind"] == EventKind.TASK_STARTED]
    firsts = [events for events in begun if not events[0]["rank"]]
    companions = {events[0]["attempt"]: events for events in begun if _is_companion(events[0])}
    found = (_attempt(layout, events, signs, companions.get(events[0]["attempt"], ())) for events in firsts)
    return sorted(found, key=lambda attempt: attempt.began)


def _is_companion(first: Event) -> bool:
    """Whether a process that began with this event samples for a colocated task."""
    return bool(first["rank"]) and first["rank"] == first.get("world_size")


def _signs_of_life(processes: Sequence[Sequence[Event]]) -> dict[str, float]:
    """By attempt, the end that its job script told, or the last heartbeat that the next attempt found."""
    signs: dict[str, float] = {}
    for event in (event for events in processes for event in events):
        if event["kind"] == EventKind.ALLOCATION_ENDED:
            signs[event["attempt"]] = max(event["time"], signs.get(event["attempt"], 0.0))
        elif event["kind"] == EventKind.TASK_STARTED and event.get("earlier") is not None:
            earlier = event["earlier"]
            signs[earlier["attempt"]] = max(earlier["until"], signs.get(earlier["attempt"], 0.0))
    return signs


def _attempt(
    layout: RunLayout, events: Sequence[Event], signs: Mapping[str, float], companion: Sequence[Event]
) -> Attempt:
    first, name = events[0], str(events[0]["attempt"])
    began = min(first["time"], first.get("began") or first["time"])
    told = [event for event in events if event["kind"] == EventKind.TASK_ENDED]
    outcome = TaskState(told[-1]["outcome"]) if told else None
    uses = _uses(events, began)
    if companion:
        uses = _joined(uses, _uses(companion, companion[0]["time"]))
    events = sorted([*events, *companion], key=lambda event: float(event["time"]))
    waited = max((use for use in uses if use[1] is not Use.ENDING), key=lambda use: use[0])[1] is Use.WAITING
    finished = outcome is TaskState.DONE or (outcome is TaskState.GAVE_BACK and waited)
    ended = max(events[-1]["time"], signs.get(name, 0.0), 0.0 if told else _last_beat(layout, first))
    kept = max((event["time"] for event in events if event["kind"] in PROGRESS), default=began)
    return Attempt(
        job=first["job"],
        task=first["task"],
        name=name,
        started=first["time"],
        began=began,
        ended=ended,
        uses=uses,
        kept=kept,
        loses=not finished and not (outcome is None and _runs(layout, first)),
        branch_share=_branch_share(events),
    )


def _uses(events: Sequence[Event], began: float) -> Uses:
    """When each use began. An earlier version of mrt-hpc recorded no uses: nothing is known of such an attempt."""
    told = "began" in events[0]
    changes = [(event["time"], Use(event["use"])) for event in events if event["kind"] == EventKind.USE]
    ends = [(event["time"], Use.ENDING) for event in events if event["kind"] == EventKind.TASK_ENDED]
    return ((began, Use.STARTING if told else Use.UNACCOUNTED), *changes, *ends[-1:])


def _joined(mine: Uses, companions: Uses) -> Uses:
    """When each use of a task began whose trainer and companion take turns: while the trainer waits, what the
    companion does counts.
    """
    times = sorted({time for time, _ in (*mine, *companions) if time >= mine[0][0]})
    both = [(time, _use_at(mine, time), _use_at(companions, time)) for time in times]
    return tuple((time, other if own is Use.WAITING and other is not Use.ENDING else own) for time, own, other in both)


def _use_at(uses: Uses, time: float) -> Use:
    """What the time of a process is used for at a moment; a process that has not begun waits."""
    return next((use for began, use in reversed(uses) if began <= time), Use.WAITING)


def _last_beat(layout: RunLayout, first: Event) -> float:
    """The last heartbeat of an attempt that has not ended; 0 where it has none."""
    beat = last_beat(layout.heart(first["job"], first["task"]))
    return beat[1] if beat is not None and beat[0] == first["attempt"] else 0.0


def _runs(layout: RunLayout, first: Event) -> bool:
    """Whether an attempt that recorded no end is the one that its task is in now."""
    record = shown_task(layout, first["job"], first["task"])
    return record.state is TaskState.RUNNING and record.attempt == first["attempt"]


def _branch_share(events: Sequence[Event]) -> float:
    branches = sum(event.get("branch_tokens", 0) for event in events)
    every = branches + sum(event.get("rollout_tokens", 0) for event in events)
    return branches / every if every else 0.0
