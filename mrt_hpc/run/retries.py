"""Retries on a shared filesystem: wait while the disk is full, repeat after a temporary error, raise the rest. A
repeated action must start from the beginning, as all writers here do. ``wait_until`` is the one way to wait for a
condition.
"""

import errno
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeVar

from mrt_hpc.errors import Advice, ExitCode, UserError, retryable_error

T = TypeVar("T")

log = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
TICKET = frozenset({errno.EKEYEXPIRED, errno.EKEYREVOKED, errno.EKEYREJECTED, errno.ENOKEY})
"""Errors of a filesystem that serves only users with a valid ticket."""
FLEETING = TICKET | {
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EREMOTEIO, errno.EBUSY,
    errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN,
}  # fmt: skip
"""Temporary errors of a network filesystem: server failover, a stale handle, an expired ticket."""
PAUSED = "PAUSED"
"""Begins the log line of a task that waits for room."""
_NUMBER_IN_TEXT = re.compile(r"(?:os error |errno )(\d+)", re.IGNORECASE)


class Shortage(NamedTuple):
    """What a full filesystem lacks."""

    what: str
    lasting: str
    """Worded for a past time."""
    next: str
    """Advice for the user."""
    shown_by: str
    """The command that shows what is left."""

    @property
    def advice(self) -> Advice:
        return Advice("{next} ({by} shows what is left)", next=Advice(self.next), by=Advice(self.shown_by))


FULL_DISK = Shortage("the disk is full", "the disk stayed full", "make room, or ask for more quota", "df -h")
NO_INODES = Shortage(
    "no inodes are left", "no inodes were left", "remove files, or ask for a quota of more files", "df -i"
)
NO_ROOM = Shortage(
    "the disk is full, or no inodes are left",
    "the disk stayed full, or no inodes were left",
    "remove files, or ask for more quota",
    "df --output=avail,iavail",
)
"""For errors that name no file whose filesystem could be asked."""
SHORTAGES = (FULL_DISK, NO_INODES, NO_ROOM)


def shortage_at(place: Path) -> Shortage | None:
    """What the filesystem lacks now; None where it has room."""
    left = os.statvfs(place)
    if left.f_files and not left.f_favail and left.f_bavail:
        return NO_INODES
    return None if left.f_bavail else FULL_DISK


def shortage(error: BaseException) -> Shortage:
    """What caused an error of :data:`FULL`: filesystems report full inodes as a full disk."""
    name = getattr(error, "filename", None)
    file = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    for place in [] if file is None else [file, *file.parents]:
        with suppress(OSError):  # a file that could not be made
            return shortage_at(place) or FULL_DISK
    return NO_ROOM


def filesystem_advice(error: BaseException, then: str = "type the same command again") -> Advice:
    """What to do where the filesystem gave no access, and ``then``. The file may be whole, so nothing is removed."""
    number, name = error_number(error), getattr(error, "filename", None)
    place = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else "."
    after = Advice(then)
    if number in FULL:
        return Advice("{room}, and {then}", room=shortage(error).advice, then=after)
    if number in TICKET:
        what = "kinit renews the ticket that this filesystem asks for (klist shows it)"
    elif number == errno.EROFS:
        what = "wait until the filesystem takes files again (`findmnt --target {place}` shows its mode)"
    elif number in (errno.EACCES, errno.EPERM):
        what = (
            "`ls -ld {place}` shows the owner, who can change that (chmod, chown); where you are the owner, kinit "
            "renews a ticket that has expired (klist shows it)"
        )
    else:
        what = "wait until `df {place}` answers, which asks the filesystem"
    return Advice("{what}; then {then}", what=Advice(what, place=place), then=after)


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for the filesystem, and how often to try."""

    full_limit_s: float = 3600.0
    """Seconds to wait on a full disk before the task returns its nodes."""
    full_pause_s: float = 5.0
    """Seconds between tries on a full disk."""
    fleeting_tries: int = 6
    fleeting_pause_s: float = 0.2
    """Seconds before the second try; each pause doubles."""


def retry_action(action: Callable[[], T], what: str, patience: RetryPolicy = RetryPolicy()) -> T:
    """Run an action on the filesystem, which starts from nothing at each call; wait while the disk is full, and repeat
    after a temporary error. ``what`` is written or read, for messages.
    """
    began, fleeting = time.monotonic(), 0
    while True:
        try:
            return action()
        except Exception as error:
            number = error_number(error)
            if number in FULL:
                _wait_for_room(error, what, patience, began)
            elif number in FLEETING and fleeting < patience.fleeting_tries - 1:
                time.sleep(patience.fleeting_pause_s * 2**fleeting)
                fleeting += 1
                log.warning("%s failed and is tried again: %s", what, error)
            else:
                raise


def _wait_for_room(error: Exception, what: str, patience: RetryPolicy, began: float) -> None:
    limit_s, lacking = patience.full_limit_s, shortage(error)
    if time.monotonic() - began >= limit_s:
        raise UserError(
            f"{lacking.lasting} for {limit_s / 60:.0f} minutes: {what} could not be written",
            value=str(error),
            advice=Advice("{room}; the run continues by itself, or with mrt-hpc submit RUN", room=lacking.advice),
            exit_code=ExitCode.GIVE_BACK,
        ) from error
    then = "The task waits until there is room, and then continues with"
    log.warning("%s: %s (%s). %s: %s", PAUSED, lacking.what, error, then, what)
    time.sleep(patience.full_pause_s)


def list_directory(directory: Path, pattern: str = "*") -> list[Path]:
    """The matching paths, sorted; none without a directory.

    Unlike ``Path.glob``, which in newer Pythons skips what it cannot read, as if it were gone.
    """
    try:
        paths = retry_action(lambda: sorted(directory.iterdir()), f"listing {directory}")
    except FileNotFoundError:
        return []
    return [path for path in paths if fnmatchcase(path.name, pattern)]


def error_number(error: BaseException) -> int | None:
    """The system's number of an error, even where a library only put it into its text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if (match := _NUMBER_IN_TEXT.search(str(error))) is not None:
        return int(match[1])
    return errno.ENOSPC if "No space left on device" in str(error) else None


# Waits for a condition with a deadline and a reason, never for a fixed time.


FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0
"""Pauses grow by half up to this: a long wait costs a shared filesystem one look a second."""


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
    """The first true value of ``condition``.

    Args:
        reason: what is awaited, as in "weights version 12".
        deadline_s: until an error; infinite if ``check`` decides.
        check: called at each look; raises when waiting is hopeless (the producer died).
        where, advice: of the error.
        longest_pause_s: between two looks.
    """
    end = time.monotonic() + deadline_s
    pause = FIRST_PAUSE_S
    while not (value := condition()):
        if check is not None:
            check()
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise retryable_error(f"gave up waiting for {reason} after {deadline_s:.0f} s", where=where, advice=advice)
        time.sleep(min(pause, remaining))
        pause = min(pause * 1.5, longest_pause_s)
    return value
