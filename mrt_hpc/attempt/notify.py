"""Calls the command of the site profile that notifies the user of a run: how it has ended, and that it is stuck.

The report is the last job of a run, and starts also where others have failed, so its task notifies of the end. The
task that notices that a run is stuck notifies of that (see :mod:`mrt_hpc.attempt.stuck`).

One of many tasks and attempts notifies: there is a file for each cause. It is a link to a small file beside it that
bears the name of the job: some filesystems link within one folder only. Of several tasks one succeeds in making it, and
it takes neither a block nor an inode, of which a full disk has none.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mrt_hpc.attempt.ledger import recorded_site, submissions
from mrt_hpc.errors import UserError
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.task_state import TaskState, read_task
from mrt_hpc.run.typed_file import file_bytes

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
