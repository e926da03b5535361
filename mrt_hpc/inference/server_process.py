"""The process of a vLLM server, with its children: its beginning, its end, and the socket at which it listens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.server_control import CONTROL_TIMEOUT_S, READ_LOG
from mrt_hpc.inference.socket_paths import LONGEST_SOCKET_FOLDER
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.inference.server_command import ServerCommand

STOP_DEADLINE_S = 2.0
"""The time in which a server has to end on request, before its processes are killed. It has nothing to save, and would
wait for its clients; its owner may have little time to end.
"""
KILLED_DEADLINE_S = 20.0
"""The time in which the kernel has to end killed processes; it frees their memory first."""
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class ServerProcess:
    """A process that is the first of a process group of its own, which holds all its children."""

    process: subprocess.Popen[bytes]

    @classmethod
    def begun(cls, command: ServerCommand, log: Path) -> ServerProcess:
        """Start the process of a command.

        Args:
            command: what to start, and its environment.
            log: the file for its standard output and error, to which it appends.
        """
        with log.open("ab") as output:
            return cls(
                subprocess.Popen(
                    command.words(),
                    env=command.environment(),
                    cwd=command.begin_in(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def status(self) -> int | None:
        """The status with which it ended; None while it runs."""
        return self.process.poll()

    def end(self, patience_s: float = STOP_DEADLINE_S) -> None:
        """Send SIGTERM, then SIGKILL, and wait until the memory of its children is free again.

        Args:
            patience_s: the seconds between the two signals in which it may end by itself.
        """
        process = self.process
        if process.poll() is None:
            process.terminate()
            _wait_at_most(patience_s, lambda: _has_ended(process.pid))
            os.killpg(process.pid, signal.SIGKILL)  # the process is not reaped yet, so no other process has this id
            process.wait()
        _wait_at_most(KILLED_DEADLINE_S, lambda: _group_is_empty(process.pid))


def refuse_stranger(path: Path, pid: int) -> None:
    """Check that the process that listens on a socket is the one that was started.

    Raises:
        UserError: another process listens, or none.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONTROL_TIMEOUT_S)
            connection.connect(str(path))
            size = struct.calcsize("3i")
            listener, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except OSError as error:
        raise UserError(
            f"no process listens on the server's socket: {error}",
            where=path,
            advice=READ_LOG,
            exit_code=ExitCode.RETRYABLE,
        ) from error
    if listener != pid:
        raise UserError(
            "another process listens on the server's socket",
            value=f"process {listener}",
            where=path,
            expected=f"process {pid}",
            advice=f"ps -fp {listener} shows that process; the same submit command starts the server again, at "
            "another socket",
            exit_code=ExitCode.RETRYABLE,
        )


def private_directory() -> Path:
    """Create a directory that only this user may enter, on this node, with a path short enough for a socket."""
    parent = tempfile.gettempdir()
    if len(parent) > LONGEST_SOCKET_FOLDER:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="mrt-hpc-", dir=parent))


def _wait_at_most(seconds: float, condition: Callable[[], bool]) -> None:
    with contextlib.suppress(UserError):
        wait_until(condition, reason="a process to end", deadline_s=seconds, longest_pause_s=_LOOK_EVERY_S)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _group_is_empty(leader: int) -> bool:
    """Return whether all processes of a server have ended; the kernel ends them one after the other."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    return False
