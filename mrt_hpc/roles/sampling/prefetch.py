"""Verification of the next weights version while the server still samples with the current one; where it was published
as a delta, the version is put together, too.

The switch to it then costs the loading alone, which reads from the page cache of the machine what was verified.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.roles.task.context import LONGEST_LOOK_S
from mrt_hpc.run.atomic import checksum, tree
from mrt_hpc.run.weights import Weights, published_versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from mrt_hpc.roles.sampling.local_weights import LocalWeights

log = logging.getLogger(__name__)

FileStamp = tuple[str, int, int, int, int]
"""The path of a file, its inode, its bytes, and the times (ns) of the last change of its content and of its inode."""


class _OverError(Exception):
    """The round is over before all files were read."""


@dataclass
class Prefetch:
    """Verifies newer weights versions in a thread, for the length of one round of sampling.

    It decides nothing: a version that it finds damaged, or has not read to the end when the round is over, is verified
    at the switch, as any other.
    """

    local: LocalWeights
    """Verifies versions, and puts them together."""
    newest: int
    """The newest known version: at first the one that the server holds."""
    last: int
    """The newest version that the task will sample with. The thread starts only if it is newer than ``newest``."""
    _over: Event = field(default_factory=Event, init=False)
    _verified: tuple[Weights, set[Path], list[FileStamp]] | None = field(default=None, init=False)
    """A version, the directories that it depends on, and the stamps of their files."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look for newer versions within the block. The end of the block waits for nothing: the thread ends after its
        current file.
        """
        if self.newest < self.last:
            Thread(target=self._watch, name="prefetch", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()

    def newer_than(self, version: int) -> Weights | None:
        """The newest verified version, if it is newer than ``version`` and its files have not changed since."""
        newest = self._verified
        return None if newest is None or newest[0].version <= version else self.weights(newest[0].version)

    def weights(self, version: int) -> Weights | None:
        """A version, if it was verified and its files have not changed since; else None."""
        verified = self._verified
        if verified is None or verified[0].version != version:
            return None
        weights, directories, stamps = verified
        try:
            return weights if _stamps(directories) == stamps else None
        except OSError as error:
            log.warning("weights version %d is verified again, as its files cannot be opened: %r", version, error)
            return None

    def _watch(self) -> None:
        try:
            while not self._over.wait(LONGEST_LOOK_S):
                self._look()
        except _OverError:
            log.info("weights version %d was not verified to its end while sampling went on", self.newest)
        except (UserError, OSError) as error:
            log.warning("weights version %d is verified again before it is loaded: %s", self.newest, error)

    def _look(self) -> None:
        """Verify the newest version, if it is newer than the last known one."""
        layout = self.local.layout
        newest = max((v for v in published_versions(layout) if v <= self.last), default=self.newest)
        if newest > self.newest:
            self.newest = newest
            directory = layout.weights_version(newest)
            stamps = _stamps({directory})  # before the reading: a file that changes meanwhile is verified again
            weights = self.local.of(newest, self._in_turn, self._go_on, at_once=1)
            own = {weights.directory} - {directory}
            self._verified = weights, {directory, *own}, sorted([*stamps, *_stamps(own)])

    def _go_on(self) -> None:
        """Raise where the round is over.

        Raises:
            _OverError: it is.
        """
        if self._over.is_set():
            raise _OverError

    def _in_turn(self, files: Sequence[Path]) -> Iterator[str]:
        """[files] SHA-256 of each, one file after the other: the cores are the server's and the graders'."""
        for file in files:
            self._go_on()
            yield checksum(file)


def _stamps(directories: Iterable[Path]) -> list[FileStamp]:
    return sorted(_stamp(file) for directory in directories for file in tree(directory)[1])


def _stamp(file: Path) -> FileStamp:
    """The stamp of a file, taken by opening it: a network filesystem then asks its server, and not its own memory."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return str(file), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
