"""The state of every array task, each in a file of its own: other tasks, the back ends and ``status`` read it.

An attempt writes its task's file when it starts and when it ends. Where it died without writing, the back end that
started it writes (see ``attempt.end``). ``done`` is final: a task that is done is never started again.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from mrt_hpc.errors import ExitCode, word
from mrt_hpc.run.atomic import remove_whole, write_json
from mrt_hpc.run.layout import AGAIN, RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import Moment, UnreadableError, Whole, read_if_there


class TaskState(StrEnum):
    """The state of an array task."""

    WAITING = "waiting"
    """No attempt has started yet."""
    RUNNING = "running"
    """An attempt is running, or was running when it was lost without a record."""
    DONE = "done"
    """Nothing is left to do."""
    GAVE_BACK = "gave back"
    """The last attempt returned its nodes, for the recorded reason, and is to be run again. This is not a failure."""
    RETRYING = "retrying"
    """The last attempt failed and is to be run again."""
    STOPPED = "stopped"
    """The last attempt was stopped from outside (preempted, cancelled, Ctrl-C); running it again continues its work."""
    FAILED = "failed"
    """It failed and is not started again: another attempt cannot help, or it failed too often."""
    UNREADABLE = "unreadable"
    """Its file cannot be read. Nothing writes this state: it is what commands show."""


MOST_RETURNS = 24
"""The number of attempts in a row that may return their nodes and finish nothing, also where each has had a reason for
it: a task that waits for others, or for room on a disk, waits for minutes to hours in each.
"""


@dataclass(frozen=True)
class TaskRecord:
    """The latest record of one array task."""

    state: TaskState
    attempt: str = ""
    message: str = ""
    """The error, or the reason why the attempt returned its nodes."""
    failures: Whole = 0
    """The number of consecutive failed attempts that have done nothing that stays; an attempt that had done something
    counts as the first. Preemptions, node losses and returned nodes do not count.
    """
    time: Moment = 0.0
    """Seconds since the epoch, by the writer's clock."""
    awaited: tuple[str, ...] = ()
    """Where the task has returned its nodes: the jobs of which one has to run before it can continue. Where it failed:
    the jobs whose failure was the cause.
    """
    waits: Whole = 0
    """The number of attempts in a row that returned the nodes because the awaited jobs did not run, while no task of
    the segment has finished anything.
    """
    finished: Whole = 0
    """The number of results of the segment at the last of these attempts."""
    returns: Whole = 0
    """The number of attempts in a row that returned the nodes for another reason, and had finished nothing."""

    def failed(self, message: str, exit_code: int, retries: int, *, progressed: bool) -> "TaskRecord":
        """The record after one more failure: to be run again if that may help and has not been tried too often.

        Args:
            message: the error.
            exit_code: says whether running again may help.
            retries: failures in a row that a task may have.
            progressed: whether the attempt had done something that stays; then it is the first failure in a row.
        """
        failures = 1 if progressed else self.failures + 1
        again = exit_code != ExitCode.FATAL and failures <= retries
        state = TaskState.RETRYING if again else TaskState.FAILED
        return replace(self, state=state, message=message, failures=failures)

    def returned(self, state: TaskState, message: str, most: int, *, progressed: bool) -> "TaskRecord":
        """The record after an attempt that returned the nodes: to be run again, unless it has finished nothing too
        often, whatever the reason was.

        Args:
            state: in which it is run again.
            message: the reason.
            most: attempts in a row that may finish nothing.
            progressed: whether this attempt had done something that stays.
        """
        returns = 0 if progressed else self.returns + 1
        failures = 0 if progressed else self.failures
        after = replace(self, state=state, message=message, awaited=(), returns=returns, failures=failures)
        return after if returns <= most else after.too_often(returns)

    def too_often(self, times: int) -> "TaskRecord":
        """The record of a task of which this many attempts in a row have finished nothing."""
        why = self.message.partition("\n")[0] or "no reason was recorded"
        advice = "raise time_limit_minutes of its role in resources, if it had work; then mrt-hpc submit RUN"
        message = f"{times} attempts in a row have finished nothing; the last one: {why}\n  next:     {advice}"
        return replace(self, state=TaskState.FAILED, message=message)


def task_file(layout: RunLayout, job: str, index: int) -> Path:
    """The file with the state of one task."""
    return layout.root / "tasks" / job / f"{index:05d}.json"


def write_task(layout: RunLayout, job: str, index: int, record: TaskRecord) -> None:
    """Replace the state of one task. Its message is given the command that continues this run."""
    message = record.message.replace(AGAIN, layout.again)
    write_json(task_file(layout, job, index), asdict(replace(record, message=message, time=time.time())))


def read_task(layout: RunLayout, job: str, index: int) -> TaskRecord:
    """The state of one task; WAITING when nothing was written yet.

    Raises:
        UnreadableError: the file is damaged.
    """
    path = task_file(layout, job, index)
    advice = f"rm -r {word(path)}: the task runs again, and its finished results stay"
    return read_if_there(path, TaskRecord, "the state of a task", TaskRecord(TaskState.WAITING), advice=advice)


def shown_task(layout: RunLayout, job: str, index: int) -> TaskRecord:
    """As :func:`read_task`, to be shown: where the file is damaged the task is ``unreadable``."""
    try:
        return read_task(layout, job, index)
    except UnreadableError as error:
        return TaskRecord(TaskState.UNREADABLE, message=error.message())


def read_tasks(
    layout: RunLayout, job: str, tasks: int, read: Callable[[RunLayout, str, int], TaskRecord] = read_task
) -> list[TaskRecord]:
    """The states of all tasks of a job, by index. The folder is listed once, so that tasks without a file, of which a
    run may have thousands, cost nothing.

    Args:
        layout: of the run.
        job: its name.
        tasks: their number.
        read: reads one of them: :func:`read_task`, or :func:`shown_task` where they are to be shown.

    Raises:
        UnreadableError: a file is damaged, as ``read`` says.
    """
    there = {path.name for path in list_directory(task_file(layout, job, 0).parent)}
    waiting = TaskRecord(TaskState.WAITING)
    return [read(layout, job, index) if f"{index:05d}.json" in there else waiting for index in range(tasks)]


def forget_failures(layout: RunLayout, job: str, tasks: Iterable[int]) -> None:
    """Let failed tasks with these indices run again, because the user has asked for it."""
    for index in tasks:
        if read_task(layout, job, index).state is not TaskState.DONE:
            remove_whole(task_file(layout, job, index))
