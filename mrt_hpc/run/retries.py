"""Retries on a shared filesystem: wait while the disk is full, try again after a temporary error, and raise every other
error. An action that is tried again must start from the beginning each time, as all writers of this package do.
"""

from __future__ import annotations

import errno
import logging
import re
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from mrt_hpc.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

log = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FLEETING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EREMOTEIO})
"""The temporary errors of a network filesystem, as while a server fails over or when a handle is stale."""
_NUMBER_IN_TEXT = re.compile(r"(?:os error |errno )(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for the filesystem, and how often to try."""

    full_limit_s: float = 3600.0
    """Seconds to wait for room on a full disk; afterwards the task returns its nodes."""
    full_pause_s: float = 5.0
    """Seconds between two tries on a full disk."""
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
    full_until = time.monotonic() + patience.full_limit_s
    fleeting = 0
    while True:
        try:
            return action()
        except Exception as error:
            number = error_number(error)
            if number in FULL:
                _wait_for_room(what, error, full_until, patience)
            elif number in FLEETING and fleeting < patience.fleeting_tries - 1:
                time.sleep(patience.fleeting_pause_s * 2**fleeting)
                fleeting += 1
                log.warning("%s failed and is tried again: %s", what, error)
            else:
                raise


def _wait_for_room(what: str, error: Exception, until: float, patience: RetryPolicy) -> None:
    if time.monotonic() >= until:
        raise UserError(
            f"the disk stayed full for {patience.full_limit_s / 60:.0f} minutes: {what} could not be written",
            value=str(error),
            advice="make room, or ask for more quota; the run continues by itself, or with the same submit command",
            exit_code=ExitCode.GIVE_BACK,
        ) from error
    log.warning(
        "PAUSED: the disk is full (%s). The task waits until there is room, and then continues with: %s", error, what
    )
    time.sleep(patience.full_pause_s)


def list_directory(directory: Path, pattern: str = "*") -> list[Path]:
    """Return the paths in a directory whose names match a pattern, sorted by name; none if there is no directory.

    Unlike ``Path.glob``, which passes over what it cannot read in newer Pythons, so that all would seem to be gone.

    Raises:
        OSError: a fleeting error stayed.
    """
    try:
        found = retrying(lambda: sorted(directory.iterdir()), f"listing {directory}")
    except FileNotFoundError:
        return []
    return [path for path in found if fnmatchcase(path.name, pattern)]


def error_number(error: BaseException) -> int | None:
    """The system's number of an error, also where a library has put it into its text only."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if (match := _NUMBER_IN_TEXT.search(str(error))) is not None:
        return int(match[1])
    return errno.ENOSPC if "No space left on device" in str(error) else None
