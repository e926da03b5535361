"""Turns of two processes that share a task's GPUs: who locks a file of the node has the turn.

The kernel frees the lock when its holder ends, so no heartbeat is needed. It must lie on a local disk: network
filesystems do not keep such locks reliably.
"""

import fcntl
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.errors import retryable_error
from mrt_hpc.run.access import is_mine


@dataclass
class Turn:
    path: Path | None = None
    """The same for both; None where the task shares its GPUs with no other process."""
    _descriptor: int | None = field(default=None, init=False, repr=False)
    _mine: bool = field(default=False, init=False)

    @property
    def is_shared(self) -> bool:
        return self.path is not None

    @property
    def is_mine(self) -> bool:
        """Always true without another process."""
        return self._mine or not self.is_shared

    def take(self) -> bool:
        """Take the turn if free, without waiting; returns whether this process has it."""
        if self.path is not None and not self._mine:
            if self._descriptor is None:
                self._descriptor = _own_file(self.path)
            self._mine = try_lock(self._descriptor, self.path)
        return self.is_mine

    def pass_on(self) -> None:
        """Does nothing without the turn."""
        if self._descriptor is not None and self._mine:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._mine = False

    def remove(self) -> None:
        """Give the turn up for good and remove its file; for the last process."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._mine = False
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove turn files that killed attempts left. Files of other users and of living processes stay."""
    for path in paths:
        if is_mine(path, stat.S_ISREG):
            _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    descriptor = _own_file(path)
    try:
        if try_lock(descriptor, path):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _own_file(path: Path) -> int:
    """A descriptor of a file that only this user may open, not inherited by later processes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise retryable_error(
            "the file by which trainer and inference take turns belongs to another user",
            where=path,
            advice="name a folder of your own as scratch in the site profile, and mrt-hpc submit RUN",
        )
    return descriptor


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock an open file without waiting; returns whether it worked.

    Raises:
        UserError: no locks here, as Lustre without ``-o flock``.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise retryable_error(
            "the filesystem of the folder for temporary files takes no locks",
            where=path,
            value=f"flock: {error.strerror or error}",
            expected="a folder on a disk of the node",
            advice="name such a folder as scratch in the site profile (on this machine: set TMPDIR), and type the same "
            "mrt-hpc submit RUN; mrt-hpc doctor --on-node tries it",
        ) from error
    return True
