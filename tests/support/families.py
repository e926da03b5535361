"""A process with all that it started, and the wait for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from mrt_hpc.run.retries import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

GONE_DEADLINE_S = 60.0


def family(pid: int) -> list[psutil.Process]:
    """A process and all it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_gone(processes: Iterable[psutil.Process]) -> None:
    """Wait until nothing is left of these processes."""
    wait_until(lambda: not any(map(is_alive, processes)), reason=f"the end of {processes}", deadline_s=GONE_DEADLINE_S)
