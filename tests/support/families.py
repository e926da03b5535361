"""A process with all that it started, the processes of a run, and the wait for their end."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from mrt_hpc.run.retries import wait_until

GONE_DEADLINE_S = 60.0
HOLD = """
import sys, time
from pathlib import Path
from mrt_hpc.attempt.ledger import claim_run
from mrt_hpc.run.layout import RunLayout
with claim_run(RunLayout(Path(sys.argv[1])), 60.0):
    print("held", flush=True)
    time.sleep(600)
"""


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_gone(processes: Iterable[psutil.Process]) -> None:
    wait_until(lambda: not any(map(is_alive, processes)), reason=f"the end of {processes}", deadline_s=GONE_DEADLINE_S)


def servers_of(run: Path) -> list[int]:
    """The processes whose command names the run."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [int(line.parent.name)] if str(run).encode() in line.read_bytes() else []
    return found


@contextmanager
def holder_of(run: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the plan of a run on this machine until the block ends."""
    command = [sys.executable, "-c", HOLD, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
