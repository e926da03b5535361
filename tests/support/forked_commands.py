"""Runs ``mrt-hpc`` in forks of a process that has imported what most commands import, which takes three quarters of
the time of a short one. All processes that share the tests share it. Each fork has its own environment, folder, session
and output, and ends as any process does.
"""

import atexit
import fcntl
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from mrt_hpc.run.access import private_folder

IMPORTED = (
    "api", "cli.main", "cli.plan", "cli.submit", "cli.compare", "cli.fields", "cli.run_view", "submit.submission",
    "submit.create", "view.explain", "view.snapshot_reader", "analysis.named_models", "plan.compile",
    "evaluate.evaluation_alone", "datasets.check", "recipe.load",
)  # fmt: skip
"""Nothing among these reads the environment when it is imported."""
COMMANDS, WITH_TASKS = "forked_commands.py", "forked_tasks.py"
"""The programs that fork: the second one also forks the tasks and servers that a command starts."""
LONGEST_REQUEST = 1 << 20


class Request(NamedTuple):
    words: list[str]
    environment: dict[str, str]
    folder: str


class Ended(NamedTuple):
    status: int
    printed: str  # what a terminal shows of both streams


@dataclass
class ForkedCommand:
    """A command that runs, in a session of its own."""

    pid: int
    _told: socket.socket

    def wait(self) -> int:
        """Its exit status, negative for a signal."""
        with self._told:
            return int(self._told.recv(LONGEST_REQUEST))


def run_command(
    words: Iterable[object], environment: Mapping[str, str], folder: Path, program: str = COMMANDS
) -> Ended:
    """Run ``mrt-hpc`` with these words to its end; ``program`` forks it."""
    above, below = os.pipe()
    command = start_command(Request([*map(str, words)], dict(environment), str(folder)), below, program)
    os.close(below)
    try:
        with open(above, encoding="utf-8") as output:
            printed = output.read()
        return Ended(command.wait(), printed)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)


def start_command(request: Request, output: int, program: str) -> ForkedCommand:
    """Start ``mrt-hpc``; ``output`` is the descriptor of both of its streams."""
    told = connected(program)
    socket.send_fds(told, [json.dumps(request).encode()], [output])
    return ForkedCommand(int(told.recv(LONGEST_REQUEST)), told)


def connected(program: str) -> socket.socket:
    """A connection to the process that forks: one for all processes that share the tests, with which it ends."""
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = private_folder(Path(tempfile.gettempdir()), f"mrt-hpc-tests-{owner}")
    connection, address = socket.socket(type=socket.SOCK_SEQPACKET, family=socket.AF_UNIX), folder / program
    with (folder / f"{program}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(address))
        except OSError:  # nobody has started it yet
            address.unlink(missing_ok=True)
            with socket.socket(type=socket.SOCK_SEQPACKET, family=socket.AF_UNIX) as listener:
                listener.bind(str(address))
                listener.listen()
                subprocess.Popen([sys.executable, Path(__file__).with_name(program), str(owner)], stdin=listener)
            connection.connect(str(address))
    return connection


def serve() -> None:
    """Fork for each request at the socket that is standard input, and return in the fork, which is then the command."""
    listener, owner = socket.socket(fileno=os.dup(0)), os.pidfd_open(int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while owner not in select.select([listener, owner], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(owner)
            watch(connection)
            return
        connection.close()
    shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)
    sys.exit()


def watch(told: socket.socket) -> None:
    """Fork the command, and tell its id and how it ended."""
    data, (output,), *_ = socket.recv_fds(told, LONGEST_REQUEST, 1)
    request = Request(*json.loads(data))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) == 0:
        told.close()
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDONLY)
        become(["mrt-hpc", *request.words], request.environment, request.folder, (nowhere, output, output))
        return
    os.close(output)
    told.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    told.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(words: list[str], environment: Mapping[str, str], folder: str, streams: Sequence[int]) -> None:
    """Be a program with these words, all of whose streams are given."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, place)
    for descriptor in {*streams}:
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words


def run_to_end(program: Callable[[], object]) -> NoReturn:
    """End as Python does, but let the modules be: taking them apart copies what all forks share, for half a second."""
    code = 0
    try:
        program()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    del sys.path[0]  # commands find no modules of the tests
    for name in IMPORTED:
        importlib.import_module(f"mrt_hpc.{name}")
    gc.freeze()  # so that no fork copies what it only looks at
    serve()
    from mrt_hpc.cli import start

    run_to_end(start)
