"""Retries on a shared filesystem: wait while the disk is full, try again after a temporary error, and raise every other
error. An action that is tried again must start from the beginning each time, as all writers of this package do. And the
one way to wait for a condition (``wait_until``).
"""

import errno
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from mrt_hpc.errors import ExitCode, UserError

T = TypeVar("T")

log = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FLEETING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EREMOTEIO})
"""The temporary errors of a network filesystem, as while a server fails over or when a handle is stale."""
PAUSED = "PAUSED"
"""Begins what a task logs while it waits for room."""
_NUMBER_IN_TEXT = re.compile(r"(?:os error |errno )(\d+)", re.IGNORECASE)


class Shortage(NamedTuple):
    """What a filesystem lacks that takes no further file."""

    what: str
    lasting: str
    """The same, of a time that has passed."""
    next: str
    """What a user can do."""
    shown_by: str
    """The command that shows how much is left."""


FULL_DISK = Shortage("the disk is full", "the disk stayed full", "make room, or ask for more quota", "df -h")
NO_INODES = Shortage(
    "no inodes are left", "no inodes were left", "remove files, or ask for a quota of more files", "df -i"
)
SHORTAGES = (FULL_DISK, NO_INODES)


def shortage(error: BaseException) -> Shortage:
    """What the filesystem lacks on which an error of :data:`FULL` came: it reports full inodes as a full disk."""
    name = getattr(error, "filename", None)
    file = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    for place in [] if file is None else [file, *file.parents]:
        try:
            left = os.statvfs(place)
        except OSError:
            continue  # a file that could not be made
        return NO_INODES if left.f_files and not left.f_favail and left.f_bavail else FULL_DISK
    return FULL_DISK


class RoomWatch(Protocol):
    """Is notified of a disk that stays full."""

    waits: bool
    """Whether something has waited for room for long, and is not written yet."""

    def full(self, what: str, lacking: Shortage) -> None:
        """Called once in a wait for room that takes long, with what cannot be written. It raises no error."""

    def room(self) -> None:
        """Called when what had waited so long is written. It raises no error."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for the filesystem, and how often to try."""

    full_limit_s: float = 3600.0
    """Seconds to wait for room on a full disk; afterwards the task returns its nodes."""
    full_pause_s: float = 5.0
    """Seconds between two tries on a full disk."""
    long_wait_s: float = 120.0
    """Seconds after which ``watch`` is notified of the full disk; at the end of a shorter ``full_limit_s``, too."""
    watch: RoomWatch | None = None
    """Is notified of a disk that stays full."""
    fleeting_tries: int = 6
    fleeting_pause_s: float = 0.2
    """Seconds before the second try; each further pause is twice as long."""


def retrying(action: Callable[[], T], what: str, patience: RetryPolicy = RetryPolicy()) -> T:
    """Run an action on the filesystem; wait while the disk is full, and try again after a temporary error.

    Args:
        action: starts from nothing at each call.
        what: is being written or read, for messages.
        patience: limits and pauses.

    Raises:
        UserError: the disk stayed full; running the task again later may help.
        OSError: any other error, or a fleeting one that stayed.
    """
    wait, fleeting = _WaitForRoom(what, patience), 0
    while True:
        try:
            result = action()
        except Exception as error:
            number = error_number(error)
            if number in FULL:
                wait.go_on(error)
            elif number in FLEETING and fleeting < patience.fleeting_tries - 1:
                time.sleep(patience.fleeting_pause_s * 2**fleeting)
                fleeting += 1
                log.warning("%s failed and is tried again: %s", what, error)
            else:
                raise
        else:
            wait.end()
            return result


@dataclass
class _WaitForRoom:
    """The wait of one action for room on a full disk."""

    what: str
    patience: RetryPolicy
    _began: float = field(default_factory=time.monotonic, init=False)
    _full_since: float | None = field(default=None, init=False)
    _notified: bool = field(default=False, init=False)

    def go_on(self, error: Exception) -> None:
        """Wait a moment.

        Raises:
            UserError: the disk has stayed full for the whole limit.
        """
        now, limit_s = time.monotonic(), self.patience.full_limit_s
        self._full_since = now if self._full_since is None else self._full_since
        is_over, lacking = now - self._began >= limit_s, shortage(error)
        if is_over or now - self._full_since >= self.patience.long_wait_s:
            self._notify(lacking)
        if is_over:
            raise UserError(
                f"{lacking.lasting} for {limit_s / 60:.0f} minutes: {self.what} could not be written",
                value=str(error),
                advice=f"{lacking.next} ({lacking.shown_by} shows what is left); the run continues by itself, or with "
                "mrt-hpc submit RUN",
                exit_code=ExitCode.GIVE_BACK,
            ) from error
        log.warning(
            "%s: %s (%s). The task waits until there is room, and then continues with: %s",
            PAUSED,
            lacking.what,
            error,
            self.what,
        )
        time.sleep(self.patience.full_pause_s)

    def _notify(self, lacking: Shortage) -> None:
        if self.patience.watch is not None and not self._notified:
            self._notified = True
            self.patience.watch.full(self.what, lacking)

    def end(self) -> None:
        """The action has succeeded."""
        if self._notified and self.patience.watch is not None:
            self.patience.watch.room()


def list_directory(directory: Path, pattern: str = "*") -> list[Path]:
    """Return the paths in a directory whose names match a pattern, sorted by name; none if there is no directory.

    Unlike ``Path.glob``, which passes over what it cannot read in newer Pythons, so that all would seem to be gone.

    Raises:
        OSError: a fleeting error stayed.
    """
    try:
        paths = retrying(lambda: sorted(directory.iterdir()), f"listing {directory}")
    except FileNotFoundError:
        return []
    return [path for path in paths if fnmatchcase(path.name, pattern)]


def error_number(error: BaseException) -> int | None:
    """The system's number of an error, also where a library has put it into its text only."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if (match := _NUMBER_IN_TEXT.search(str(error))) is not None:
        return int(match[1])
    return errno.ENOSPC if "No space left on device" in str(error) else None


# Waits for a condition with a deadline and a reason, never for a fixed time.


FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0
"""Pauses grow by half up to this, so that a wait of hours costs a shared filesystem one look a second."""


def wait_until(
    condition: Callable[[], T | None],
    *,
    reason: str,
    deadline_s: float,
    check: Callable[[], None] | None = None,
    where: object = None,
    advice: str | None = None,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> T:
    """Return the first true value that ``condition`` gives.

    Args:
        condition: called repeatedly; a true value ends the wait.
        reason: what is being waited for, as in "weights version 12".
        deadline_s: seconds after which the wait ends with an error; infinite if ``check`` decides that.
        check: called at each look; raises when the wait has become hopeless (the producer has died).
        where: the file or folder that says more, shown in the error.
        advice: the next command to type, shown in the error.
        longest_pause_s: the longest time between two looks, seconds.

    Raises:
        UserError: nothing came within ``deadline_s``.
    """
    end = time.monotonic() + deadline_s
    pause = FIRST_PAUSE_S
    while not (value := condition()):
        if check is not None:
            check()
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise UserError(
                f"gave up waiting for {reason} after {deadline_s:.0f} s",
                where=where,
                advice=advice,
                exit_code=ExitCode.RETRYABLE,
            )
        time.sleep(min(pause, remaining))
        pause = min(pause * 1.5, longest_pause_s)
    return value
