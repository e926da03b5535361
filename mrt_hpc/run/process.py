"""How processes are started and ended. Each ends with the one that started it: no task, server or grader outlives the
process that needs it.
"""

import ctypes
import fcntl
import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import DEVNULL, STDOUT, CompletedProcess, Popen, TimeoutExpired, run

from mrt_hpc.run.atomic import make_folder

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Kill this process when the thread that started it ends; to be called in the child.

    Raises:
        OSError: the kernel refuses.
    """
    signal_at_parent_end(signal.SIGKILL)
    if os.getppid() == 1:  # the parent died before the request reached the kernel
        os.kill(os.getpid(), signal.SIGKILL)


def signal_at_parent_end(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that started it ends, also if SIGKILL ended it.

    The caller checks afterwards that its parent still is the one it expects: it may have died before this call.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def die_with_pool_owner() -> None:
    """Kill this worker of a multiprocessing pool when the process that owns the pool ends.

    The kernel's parent of a worker is the fork server, so ``signal_at_parent_end`` would watch the wrong process. The
    pipe that multiprocessing keeps open for the owner is asked for SIGIO instead: its end of file kills, even inside a
    long multiplication of big integers.

    Raises:
        RuntimeError: multiprocessing did not start this process.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("a grader process was not started by multiprocessing")
    pipe = int(parent.sentinel)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([pipe], timeout=0):  # the owner died before the pipe was watched
        os._exit(1)


@contextmanager
def loading() -> Iterator[None]:
    """Load the large libraries of a process in this block. They make millions of objects that stay, and Python's
    collector of unused objects would look at all of them again and again, which takes a third of the time to load vLLM,
    and once more when the process ends. So it does not run in the block, and leaves out later what was made by then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# -- import path -------------------------------------------------------------------------------------------------------
# Where a process that this one starts finds this package.


def import_path() -> dict[str, str]:
    """The environment variables with which a child imports the package from where this process has it, and nothing from
    the folder that the command was typed in, which may be another user's.
    """
    mine, given = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([mine, given] if given else [mine]), "PYTHONSAFEPATH": "1"}


def started(words: Sequence[str], log: Path, environment: Mapping[str, str], *, leads: bool = False) -> Popen[bytes]:
    """Start a process that writes to the end of a log, whose folder a user may have removed.

    Args:
        words: of its command.
        log: its output and its errors.
        environment: all of its variables.
        leads: whether it is the first of a session of its own, so that a signal reaches it with all its children.
    """
    make_folder(log.parent)
    with log.open("ab") as out:
        return Popen(words, env=environment, stdin=DEVNULL, stdout=out, stderr=STDOUT, start_new_session=leads)


def finished(
    words: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run another program, which reads nothing, to its end. What it prints may be text in any encoding.

    Args:
        words: of its command.
        timeout_s: seconds after which it is killed.
        environment: all of its variables; None for those of this process.

    Raises:
        OSError: it cannot be started.
        TimeoutExpired: it did not end in time.
    """
    return run(
        words, env=environment, stdin=DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
        timeout=timeout_s, check=False,
    )  # fmt: skip


def end_or_kill(process: Popen[bytes], seconds: float) -> None:
    """Wait for the end of a process that was asked to end, and kill it where that takes longer."""
    try:
        process.wait(seconds)
    except TimeoutExpired:
        process.kill()
        process.wait()
