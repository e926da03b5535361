"""A store for the rendezvous of ranks on several nodes: a folder of the run directory that only its owner can enter.

torch's own TCPStore listens on all addresses of a node, and whoever connects may read, write and delete its keys. Here
nothing listens: a rank proves that it belongs to the run by writing to the folder, as the run's owner alone can.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import Store

from mrt_hpc.run.atomic import write_bytes, write_text
from mrt_hpc.run.retries import list_directory, retrying
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from pathlib import Path

LONGEST_PAUSE_S = 0.2
ADDED = ".add."
"""Stands in the name of a file between the key of a counter and what was added; the rest makes the name unique."""


class FolderStore(Store):
    """A file for each key. C++ calls these methods, also from its own threads.

    Whoever makes one keeps it as long as there are process groups: they hold its C++ half only, and without its Python
    half each call fails with "Not implemented".
    """

    def __init__(self, folder: Path, timeout: timedelta) -> None:
        super().__init__()
        self._folder, self._timeout = folder, timeout

    def set(self, key: str, value: bytes | str) -> None:
        """Write a key; a reader sees the whole value."""
        data = value.encode() if isinstance(value, str) else value
        retrying(lambda: write_bytes(self._file(key), data, durable=False), f"key {key} of the rendezvous")

    def get(self, key: str) -> bytes:
        """Return the value of a key when it is there.

        Raises:
            UserError: no rank has written it in time.
        """
        self.wait([key])
        return retrying(self._file(key).read_bytes, f"key {key} of the rendezvous")

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return its sum after that. A counter has no value for :meth:`get`."""
        counter = self._file(key).name + ADDED
        if amount:
            path = self._folder / f"{counter}{uuid.uuid4().hex}"
            retrying(lambda: write_text(path, str(amount), durable=False), f"counter {key} of the rendezvous")
        added = list_directory(self._folder, f"{counter}*")
        return sum(int(retrying(path.read_text, f"counter {key} of the rendezvous")) for path in added)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there. The listing refreshes what a network filesystem remembers as absent."""
        there = {path.name for path in list_directory(self._folder)}
        return all(self._file(key).name in there for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there.

        Raises:
            UserError: no rank has written them in time.
        """
        wait_until(
            lambda: self.check(keys),
            reason=f"{', '.join(keys)} of another rank",
            deadline_s=(timeout or self._timeout).total_seconds(),
            where=self._folder,
            advice="read the logs of all ranks: one may have ended; all nodes of the task must see that folder",
            longest_pause_s=LONGEST_PAUSE_S,
        )

    def delete_key(self, key: str) -> bool:
        """Remove a key; False if it was not there."""
        try:
            retrying(self._file(key).unlink, f"key {key} of the rendezvous")
        except FileNotFoundError:
            return False
        return True

    def clone(self) -> FolderStore:
        """Return this store: it has no connection that two threads could not share."""
        return self

    def _file(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()
