"""One node of a task's Ray cluster, as a child process: started, watched and ended.

The cluster belongs to one attempt: joining takes the attempt's token. Between processes of one machine it listens on
loopback only.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from mrt_hpc.errors import retryable_error
from mrt_hpc.inference.server_main import DIRECTORY_VARIABLE, OWNER_VARIABLE, folder_variables
from mrt_hpc.run.access import cache_variables
from mrt_hpc.run.network import LOOPBACK, answers
from mrt_hpc.run.process import import_path, start_process
from mrt_hpc.run.retries import wait_until

STAYS_ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0 it lets Ray use loopback, which Ray else replaces by a network card's address. Read when Ray is imported."""
OBJECT_STORE_BYTES = 128 * 2**20
"""The size for Ray's messages between processes: answers and verdicts, which are small."""
LONGEST_FOLDER = 24
"""The limit of the folder for temporary files. Ray's sockets lie up to 83 characters below it, and a socket's path has
at most 107.
"""
INNER_FOLDER = "r"
"""Ray's folder, below the private one: Ray opens it to all users."""


@dataclass(frozen=True)
class RayPlace:
    address: str
    """IPv4 address of this node for the others."""
    head: str
    """HOST:PORT of the first node."""
    token: str = field(repr=False)
    """What each process of the cluster has to show."""
    gpus: tuple[str, ...] = ()
    """This node's GPUs, as CUDA names them."""
    is_head: bool = False

    def environment(self) -> dict[str, str]:
        """The variables of a process of this node that joins the cluster."""
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
    place: RayPlace
    log: Path
    cpus: int = 1
    _directory: Path = field(init=False, repr=False)
    _process: subprocess.Popen[bytes] = field(init=False, repr=False)

    def __enter__(self) -> Self:
        parent = tempfile.gettempdir()
        parent = parent if len(parent) <= LONGEST_FOLDER else "/tmp"
        self._directory = Path(tempfile.mkdtemp(prefix="mrt-ray-", dir=parent))
        words = [sys.executable, "-m", "mrt_hpc.inference.ray_node_main", *self._arguments()]
        self._process = start_process(words, self.log, self._environment(), leads=True)
        return self

    def __exit__(self, *_: object) -> None:
        # Asked to end, Ray would wait for half a minute; it has nothing to save.
        with contextlib.suppress(ProcessLookupError):  # all of its processes have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The process that starts Ray's own ones and ends with the first of them."""
        return self._process.pid

    def raise_if_ended(self) -> None:
        if (code := self._process.poll()) is not None:
            raise retryable_error(
                f"the Ray node of this task ended with status {code}",
                value=self.place.address,
                where=self.log,
                advice="read the end of that log; mrt-hpc submit RUN starts the task again",
            )

    def wait_for_head(self, deadline_s: float, advice: str) -> None:
        """Wait until the first node of the cluster, this one, takes connections. ``advice`` is for the error at the
        deadline.
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
        where = [f"--address={self.place.head}"]
        if self.place.is_head:
            port = self.place.head.rpartition(":")[2]
            where = ["--head", f"--port={port}", "--include-dashboard=false", "--no-monitor"]
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
        """vLLM gives each process of a server that spans nodes the first node's environment, except variables that are
        set here: all that name a private folder must name one of this node.
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
