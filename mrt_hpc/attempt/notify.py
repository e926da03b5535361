"""Calls the command of the site profile that notifies the user of a run: how it has ended, and that it is stuck.

The report is the last job of a run, and starts also where others have failed, so its task notifies of the end. The
task that notices that a run is stuck (a full disk, peers that do not run, a failure) notifies of that.

One of many tasks and attempts notifies: there is a file for each cause. It is a link to a small file beside it that
bears the name of the job: some filesystems link within one folder only. Of several tasks one succeeds in making it, and
it takes neither a block nor an inode, of which a full disk has none.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.attempt.ledger import recorded_site, submissions
from mrt_hpc.attempt.run_progress import is_done, reason
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import DependencyKind, Plan, Role, few_names, read_plan
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.events import finished_parts
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import RetryPolicy, Shortage, list_directory
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task
from mrt_hpc.run.typed_file import file_bytes

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task

log = logging.getLogger(__name__)

FULL_DISK = "full_disk"
"""The cause that ends without a submission: the disk is full."""
SIGNATURE = "by-"
"""The beginning of the names of files that bear the name of a job. The one without a name, which is made with the run,
serves jobs for whose own file there was no room.
"""


def sign(layout: RunLayout, job: str) -> None:
    """Make the file that bears the name of a job, while there is room for it.

    Raises:
        OSError: there is none.
    """
    if not (path := _signature(layout, job)).is_file():
        write_text(path, f"{job}\n")


def is_first_notice(layout: RunLayout, job: str, cause: str) -> bool:
    """Record that a cause is notified, and return whether it was not before.

    Args:
        layout: the run directory.
        job: the name of the job for which a task notifies.
        cause: the name of the file that is made.

    Raises:
        OSError: nothing could be recorded.
    """
    signature = _signature(layout, job)
    source = signature if signature.is_file() else _signature(layout, "")
    try:
        os.link(source, layout.notices / cause)
    except FileExistsError:
        return False
    return True


def take_back(layout: RunLayout, job: str, cause: str) -> None:
    """Forget that a cause was notified, if a task of this job has done it: a later one is notified again.

    Raises:
        OSError: the directory cannot be read or changed.
    """
    path = layout.notices / cause
    try:
        if file_bytes(path) == f"{job}\n".encode():
            path.unlink(missing_ok=True)
    except (FileNotFoundError, ValueError):
        return


def forget_notices(layout: RunLayout) -> None:
    """Forget all notices: a person has looked at the run, and submits it again. The signatures of jobs stay, as
    their tasks may run.
    """
    for path in list_directory(layout.notices):
        if path.is_file() and not path.name.startswith(SIGNATURE):
            path.unlink(missing_ok=True)


def _signature(layout: RunLayout, job: str) -> Path:
    return layout.notices / f"{SIGNATURE}{job}"


FINISHED, FAILED, STUCK = "finished", "failed", "stuck"
OUTCOMES = {TaskState.DONE: FINISHED, TaskState.FAILED: FAILED}
"""The outcome by the state of the report's task. In any other state the task comes back, and notifies then."""
LONGEST_S = 60.0
"""Seconds after which the command is ended."""
EXPECTED_ERRORS = (UserError, OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError)
"""The errors of the command, and of the records that name it."""


def notify_end(layout: RunLayout, job: str, index: int) -> None:
    """Call the command with ``finished`` or ``failed``, if the report's task has ended for good. A command that fails
    is a warning in the log: the run has ended all the same.

    Args:
        layout: the run directory.
        job: the name of the report's job.
        index: of its task.
    """
    record = read_task(layout, job, index)
    outcome = OUTCOMES.get(record.state)
    if outcome is None:
        return
    try:
        if command := _command(layout):
            _call(command, layout, outcome, record.message, LONGEST_S)
    except EXPECTED_ERRORS as error:
        _warn(error)


def notify_stuck(layout: RunLayout, job: str, cause: str, reason: str, within_s: float = LONGEST_S) -> None:
    """Call the command with ``stuck``, once for each cause. A command that fails is a warning in the log.

    Args:
        layout: the run directory.
        job: the name of the job for which a task notifies.
        cause: a name that all tasks give to the same cause, and no other cause has.
        reason: for a person, a sentence.
        within_s: seconds after which the command is ended.
    """
    try:
        command = _command(layout)
        if command and is_first_notice(layout, job, cause):
            log.warning("the run is stuck: %s", reason)
            try:
                _call(command, layout, STUCK, reason, within_s)
            except BaseException:
                (layout.notices / cause).unlink(missing_ok=True)  # a later attempt, or another task, notifies of it
                raise
    except EXPECTED_ERRORS as error:
        _warn(error)


def _command(layout: RunLayout) -> tuple[str, ...]:
    """The command of the profile with which jobs of the run were last submitted; empty where there is none."""
    sent = submissions(layout)
    return recorded_site(layout, sent[-1].site).notify if sent else ()


def _call(command: Sequence[str], layout: RunLayout, outcome: str, reason: str, within_s: float) -> None:
    """Run the command, and end it with all that it has started when its time is over.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it has failed, or took too long.
    """
    variables = {"MRT_HPC_RUN": str(layout.root), "MRT_HPC_OUTCOME": outcome, "MRT_HPC_REASON": reason}
    words, environment = [*command, str(layout.root), outcome], {**os.environ, **variables}
    # Its output goes to the log: what the end of a job script prints on the standard output has a meaning for Slurm.
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, env=environment, start_new_session=True)
    try:
        code = process.wait(within_s)
    except BaseException:  # it took too long, or this task is asked to leave
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, words)


def _warn(error: Exception) -> None:
    log.warning("the command notify of the site profile failed: %s", error)


# Notices that a run is stuck, so that a person should look, and notifies once for each cause.
#
# Three causes: the disk is full; tasks return their nodes again and again because the tasks that they wait for do not
# run; and a task has failed for good that other jobs need, while the report, which notifies of
# failures, cannot start yet.


TOLD_WAITS = 3
"""The number of attempts in a row that returned their nodes for lack of peers after which a person should look."""
SPARE_S = 30.0
"""Seconds before the time limit that a task keeps for its end: the command gets less time, or is called by a later
attempt.
"""
SHORTEST_S = 5.0
"""The command is not called where it would have fewer seconds than this."""


# -- a full disk


@dataclass
class DiskWatch:
    """Notifies that the tasks of a job wait for room on a full disk, and takes that back when there is room again."""

    layout: RunLayout
    job: str
    waits: bool = field(default=False, init=False)
    """Whether this process has waited for long, and not written since what had waited."""

    def full(self, what: str, lacking: Shortage) -> None:
        """Notify that the disk is full.

        Args:
            what: cannot be written.
            lacking: space, or inodes.
        """
        self.waits = True
        reason_text = f"{lacking.what}: {self.job} waits for room to write {what}; the run continues when there is room"
        notify_stuck(self.layout, self.job, FULL_DISK, reason_text)

    def room(self) -> None:
        """Take back what a task of this job has notified: there is room again."""
        self.waits = False
        try:
            take_back(self.layout, self.job, FULL_DISK)
        except OSError as error:
            log.warning("a later full disk may not be notified: %s", error)


def patience_of(layout: RunLayout, job: str, full_disk_minutes: float) -> RetryPolicy:
    """How a task of a job waits for room on a full disk, and notifies that it does."""
    return RetryPolicy(full_limit_s=full_disk_minutes * 60, watch=DiskWatch(layout, job))


def sign_for(task: "Task") -> None:
    """Prepare what a task needs to notify of a full disk."""
    if task.rank == 0:
        try:
            sign(task.layout, task.job.name)
        except OSError as error:
            log.warning("a full disk is notified only until the next submission: %s", error)


# -- peers that do not run


def fruitless_waits(task: "Task", before: TaskRecord) -> tuple[int, int]:
    """How often in a row a task has returned its nodes, with this time, because its peers do not run, while the
    segment has finished nothing; and the number of parts that the segment has finished.

    Args:
        task: the attempt that returns its nodes.
        before: the record of the task, with these two numbers of the earlier attempts.
    """
    jobs = [job.name for job in task.plan.jobs if job.segment == task.job.segment and any(map(job.does, _PEERS))]
    finished = finished_parts(task.layout.events, jobs)
    again = before.waits > 0 and before.finished == finished
    return (before.waits + 1 if again else 1), finished


_PEERS = (Role.INFERENCE, Role.TRAINER)


def notify_after(task: "Task") -> None:
    """Called when an attempt has ended and its record is written: notify that its peers do not run, where this was the
    last of several attempts; and take back that the disk was full, where the attempt has finished something.
    """
    if task.rank != 0:
        return
    try:
        record = read_task(task.layout, task.job.name, task.index)
        has_finished = record.state is TaskState.DONE or task.has_progressed
    except (UserError, OSError) as error:
        log.warning("whether the run is stuck could not be found out: %s", error)
        return
    watch = task.events.patience.watch
    if watch is not None and not watch.waits and has_finished:
        watch.room()
    mine = record.attempt == task.attempt and record.state is TaskState.GAVE_BACK
    within_s = min(LONGEST_S, task.seconds_left - SPARE_S)
    if mine and record.awaited and record.waits >= TOLD_WAITS and within_s >= SHORTEST_S:
        reason_text = (
            f"task {task.index} of {task.job.name} has returned its nodes {record.waits} times in a row because "
            f"{', '.join(record.awaited)} did not run, and nothing was finished meanwhile"
        )
        segment = task.job.name.partition(".")[0]
        notify_stuck(task.layout, task.job.name, f"waiting.{segment}.{record.finished}", reason_text, within_s)


# -- a failure


def notify_failure(layout: RunLayout, name: str, index: int, record: TaskRecord) -> None:
    """Notify that a task has failed for good and the run cannot go on, unless the report does so at once.

    Args:
        layout: the run directory.
        name: of the job.
        index: of the task.
        record: the state of the task after its last attempt.
    """
    if record.state is not TaskState.FAILED:
        return
    try:
        plan = read_plan(layout.plan)
        lost = jobs_lost_with(plan, layout, name)
        goes_on = not lost or _report_is_next(plan, layout, {name, *lost})
    except (UserError, OSError) as error:
        log.warning("whether the run is stuck could not be found out: %s", error)
        return
    if not goes_on:
        reason_text = f"task {index} of {name} has failed for good, so {few_names(lost)} cannot start: {reason(record)}"
        notify_stuck(layout, name, f"failed.{name}", reason_text)


def jobs_lost_with(plan: Plan, layout: RunLayout, name: str) -> list[str]:
    """The jobs that cannot start because a job has failed, in the plan's order; jobs that are done are none of them."""
    lost: list[str] = []
    for job in plan.jobs:
        needed = {wait.job for wait in job.after if wait.kind is DependencyKind.AFTEROK}
        if needed & {name, *lost} and not is_done(layout, job):
            lost.append(job.name)
    return lost


def _report_is_next(plan: Plan, layout: RunLayout, failed: set[str]) -> bool:
    """Whether the report waits for no job that still runs or is to run."""
    over = {TaskState.DONE, TaskState.FAILED}
    awaited = {wait.job for job in plan.jobs if job.role is Role.REPORT for wait in job.after} - failed
    return all(is_done(layout, plan.job(name), over) for name in awaited)
