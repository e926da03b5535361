"""A folder of one task on its node, for large files that only this task needs. It is removed with the task; what a task
that was killed has left is removed by the next one on the node.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.errors import UserError
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.turns import locked

log = logging.getLogger(__name__)

PREFIX = "mrt-hpc-weights-"
UNMARKED = ".mrt-hpc-weights-new-"
MARK = "in_use"
"""The file that the task keeps locked as long as it lives. The lock ends with the process, however that ends."""


@dataclass(frozen=True)
class NodeFolder:
    """A folder below the node's folder for temporary files. Only this user may enter it."""

    path: Path
    _lock: int
    """The descriptor of the locked mark."""

    @staticmethod
    def make() -> NodeFolder:
        """Make one, and remove those of tasks that were killed.

        Raises:
            UserError: the filesystem takes no locks.
        """
        parent = Path(tempfile.gettempdir())
        remove_abandoned(parent)
        new = Path(tempfile.mkdtemp(prefix=UNMARKED, dir=parent))
        lock = os.open(new / MARK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            locked(lock, new / MARK)
        except UserError:
            NodeFolder(new, lock).remove()
            raise
        path = new.rename(parent / (PREFIX + new.name.removeprefix(UNMARKED)))  # is locked when it gets its name
        return NodeFolder(path, lock)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: Path) -> None:
    """Remove this user's folders whose tasks do not live any more."""
    for path in list_directory(parent, f"{PREFIX}*"):
        if _is_mine(path) and _is_abandoned(path / MARK):
            log.info("%s was left by a task that was killed, and is removed", path)
            shutil.rmtree(path, ignore_errors=True)


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _is_abandoned(mark: Path) -> bool:
    """Whether no process holds the lock of a folder's mark."""
    try:
        descriptor = os.open(mark, os.O_RDWR)
    except OSError:
        return False  # another task is removing it
    try:
        return locked(descriptor, mark)
    finally:
        os.close(descriptor)
