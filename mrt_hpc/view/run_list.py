"""Lists runs below directories with kind and state, asking the queue once for all."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from mrt_hpc.attempt.run_progress import progress
from mrt_hpc.backends.queued_jobs import QueueLook, look_at_runs
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.run.event_stream import ProcessEvent, is_log, last_event
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.view.run_look import NO_QUEUES, RunLook, RunState

DEEPEST = 4
"""Folders deep in which runs are looked for."""


class ListedRun(BaseModel):
    """A run as ``runs --json`` prints it. Fields are added, never renamed or removed. Times are seconds since the
    epoch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    """Its directory."""
    name: str
    kind: str = "unknown"
    """The algorithm; or an evaluation's suite, as ``suite paper_20``."""
    state: RunState | None = None
    """None where the directory is damaged."""
    iterations_done: int = 0
    iterations_planned: int = 0
    """0 for a separate evaluation."""
    evaluations_done: int = 0
    """Array tasks."""
    evaluations_planned: int = 0
    newest_event: float | None = None
    """Its time by its node's clock, or null."""
    newest_event_kind: str | None = None
    """As ``group_committed``."""
    bytes: int | None
    """On disk; null where not asked for."""
    trouble: str
    """Why directory, file or queue could not be read; else empty."""


def list_runs(places: Iterable[Path], within_s: float, *, size: bool) -> list[ListedRun]:
    """Runs in and below directories, the newest event first.

    Args:
        places: missing ones hold no runs.
        within_s: for a queue's answer.
        size: measure disk use, which reads every folder.
    """
    layouts = [RunLayout(run) for run in dict.fromkeys(run for place in places for run in runs_below(place.absolute()))]
    going_on = [layout for layout in layouts if not _is_finished(layout)]
    looks = dict(zip(going_on, look_at_runs(going_on, within_s), strict=True))
    listed = [_list_run(layout, looks.get(layout, NO_QUEUES), size=size) for layout in layouts]
    return sorted(listed, key=lambda run: -(run.newest_event or 0.0))


def runs_below(place: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Sorted by name; none lies in another."""
    if (place / "plan.json").is_file():
        yield place
    elif depth:
        for folder in sorted(_folders(place)):
            yield from runs_below(folder, depth - 1)


def _folders(place: Path) -> list[Path]:
    """None where unreadable. Links, which may be circular, are not followed."""
    try:
        with os.scandir(place) as entries:
            return [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False) and one.name[0] != "."]
    except OSError:
        return []


def _is_finished(layout: RunLayout) -> bool:
    """Whether all tasks are done; True for a damaged run, about which no queue is asked."""
    try:
        return RunLook.load_records(layout, read_plan(layout.plan)).state is RunState.FINISHED
    except UserError:
        return True


def _list_run(layout: RunLayout, queues: QueueLook, *, size: bool) -> ListedRun:
    """A damaged run is listed with the reason."""
    room = bytes_of(layout.root) if size else None
    try:
        return _whole(layout, queues, room)
    except UserError as error:
        trouble = f"{error.what} ({error.where})"
        return ListedRun(run=str(layout.root), name=layout.root.name, bytes=room, trouble=trouble)


def _whole(layout: RunLayout, queues: QueueLook, room: int | None) -> ListedRun:
    plan = read_plan(layout.plan)
    look, event = RunLook.load_records(layout, plan, queues), newest_event(layout)
    now = progress(plan, layout, look.records)
    unreached = (f"the queue was not reached ({name}): {why}" for name, why in queues.unreached.items())
    return ListedRun(
        run=str(layout.root),
        name=plan.name,
        kind=plan.kind,
        state=look.state,
        iterations_done=now.iterations_done,
        iterations_planned=now.iterations,
        evaluations_done=now.evaluations_done,
        evaluations_planned=now.evaluations,
        newest_event=None if event is None else event.time,
        newest_event_kind=None if event is None else event.kind,
        bytes=room,
        trouble="; ".join([*unreached, *look.faults, *now.unreadable]),
    )


def newest_event(layout: RunLayout) -> ProcessEvent | None:
    """The last event of the latest log, or None; the other logs, maybe thousands, are not read."""
    try:
        with os.scandir(layout.events) as entries:
            logs = [entry for entry in entries if is_log(entry)]
        newest = max(logs, key=lambda entry: entry.stat().st_mtime_ns, default=None)
        return None if newest is None else last_event(Path(newest.path))
    except OSError:
        return None


def bytes_of(root: Path) -> int:
    """The bytes on disk. Files with several names count once, vanished ones not."""
    seen: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(root, onerror=None):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - of a million files
            except OSError:
                continue
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())
