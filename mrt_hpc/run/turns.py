"""Turns of two processes of one task that share its GPUs: the holder of a lock on a file of the node has the turn.

The kernel frees the lock when its holder ends, however it ends, so the lock needs no heartbeat. It must lie on a disk
of the node: network filesystems do not keep such locks reliably.
"""

import fcntl
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.access import is_mine


@dataclass
class Turn:
    """The turn of one process."""

    path: Path | None = None
    """The file, the same for both processes; None for a task that shares its GPUs with no other process."""
    _descriptor: int | None = field(default=None, init=False, repr=False)
    _mine: bool = field(default=False, init=False)

    @property
    def is_shared(self) -> bool:
        """Whether another process of the task has turns as well."""
        return self.path is not None

    @property
    def is_mine(self) -> bool:
        """Whether this process has the turn; always where no other process has turns."""
        return self._mine or not self.is_shared

    def take(self) -> bool:
        """Take the turn if the other process does not have it, without waiting; returns whether this process has it.

        Raises:
            UserError: the file belongs to another user, or its filesystem takes no locks.
        """
        if self.path is not None and not self._mine:
            self._mine = locked(self._opened(self.path), self.path)
        return self.is_mine

    def pass_on(self) -> None:
        """Give the turn to the other process; does nothing where this process does not have it."""
        if self._descriptor is not None and self._mine:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._mine = False

    def remove(self) -> None:
        """Give the turn up for good and remove its file; for the process that ends last."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._mine = False
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _opened(self, path: Path) -> int:
        if self._descriptor is None:
            self._descriptor = _own_file(path)
        return self._descriptor


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove the files of turns that no process has: an attempt that was killed has not removed its own.

    Args:
        paths: files of turns; those of other users stay, and so do those of processes that still live.
    """
    for path in paths:
        if is_mine(path, stat.S_ISREG):
            _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    descriptor = _own_file(path)
    try:
        if locked(descriptor, path):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _own_file(path: Path) -> int:
    """A descriptor of a file that only this user may open. Processes that are started later do not inherit it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise UserError(
            "the file by which trainer and inference take turns belongs to another user",
            where=path,
            advice="name a folder of your own as scratch in the site profile, and mrt-hpc submit RUN",
            exit_code=ExitCode.RETRYABLE,
        )
    return descriptor


def locked(descriptor: int, path: Path) -> bool:
    """Lock an open file without waiting; returns whether this process has the lock.

    Raises:
        UserError: the filesystem takes no locks, as Lustre without ``-o flock``.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(
            "the filesystem of the folder for temporary files takes no locks",
            where=path,
            value=f"flock: {error.strerror or error}",
            expected="a folder on a disk of the node",
            advice="name such a folder as scratch in the site profile (on this machine: set TMPDIR), and type the same "
            "mrt-hpc submit RUN; mrt-hpc doctor --on-node tries it",
            exit_code=ExitCode.RETRYABLE,
        ) from error
    return True
