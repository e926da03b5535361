"""Processes, ports and patience for `onehost`: what runs, whose it is, and how it is ended."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path


class OnehostError(Exception):
    """What went wrong and what to do; printed without a traceback."""


def say(text: str) -> None:
    print(f"onehost: {text}", file=sys.stderr, flush=True)


def succeeds(*command: str) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def output_of(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OnehostError(f"{shlex.join(command)} failed ({done.returncode}): {(done.stderr or done.stdout).strip()}")
    return done.stdout


def wait_for(what: str, seconds: float, condition: Callable[[], bool], log: Path | None = None) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise OnehostError(f"gave up after {seconds:g} s waiting for {what}" + (f"; see {log}" if log else ""))
        time.sleep(0.1)


def process_environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it is gone, or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in pairs}


def running(pid: int) -> bool:
    """Whether a process exists; one that has ended but was not collected yet counts as gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "\nState:\tZ" not in status


def process_ids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def end(pid: int, what: str, seconds: float = 20) -> None:
    """SIGTERM, and SIGKILL for what has not ended by then."""
    os.kill(pid, signal.SIGTERM)
    try:
        wait_for(f"{what} to end", seconds, lambda: not running(pid))
    except OnehostError:
        say(f"{what} ({pid}) ignored SIGTERM for {seconds:g} s: SIGKILL")
        os.kill(pid, signal.SIGKILL)


def kill_all(pids: list[int]) -> None:
    """SIGKILL at once, as when the power goes."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended by itself in between


def require_free(port: int, daemon: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            raise OnehostError(f"port {port}, meant for {daemon}, is taken ({error}); set ONEHOST_PORT") from error
