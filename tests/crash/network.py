"""What a network filesystem does to a single call: a request whose answer was lost and that is sent again, a handle
that is stale, or a file that a process of the node still reads when it is removed: it stays under another name as long.

A protocol meets one of these at one of its calls. It may go on, or end with an error; then the next attempt must end as
if nothing had happened, and what was promised before must be there.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from file_calls import FileCall, call_sites

TWICE = {
    "link": errno.EEXIST, "mkdir": errno.EEXIST, "unlink": errno.ENOENT, "rmdir": errno.ENOENT,
    "rename": errno.ENOENT, "replace": errno.ENOENT,
}  # fmt: skip
"""What a call that has succeeded reports when it was sent again."""
READS = frozenset({"stat", "lstat", "open", "listdir", "scandir"})
SENT_TWICE, STALE, STILL_READ = "sent twice", "stale handle", "removed while it is read"
STAYS = ".nfs000000000000"
"""The beginning of the name of a file that stays until it is closed."""

CALLS = {SENT_TWICE: frozenset(TWICE), STALE: READS, STILL_READ: frozenset({"unlink", "remove"})}
"""The calls at which each mistake can be made."""


@dataclass
class NetworkFilesystem:
    """An observer that makes one mistake: at the call with this number, of those that it can be made at."""

    mistake: str
    at: int
    calls: int = 0
    """The number of calls at which the mistake can be made."""

    def call(self, call: FileCall, make: Callable[[], Any]) -> Any:
        if call.name not in CALLS[self.mistake] or not call_sites():  # what a library's own threads write
            return make()
        self.calls += 1
        if self.calls != self.at:
            return make()
        if self.mistake == STILL_READ:
            return os.rename(call.paths[0], f"{os.path.dirname(call.paths[0])}/{STAYS}{self.at:04}")
        if self.mistake == SENT_TWICE:
            make()
        number = TWICE[call.name] if self.mistake == SENT_TWICE else errno.ESTALE
        raise OSError(number, os.strerror(number), *call.paths[:1])
