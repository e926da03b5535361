"""The two processes of a colocated task: the first rank of the trainer, and its companion, which samples.

They take turns on the GPUs of the task. The companion is a child of the first rank and ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.access import private_folder
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.turns import Turn, remove_abandoned

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task

COMPANION_LOG = "inference"
"""What the name of its log says of it."""
TURN = ".turn"
"""The end of the name of a file of turns."""
END_DEADLINE_S = 20.0
"""Seconds for the companion to end its server after SIGTERM, before it is killed."""
STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Its exit codes after SIGTERM, before and after it has its handlers."""


def turn_of(task: Task) -> Turn:
    """The turn on the GPUs of a colocated task. The file is on a disk of the node, and new for every attempt."""
    return Turn(_turns_folder() / f"{_turns_of(task)}.{task.attempt}{TURN}")


def remove_earlier_turns(task: Task) -> None:
    """Remove what earlier attempts of a task that were killed have left of their turns on this node."""
    mine = turn_of(task).path
    found = list_directory(_turns_folder(), f"{_turns_of(task)}.*{TURN}")
    remove_abandoned(path for path in found if path != mine)


def _turns_folder() -> Path:
    return private_folder(Path(tempfile.gettempdir()), f"mrt-hpc-turns-{os.geteuid()}")


def _turns_of(task: Task) -> str:
    """The beginning of the names of the files of a task's turns."""
    return f"mrt-hpc-{task.holder.task_digest}"


@dataclass(frozen=True)
class Companion:
    """The process that samples, as the first rank sees it."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def was_stopped(self) -> bool:
        """Whether it has ended because it was told to."""
        return self.process.poll() in STOPPED

    def check(self) -> None:
        """Check that it runs; called while the trainer waits for what it samples.

        Raises:
            UserError: it has failed, was killed, or gives the nodes back.
        """
        code = self.process.poll()
        if code is None or code in STOPPED:
            return
        raise UserError(
            f"the process that samples for this task has ended with exit code {code}",
            where=self.log,
            expected="a process that runs until the segment is trained",
            advice="read the end of that log; the same submit command continues the run",
            exit_code=ExitCode(code) if code in (ExitCode.FATAL, ExitCode.GIVE_BACK) else ExitCode.RETRYABLE,
        )

    def tell(self) -> None:
        """Ask it to end."""
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Ask it to end, wait for that, and kill it where it takes too long."""
        self.tell()
        try:
            self.process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_for_end(self) -> None:
        """Wait until it has seen that the segment is over, and end it where it does not.

        Raises:
            UserError: it has failed.
        """
        try:
            self.process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.end()
            return
        if self.process.returncode:
            self.check()
