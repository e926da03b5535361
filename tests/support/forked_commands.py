"""Runs ``mrt-hpc`` in forks of a process that has imported what most commands import, which takes three quarters of
the time of a short one. Each fork has its own environment, folder, session and output, and ends as any process does.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, TextIO

IMPORTED = (
    "api", "cli.main", "cli.plan", "cli.submit", "cli.compare", "cli.fields", "cli.run_view", "submit.submission",
    "submit.create", "view.explain", "view.snapshot_reader", "analysis.named_models", "plan.compile",
    "evaluate.evaluation_alone", "datasets.check", "recipe.load",
)  # fmt: skip
"""Nothing among these reads the environment when it is imported."""
LONGEST_REQUEST = 1 << 20


class Request(NamedTuple):
    words: list[str]
    environment: dict[str, str]
    folder: str


@dataclass
class ForkedCommand:
    """A command that runs, in a session of its own."""

    pid: int
    _told: TextIO

    def wait(self) -> int:
        """Its exit status, negative for a signal."""
        with self._told:
            return int(self._told.readline())


def start_command(words: list[str], environment: Mapping[str, str], folder: Path, output: int) -> ForkedCommand:
    """Start ``mrt-hpc``; ``output`` is the descriptor of both of its streams."""
    mine, its = socket.socketpair()
    request = json.dumps(Request(words, dict(environment), str(folder))).encode()
    with its, mine:
        socket.send_fds(_server(), [request], [output, its.fileno()])
        told = mine.makefile()
    return ForkedCommand(int(told.readline()), told)


@cache
def _server() -> socket.socket:
    """The process that forks; it ends with this one, whose socket it reads."""
    mine, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with its:
        subprocess.Popen([sys.executable, "-P", __file__], stdin=its)
    return mine


def serve(control: socket.socket) -> Request:
    """Fork for each request, and return it in the fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, *_ = socket.recv_fds(control, LONGEST_REQUEST, 2)
        if not data:
            sys.exit()
        if os.fork() == 0:
            control.close()
            return watch(Request(*json.loads(data)), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def watch(request: Request, output: int, ended: int) -> Request:
    """Fork the command, and tell its id and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) == 0:
        os.close(ended)
        become(request, output)
        return request
    os.close(output)
    os.write(ended, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    os.write(ended, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: Request, output: int) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    os.close(output)
    os.close(nowhere)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", encoding="utf-8"), open(2, "w", 1, "utf-8")  # noqa: SIM115
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = ["mrt-hpc", *request.words]


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(f"mrt_hpc.{name}")
    gc.freeze()  # so that no fork copies what it only looks at
    serve(socket.socket(fileno=os.dup(0)))
    from mrt_hpc.cli import start

    start()
