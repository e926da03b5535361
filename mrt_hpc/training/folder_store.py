"""A store for the rendezvous of ranks on several nodes: a folder of the run directory that only its owner can enter.

torch's TCPStore listens on all addresses of a node, and every process that connects may change its keys. Here nothing
listens.
"""

import hashlib
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import Store

from mrt_hpc.run.atomic import write_bytes, write_text
from mrt_hpc.run.retries import list_directory, retry_action, wait_until

LONGEST_PAUSE_S = 0.2
ADDED = ".add."
"""This separates a counter's key from the added amount in a file's name; the rest is unique."""


class FolderStore(Store):
    """C++ calls these methods, also from its own threads. Keep it as long as there are process groups: they hold only
    its C++ half, whose calls fail with "Not implemented" without the Python half.
    """

    def __init__(self, folder: Path, timeout: timedelta) -> None:
        super().__init__()
        self._folder, self._timeout = folder, timeout

    def set(self, key: str, value: bytes | str) -> None:
        """A reader sees the whole value."""
        data = value.encode() if isinstance(value, str) else value
        retry_action(lambda: write_bytes(self._file(key), data, durable=False), f"key {key} of the rendezvous")

    def get(self, key: str) -> bytes:
        """Waits for the key; a UserError if no rank writes it in time."""
        self.wait([key])
        return retry_action(self._file(key).read_bytes, f"key {key} of the rendezvous")

    def add(self, key: str, amount: int) -> int:
        """Return the sum after adding. A counter has no value for :meth:`get`."""
        counter = self._file(key).name + ADDED
        if amount:
            path = self._folder / f"{counter}{uuid.uuid4().hex}"
            retry_action(lambda: write_text(path, str(amount), durable=False), f"counter {key} of the rendezvous")
        added = list_directory(self._folder, f"{counter}*")
        return sum(int(retry_action(path.read_text, f"counter {key} of the rendezvous")) for path in added)

    def check(self, keys: Sequence[str]) -> bool:
        """The listing refreshes what a network filesystem remembers as absent."""
        there = {path.name for path in list_directory(self._folder)}
        return all(self._file(key).name in there for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits as :meth:`get` does."""
        wait_until(
            lambda: self.check(keys),
            reason=f"{', '.join(keys)} of another rank",
            deadline_s=(timeout or self._timeout).total_seconds(),
            where=self._folder,
            advice="read the logs of all ranks: one may have ended; all nodes of the task must see that folder",
            longest_pause_s=LONGEST_PAUSE_S,
        )

    def delete_key(self, key: str) -> bool:
        """False if it was not there."""
        try:
            retry_action(self._file(key).unlink, f"key {key} of the rendezvous")
        except FileNotFoundError:
            return False
        return True

    def clone(self) -> "FolderStore":
        """Threads can share it, as it has no connection."""
        return self

    def _file(self, key: str) -> Path:
        return self._folder / hashlib.sha256(key.encode()).hexdigest()
