"""Runs ``mrt-hpc`` with tasks and vLLM servers that are forks of a process that has imported torch, DeepSpeed and vLLM:
these imports take two thirds of the processor time of a small run.

A fork of a process that has computed, or has threads, may wait for ever for threads that it does not have. So each
process keeps another one beside it, forked before it did anything, and what it starts is forked from that one. The
kernel then hands the fork over to the process that wanted it, which sees an ordinary child.
"""

import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from forked_commands import IMPORTED, LONGEST_REQUEST, become, run_to_end, serve

from mrt_hpc.inference.server_start import cpu_environment

TASK, SERVER = "mrt_hpc.attempt.entry", "mrt_hpc.inference.server_main"
"""The modules that a run starts as ``python -m``."""
OF_TASKS = (
    "mrt_hpc.roles.prepare", "mrt_hpc.roles.inference", "mrt_hpc.roles.evaluation", "mrt_hpc.roles.report",
    "mrt_hpc.roles.trainer", "vllm.entrypoints.launchers.api_server.entry", "vllm.v1.engine.utils",
    "mrt_hpc.inference.seeded_noise", "mrt_hpc.inference.vllm_on_cpu",
)  # fmt: skip
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_ADOPTS = 36  # PR_SET_CHILD_SUBREAPER
_LOOK_EVERY_S = 0.001
_libc = ctypes.CDLL(None, use_errno=True)
_one_at_a_time = threading.Lock()


class Start(NamedTuple):
    """What a new program takes over from the process that starts it, beside its three streams."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    leads: bool
    umask: int
    blocked: list[int]
    ignored: list[int]


def fork_what_is_started() -> None:
    """From now on, the tasks and servers that this process starts are forks of it as it is now."""
    mine, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        mine.close()
        fork_on_request(its)
    its.close()
    subprocess.Popen._execute_child = forking(mine)


@contextmanager
def forked_servers() -> Iterator[None]:
    """During the block, the servers that this process starts are forks of a child that has imported what they need."""
    mine, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with its:
        child = subprocess.Popen([sys.executable, __file__], stdin=its)
    with child, mine, patch.object(subprocess.Popen, "_execute_child", forking(mine)):
        yield


def forking(control: socket.socket) -> Callable[..., None]:
    """What a ``Popen`` does to start its child, if tasks and servers are forked at the other end."""
    start, parameters = subprocess.Popen._execute_child, inspect.signature(subprocess.Popen._execute_child)

    def start_or_fork(process: subprocess.Popen[Any], *given: Any) -> None:
        wanted = parameters.bind(process, *given).arguments
        if [*wanted["args"]][:2] != [sys.executable, "-m"] or wanted["args"][2] not in (TASK, SERVER):
            start(process, *given)
            return
        process.pid = forked(control, wanted)
        process._child_created = True
        process._close_pipe_fds(*(wanted[end] for end in PIPES))

    return start_or_fork


def forked(control: socket.socket, wanted: dict[str, Any]) -> int:
    """The process id of a new child."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    wish = Start(
        wanted["args"][2:], dict(os.environ if wanted["env"] is None else wanted["env"]),
        os.fspath(wanted["cwd"] or Path.cwd()), wanted["start_new_session"], int(status["Umask"], 8),
        [*signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
    )  # fmt: skip
    streams = (wanted["p2cread"], wanted["c2pwrite"], wanted["errwrite"])
    descriptors = [own if given == -1 else given for own, given in enumerate(streams)]
    with _one_at_a_time:
        _libc.prctl(_ADOPTS, 1)
        try:
            socket.send_fds(control, [json.dumps(wish).encode()], descriptors)
            return int(control.recv(LONGEST_REQUEST))
        finally:
            _libc.prctl(_ADOPTS, 0)


def fork_on_request(control: socket.socket) -> NoReturn:
    """Until the other end is closed. A child of the process in between has that one's grandparent once it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, descriptors, *_ = socket.recv_fds(control, LONGEST_REQUEST, 3)
        if not data:
            os._exit(0)
        if (between := os.fork()) == 0:
            between = os.getpid()
            if os.fork() == 0:
                while os.getppid() == between:
                    time.sleep(_LOOK_EVERY_S)
                control.send(str(os.getpid()).encode())
                control.close()
                run(Start(*json.loads(data)), descriptors)
            os._exit(0)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def run(start: Start, streams: list[int]) -> NoReturn:
    """Be the program that is started, to its end."""
    module, *arguments = start.words
    if start.leads:
        os.setsid()
    become([module, *arguments], start.environment, start.folder, streams)
    os.umask(start.umask)
    for number in start.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, start.blocked)
    if module == TASK:
        fork_what_is_started()
    use_threads()
    sys.modules.pop(module, None)  # runpy says so where a module that it runs is there already
    run_to_end(partial(runpy.run_module, module, run_name="__main__", alter_sys=True))


def use_threads() -> None:
    """As many as OMP_NUM_THREADS says, which OpenMP reads when it is loaded."""
    import torch

    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))


if __name__ == "__main__":
    del sys.path[0]  # tasks find no modules of the tests
    os.environ.update(cpu_environment(None) | {"HF_HUB_OFFLINE": "1"})  # as servers have it
    for name in (*(f"mrt_hpc.{own}" for own in IMPORTED), *OF_TASKS):
        importlib.import_module(name)
    gc.freeze()  # so that no fork copies what it only looks at
    if len(sys.argv) == 1:
        fork_on_request(socket.socket(fileno=os.dup(0)))
    serve()
    fork_what_is_started()
    from mrt_hpc.cli import start

    run_to_end(start)
