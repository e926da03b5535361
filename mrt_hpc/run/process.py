"""Starts and ends processes, so that no task, server or grader outlives the process that needs it."""

import ctypes
import fcntl
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import DEVNULL, STDOUT, CompletedProcess, Popen, TimeoutExpired, run

from mrt_hpc.run.atomic import make_folder

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Kill this process when the thread that started it ends; call it in the child."""
    signal_at_parent_end(signal.SIGKILL)
    if os.getppid() == 1:  # the parent died before the request reached the kernel
        os.kill(os.getpid(), signal.SIGKILL)


def signal_at_parent_end(number: signal.Signals) -> None:
    """Have the kernel signal this process when the thread that started it ends, even by SIGKILL.

    The caller then checks its parent, which may have died before this call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def die_with_pool_owner() -> None:
    """Kill this worker of a multiprocessing pool when the pool's owner ends.

    A worker's kernel parent is the fork server, the wrong process for ``signal_at_parent_end``. Instead the owner's
    pipe sends SIGIO: its end of file kills, even inside a long multiplication.

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
def pause_collector() -> Iterator[None]:
    """Load large libraries with garbage collection off, and leave their millions of lasting objects out of it later:
    collecting takes a third of vLLM's loading time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# Where a process that this one starts finds this package.


def import_path() -> dict[str, str]:
    """Variables with which a child imports this package, and nothing from the current folder, which may be another
    user's.
    """
    mine, given = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([mine, given] if given else [mine]), "PYTHONSAFEPATH": "1"}


def forget_other_pythons() -> None:
    """Drop PYTHONHOME and foreign folders of PYTHONPATH, set by a shell or site module, from this process and its
    children: their packages would come first.
    """
    os.environ.pop("PYTHONHOME", None)
    named = [place for place in os.environ.pop("PYTHONPATH", "").split(os.pathsep) if place]
    if kept := [place for place in named if Path(place, "mrt_hpc").is_dir()]:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    dropped = {os.path.normpath(place) for place in named} - {os.path.normpath(place) for place in kept}
    sys.path[:] = [place for place in sys.path if os.path.normpath(place) not in dropped]


def start_process(
    words: Sequence[str], log: Path, environment: Mapping[str, str], *, leads: bool = False
) -> Popen[bytes]:
    """Start a process that appends to a log, whose folder a user may have removed.

    Args:
        environment: all variables.
        leads: a new session, so that signals reach its children too.
    """
    make_folder(log.parent)
    with log.open("ab") as out:
        return Popen(words, env=environment, stdin=DEVNULL, stdout=out, stderr=STDOUT, start_new_session=leads)


def run_program(
    words: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run a program without input to its end. Its output may have any encoding.

    Args:
        timeout_s: until it is killed.
        environment: all variables; None for this process's.

    Raises:
        OSError, TimeoutExpired: not started, or not ended in time.
    """
    return run(
        words, env=environment, stdin=DEVNULL, capture_output=True, encoding="utf-8", errors="replace",
        timeout=timeout_s, check=False,
    )  # fmt: skip


def end_or_kill(process: Popen[bytes], seconds: float) -> None:
    """Wait for a process that was asked to end; kill it after ``seconds``."""
    try:
        process.wait(seconds)
    except TimeoutExpired:
        process.kill()
        process.wait()
