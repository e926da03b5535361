"""One node of the Ray cluster of a task, as a child process: it is started, watched and ended.

The cluster belongs to one attempt at a task. Its ports are free ones, and a process joins it only with the token of
the attempt. Between processes of one machine it listens on the loopback address only.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.server_main import DIRECTORY_VARIABLE, OWNER_VARIABLE, folder_variables
from mrt_hpc.run.access import cache_variables
from mrt_hpc.run.process import import_path, started
from mrt_hpc.run.retries import wait_until

LOOPBACK = "127.0.0.1"
STAYS_ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""The variable that, at 0, lets Ray be on the loopback address; else Ray replaces it by that of a network card. It is
read when Ray is imported.
"""
OBJECT_STORE_BYTES = 128 * 2**20
"""Memory for what Ray passes between processes: here answers and verdicts, which are small."""
LONGEST_FOLDER = 24
"""Characters of the folder for temporary files. Ray's sockets lie up to 83 characters below it, and the path of a
socket has at most 107.
"""
INNER_FOLDER = "r"
"""The folder of Ray, below the private one: Ray opens its folder to all users."""


@dataclass(frozen=True)
class RayPlace:
    """The place of a node in the cluster."""

    address: str
    """The IPv4 address of this node, at which the others reach it."""
    head: str
    """HOST:PORT of the first node."""
    token: str = field(repr=False)
    """What each process of the cluster has to show."""
    gpus: tuple[str, ...] = ()
    """The GPUs of this node, as CUDA names them."""
    is_head: bool = False

    def environment(self) -> dict[str, str]:
        """The environment variables with which a process of this node joins the cluster."""
        on_loopback = {STAYS_ON_LOOPBACK: "0"} if self.address == LOOPBACK else {}
        return {
            "RAY_ADDRESS": self.head,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_memory_monitor_refresh_ms": "0",  # Slurm, and the limits on graders, say what memory may be used
            "VLLM_HOST_IP": self.address,
            **on_loopback,
        }


@dataclass
class RayNode:
    """The processes of one node, used as a context manager."""

    place: RayPlace
    log: Path
    """The file for their output."""
    cpus: int = 1
    _directory: Path = field(init=False, repr=False)
    _process: subprocess.Popen[bytes] = field(init=False, repr=False)

    def __enter__(self) -> Self:
        self._directory = _short_directory()
        words = [sys.executable, "-m", "mrt_hpc.inference.ray_node_main", *self._arguments()]
        self._process = started(words, self.log, self._environment(), leads=True)
        return self

    def __exit__(self, *_: object) -> None:
        # Asked to end, Ray would wait for half a minute; it has nothing to save.
        with contextlib.suppress(ProcessLookupError):  # all of its processes have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The process id of the process that starts Ray's own ones and ends with the first of them."""
        return self._process.pid

    def raise_if_ended(self) -> None:
        """Check that the node still runs.

        Raises:
            UserError: it has ended, by itself or because it was killed.
        """
        if (code := self._process.poll()) is not None:
            raise UserError(
                f"the Ray node of this task ended with status {code}",
                value=self.place.address,
                where=self.log,
                advice="read the end of that log; mrt-hpc submit RUN starts the task again",
                exit_code=ExitCode.RETRYABLE,
            )

    def wait_for_head(self, deadline_s: float, advice: str) -> None:
        """Wait until the first node of the cluster, this one, takes connections.

        Args:
            deadline_s: seconds after which the wait ends with an error.
            advice: the next command to type, shown in that error.

        Raises:
            UserError: it ended, or did not in time.
        """
        wait_until(
            lambda: answers(self.place.head),
            reason="the first Ray node",
            deadline_s=deadline_s,
            check=self.raise_if_ended,
            where=self.log,
            advice=advice,
        )

    def _arguments(self) -> list[str]:
        where = (
            ["--head", f"--port={self.place.head.rpartition(':')[2]}", "--include-dashboard=false", "--no-monitor"]
            if self.place.is_head
            else [f"--address={self.place.head}"]
        )
        return [
            "--block",
            *where,
            f"--node-ip-address={self.place.address}",
            f"--num-cpus={self.cpus}",
            f"--num-gpus={len(self.place.gpus)}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--temp-dir={self._directory / INNER_FOLDER}",
            "--min-worker-port=0",  # any free ports
            "--max-worker-port=0",
            "--include-log-monitor=false",
            "--disable-usage-stats",
            "--log-style=record",
        ]

    def _environment(self) -> dict[str, str]:
        """That of the node's processes. vLLM gives each process of a server that spans nodes the environment of the
        first node, but for what is set here: every variable that names a private folder must name one of this node.
        """
        environment = {
            **cache_variables(),
            **os.environ,
            **self.place.environment(),
            **import_path(),
            OWNER_VARIABLE: str(os.getpid()),
            DIRECTORY_VARIABLE: str(self._directory),
            **folder_variables(self._directory),
        }
        for name in ("RAY_ADDRESS", STAYS_ON_LOOPBACK):  # they are for programs that use a cluster
            environment.pop(name, None)
        if self.place.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.place.gpus)
        return environment


def address_towards(other: str) -> str:
    """The IPv4 address of this node on the way to another one. Nothing is sent.

    Raises:
        UserError: there is no way.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"this node has no way to another node of its task: {error}",
            value=other,
            where=socket.gethostname(),
            expected="nodes that know each other's host names",
            advice="ask the administrators whether compute nodes resolve each other's names, or use one node: "
            "--set resources.inference.nodes=1",
            exit_code=ExitCode.RETRYABLE,
        ) from error


def free_port(address: str) -> int:
    """A TCP port of this node that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def answers(head: str) -> bool:
    """Whether the first node of a cluster takes connections."""
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def _short_directory() -> Path:
    """A new directory that only this user may enter, on this node."""
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="mrt-ray-", dir=parent if len(parent) <= LONGEST_FOLDER else "/tmp"))
