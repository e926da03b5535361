"""The state of every array task, one file each, for other tasks, back ends and ``status``.

An attempt writes it at its start and end; where it died, the back end writes it (see ``attempt.next_state``). ``done``
is final: such a task is never started again.
"""

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from mrt_hpc.errors import Advice
from mrt_hpc.run.atomic import remove_whole, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import Moment, UnreadableError, Whole, read_if_there

_OF_THE_RUN = re.compile(r"(mrt-hpc\s[a-z]+) RUN\b")
"""A command as errors write it that do not know which run."""


class TaskState(StrEnum):
    WAITING = "waiting"
    """No attempt has started yet."""
    RUNNING = "running"
    """Runs now, or was lost without a record."""
    DONE = "done"
    GAVE_BACK = "gave back"
    """The last attempt returned its nodes for the recorded reason, and is run again. Not a failure."""
    RETRYING = "retrying"
    """The last attempt failed and is run again."""
    STOPPED = "stopped"
    """Stopped from outside (preempted, cancelled, Ctrl-C); another attempt continues its work."""
    FAILED = "failed"
    """Failed for good: another attempt cannot help, or too many failed."""
    UNREADABLE = "unreadable"
    """Its file cannot be read. Only shown by commands, never written."""


RUNS_AGAIN = frozenset({TaskState.GAVE_BACK, TaskState.RETRYING, TaskState.STOPPED})
"""The states after which a task is started again; a stopped task only if no user stopped it."""


@dataclass(frozen=True)
class TaskRecord:
    state: TaskState
    attempt: str = ""
    message: str = ""
    """The error, or why the attempt returned its nodes."""
    failures: Whole = 0
    """Consecutive failures without a result that stays; one after such a result counts as the first. Preemptions, node
    losses and returned nodes do not count.
    """
    time: Moment = 0.0
    """Seconds since the epoch, by the writer's clock."""
    awaited: tuple[str, ...] = ()
    """After returned nodes: jobs of which one must run before it can continue. After a failure: the jobs that caused
    it.
    """
    waits: Whole = 0
    """Attempts in a row that returned nodes because the awaited jobs did not run, while no task of the segment finished
    anything.
    """
    finished: Whole = 0
    """Results of the segment at the last of these attempts."""
    returns: Whole = 0
    """Attempts in a row that returned nodes for another reason and finished nothing."""


def task_file(layout: RunLayout, job: str, index: int) -> Path:
    return layout.root / "tasks" / job / f"{index:05d}.json"


def write_task(layout: RunLayout, job: str, index: int, record: TaskRecord) -> None:
    """Replace a task's state. The commands in its message get this run, and the section of its role."""
    message = _OF_THE_RUN.sub(lambda match: f"{match[1]} {layout.word}", record.message)
    role = job.rpartition(".")[2]
    message = message.replace("resources.ROLE.", f"resources.{'trainer' if role == 'colocated' else role}.")
    write_json(task_file(layout, job, index), asdict(replace(record, message=message, time=time.time())))


def read_task(layout: RunLayout, job: str, index: int) -> TaskRecord:
    """WAITING when nothing was written yet.

    Raises:
        UnreadableError: the file is damaged.
    """
    path = task_file(layout, job, index)
    advice = Advice("rm -r {path}: the task runs again, and its finished results stay", path=path)
    return read_if_there(path, TaskRecord, "the state of a task", TaskRecord(TaskState.WAITING), advice=advice)


def shown_task(layout: RunLayout, job: str, index: int) -> TaskRecord:
    """As :func:`read_task`, but ``unreadable`` for a damaged file."""
    try:
        return read_task(layout, job, index)
    except UnreadableError as error:
        return TaskRecord(TaskState.UNREADABLE, message=error.message())


def read_tasks(
    layout: RunLayout, job: str, tasks: int, read: Callable[[RunLayout, str, int], TaskRecord] = read_task
) -> list[TaskRecord]:
    """All tasks' states, by index. The folder is listed once, so that the many tasks without a file cost nothing."""
    there = {path.name for path in list_directory(task_file(layout, job, 0).parent)}
    waiting = TaskRecord(TaskState.WAITING)
    return [read(layout, job, index) if f"{index:05d}.json" in there else waiting for index in range(tasks)]


def forget_failures(layout: RunLayout, job: str, tasks: Iterable[int]) -> None:
    """Let these failed tasks run again, as the user asked."""
    for index in tasks:
        if read_task(layout, job, index).state is not TaskState.DONE:
            remove_whole(task_file(layout, job, index))
