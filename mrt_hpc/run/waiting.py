"""Waits for a condition with a deadline and a reason, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from mrt_hpc.errors import ExitCode, UserError

T = TypeVar("T")

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
