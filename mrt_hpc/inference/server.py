"""A vLLM server as a child process: it is started, watched, given new weights in place, and restarted when it dies; it
ends with this process.

It listens on a Unix socket in a directory that only this user may enter, so that it needs no free port and no other
user of the node can reach its sampling or control routes. Every request also needs the run's key, which the server
receives in its environment. Sampling goes through `mrt_hpc.inference.client`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import msgspec
import torch

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.protocol import FIRST_VERSION_VARIABLE, MOST_LOGPROBS, SERVED_VARIABLE, ServedSettings
from mrt_hpc.inference.server_control import CONTROL_TIMEOUT_S, Address, ServerControl, refuse_no_weights
from mrt_hpc.inference.server_main import DIRECTORY_VARIABLE, OWNER_VARIABLE
from mrt_hpc.inference.socket_paths import LONGEST_SOCKET_FOLDER
from mrt_hpc.recipe.schema import WeightSwap
from mrt_hpc.run.import_path import import_path
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

STOP_DEADLINE_S = 2.0
"""The time in which a server has to end on request, before its processes are killed. It has nothing to save, and would
wait for its clients; its owner may have little time to end.
"""
KILLED_DEADLINE_S = 20.0
"""The time in which the kernel has to end killed processes; it frees their memory first."""
RECOVERY_DEADLINE_S = 60.0
"""The time after which a server that runs but does not answer counts as dead."""
_LOOK_EVERY_S = 0.2
READ_LOG = "read the end of that log; the same submit command starts the server again"
"""The advice in the error when a server has failed."""
_LOG_TAIL_BYTES = 4000
_CPU_FLAGS = ("--enforce-eager", "--no-enable-chunked-prefill")
"""Compilation gains nothing on CPU; a prompt prefilled in parts kills the engine there if its request has a seed
(vLLM 0.32 rewinds the offset of the request's generator, and a CPU generator has none)."""


@dataclass(frozen=True)
class ServerSettings:
    """The settings with which a server is started."""

    model_dir: Path
    """The Hugging Face directory with configuration, tokenizer and weights."""
    max_model_len: int
    dtype: str = "auto"
    """``auto`` follows the configuration, but fp32 becomes bf16."""
    max_num_seqs: int = 256
    """The maximum number of samples generated at once."""
    tensor_parallel: int = 1
    """The number of GPUs, or on CPU of processes, that each layer of the model is divided over."""
    stages: int = 1
    """The number of parts into which the layers are divided, one after the other, each on ``tensor_parallel`` GPUs."""
    over_ray: bool = False
    """Whether its GPUs are those of the Ray cluster that this process has joined, on several nodes."""
    gpus: tuple[str, ...] = ()
    """The GPUs that it may see, as CUDA names them; empty for those that this process may see."""
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: float | None = None
    """Memory of the key-value cache on CPU; on GPU it follows from ``gpu_memory_utilization``."""
    block_size: int | None = None
    """The tokens per block of the prefix cache; None for vLLM's default, or for 32 on CPU, where the default of 128
    misses most prefixes.
    """
    cpu_threads: int | None = None
    """The number of cores that each of its processes computes on, on CPU; None for all that this process may use."""
    seed: int = 0
    start_deadline_s: float = 900.0
    """The seconds until it must answer: a large model may be read from a busy shared filesystem."""
    pause_deadline_s: float = 300.0
    """The seconds in which it must finish running samples when new weights are to be loaded."""
    sleeps: bool = False
    """Whether it can free the memory of its GPUs for a while. vLLM then allocates that memory in another way."""
    noise_by_request: bool = False
    """Whether the random numbers of a sample are those of its seed from its first token on, whatever the position
    of that token. The newer of vLLM's GPU runners draws them by absolute position.
    """
    listen: Address | None = None
    """The address to listen at; None for a Unix socket of its own that only this user may open."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of vLLM's API server."""


def on_cpu() -> bool:
    """Return whether vLLM will run without an accelerator on this machine."""
    return not torch.cuda.is_available()


def cpu_environment(threads: int | None) -> dict[str, str]:
    """Return the environment variables with which vLLM computes without an accelerator.

    Its threads are not bound to cores unless the environment says so: bound ones wait for each other, and so for
    other processes on one of their cores, such as the role whose server it is. Threads that are not bound compute in
    the process of the engine. vLLM by default gives them a process of their own to bind them there, for which the
    engine waits in a loop that takes a core from them. Between two operations a thread waits for some microseconds
    without sleeping; by default OpenMP lets it sleep at once, because the process has more threads than cores.

    Args:
        threads: the number of threads, at most the cores that this process may use; None for all of these.
    """
    cores = len(os.sched_getaffinity(0))
    binding = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": binding,
        "OMP_NUM_THREADS": str(min(threads or cores, cores)),
        "OMP_WAIT_POLICY": "active",
        "GOMP_SPINCOUNT": "300000",  # at most some milliseconds; "active" alone means minutes, also in an idle server
        "TORCHDYNAMO_DISABLE": "1",  # otherwise the first sample needs a C++ compiler, which a node may lack
    }
    if binding == "nobind":
        # vLLM reads this in every process. The server has its engine in another process all the same; with more than
        # one rank the ranks have processes of their own, too.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return environment


@dataclass
class VllmServer:
    """The server process, used as a context manager. `restart_if_dead` may be called from several threads at once."""

    settings: ServerSettings
    log: Path
    """The file for its standard output and error, to which every start appends."""
    weights_version: int = 0
    """The version that ``settings.model_dir`` holds; afterwards the one loaded last."""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    while_starting: Callable[[], None] | None = field(default=None, repr=False)
    """A function called repeatedly during the first start; it raises an error when the server is no longer needed."""
    starts: int = 0
    """The number of times that it was started."""
    is_loading: bool = field(default=False, init=False)
    """Whether new weights are being loaded."""
    _restarting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _model_dir: Path = field(init=False, repr=False)
    _closed: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _directory: Path = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._model_dir = self.settings.model_dir
        self._directory = _private_directory()

    @property
    def socket(self) -> Path:
        """The path of its socket, the same after every restart."""
        return self._directory / "vllm.sock"

    @property
    def control(self) -> ServerControl:
        """The client of its control routes."""
        return ServerControl(self.settings.listen or Address.of_socket(self.socket), self.key, self.log, READ_LOG)

    @property
    def each(self) -> tuple[VllmServer]:
        """This server alone."""
        return (self,)

    @property
    def pid(self) -> int | None:
        """The process id of the API server; None when no process runs."""
        return self._process.pid if self._process else None

    def __enter__(self) -> VllmServer:
        try:
            self.start(self.while_starting)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, check: Callable[[], None] | None = None) -> None:
        """Start the process and wait until it answers.

        Args:
            check: called repeatedly meanwhile; it raises an error to stop the wait.

        Raises:
            UserError: the server died or did not answer in time; the message holds the end of its log.
        """

        def look() -> None:
            self._raise_if_closed()
            self._raise_if_dead()
            if check is not None:
                check()

        self._raise_if_closed()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mrt_hpc.inference.server_main", *self._arguments()],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.starts += 1
        wait_until(
            self.healthy,
            reason=f"the vLLM server (log: {self.log})",
            deadline_s=self.settings.start_deadline_s,
            check=look,
            longest_pause_s=_LOOK_EVERY_S,
        )
        if self.settings.listen is None:
            refuse_stranger(self.socket, self._process.pid)

    def healthy(self) -> bool:
        """Return whether the server answers and its engine is alive."""
        return self.control.status() == httpx.codes.OK

    def restart_if_dead(self) -> bool:
        """Restart the server with the weights loaded last if it died or no longer answers; return whether it did.

        Of several callers one restarts the server, and the others wait for it.
        """
        with self._restarting:
            if self._recovers():
                return False
            self._end_process()
            self.start()
            return True

    def restart(self) -> None:
        """End the server at once, in any state, and start it again with the weights loaded last."""
        with self._restarting:
            self._end_process(patience_s=0.0)
            self.start()

    def tokens_done(self) -> int | None:
        """Return the tokens read and generated since it started, by its own counters; None when it does not answer."""
        return self.control.tokens_done()

    def load_weights(self, directory: Path, version: int, swap: WeightSwap = WeightSwap.DRAIN) -> dict[str, Any]:
        """Load new weights into the running model; see :meth:`ServerControl.load`. What restarts the server meanwhile
        waits for the end.

        Returns:
            The report of the first worker: the ``seconds`` it took, and the ``directory``.

        Raises:
            UserError: the directory holds no weights, and the old ones are still served; or the reload failed, and the
                server was ended: `restart_if_dead` starts it with the weights it had.
        """
        refuse_no_weights(directory)
        with self._restarting:
            self.is_loading = True
            try:
                report = self._load(directory, version, swap)
            finally:
                self.is_loading = False
        return report

    def _load(self, directory: Path, version: int, swap: WeightSwap) -> dict[str, Any]:
        settings = self.settings
        try:
            report = self.control.load(
                directory,
                version,
                swap=swap,
                pause_deadline_s=settings.pause_deadline_s,
                read_deadline_s=settings.start_deadline_s,  # it reads a whole model, as at its start
            )
        except BaseException:
            self._end_process()  # no sample may come from a partly loaded model
            raise
        self._model_dir, self.weights_version = directory, version
        return report

    def sleep(self) -> None:
        """Free the memory of its GPUs; see :meth:`Server.sleep`."""
        if self.settings.sleeps and not on_cpu():
            self.control.sleep(self.settings.pause_deadline_s)

    def wake_up(self) -> None:
        """Take the memory back; see :meth:`Server.wake_up`."""
        if self.settings.sleeps and not on_cpu():
            self.control.wake_up(self.settings.pause_deadline_s)

    def reset_prefix_cache(self) -> None:
        """Clear the prefix cache."""
        self.control.reset_prefix_cache()

    def metrics(self) -> dict[str, float]:
        """Return vLLM's counters and gauges, summed over their labels."""
        return self.control.metrics()

    def close(self) -> None:
        """End the process and all its children, and remove the socket; afterwards no thread restarts it."""
        self._closed.set()
        self._end_process()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _recovers(self) -> bool:
        """Wait for an answer, as the server may only be busy; return whether it is healthy."""
        end = time.monotonic() + RECOVERY_DEADLINE_S
        while self._running() and not self._closed.is_set() and time.monotonic() < end:
            if (status := self.control.status()) is not None:
                return status == httpx.codes.OK
            time.sleep(_LOOK_EVERY_S)
        return False

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _raise_if_closed(self) -> None:
        if self._closed.is_set():
            raise UserError("the vLLM server was closed", where=self.log, exit_code=ExitCode.RETRYABLE)

    def _raise_if_dead(self) -> None:
        if not self._running():
            code = self._process.returncode if self._process else None
            raise UserError(
                f"the vLLM server ended with status {code} before it answered:\n{self._log_tail()}",
                where=self.log,
                advice=READ_LOG,
                exit_code=ExitCode.RETRYABLE,
            )

    def _log_tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _end_process(self, patience_s: float = STOP_DEADLINE_S) -> None:
        """Send SIGTERM, then SIGKILL, and wait until the memory of its children is free again."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            _wait_at_most(patience_s, lambda: _has_ended(process.pid))
            os.killpg(process.pid, signal.SIGKILL)  # the process is not reaped yet, so no other process has this id
            process.wait()
        _wait_at_most(KILLED_DEADLINE_S, lambda: _group_is_empty(process.pid))

    def _environment(self) -> dict[str, str]:
        environment = {
            **os.environ,
            **import_path(),
            OWNER_VARIABLE: str(os.getpid()),
            DIRECTORY_VARIABLE: str(self._directory),
            FIRST_VERSION_VARIABLE: str(self.weights_version),
            SERVED_VARIABLE: msgspec.json.encode(self._served()).decode(),
            "VLLM_API_KEY": self.key,
            "VLLM_SERVER_DEV_MODE": "1",  # enables the control routes
            "VLLM_RPC_BASE_PATH": str(self._directory),  # keeps the sockets between its processes private too
            "TMPDIR": str(self._directory),  # its temporary files are removed with this directory
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # `server_main` relies on it
            "HF_HUB_OFFLINE": "1",
        }
        if self.settings.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.settings.gpus)
        if self._draws_by_request:
            environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        return environment | (cpu_environment(self.settings.cpu_threads) if on_cpu() else {})

    @property
    def _draws_by_request(self) -> bool:
        """Whether the noise of a sample follows from its seed from its first token on; on CPU it always does."""
        return self.settings.noise_by_request or on_cpu()

    def _served(self) -> ServedSettings:
        """The settings that an attached task asks for."""
        return ServedSettings(self.settings.dtype, self._draws_by_request)

    @property
    def _place(self) -> dict[str, object]:
        """The arguments for the address to listen at."""
        if self.settings.listen is None:
            return {"uds": self.socket}
        place = urlsplit(self.settings.listen.url)
        return {"host": place.hostname, "port": place.port}

    def _arguments(self) -> list[str]:
        settings = self.settings
        options: dict[str, object] = {
            "model": self._model_dir,
            **self._place,
            "dtype": settings.dtype,
            "max-model-len": settings.max_model_len,
            "max-num-seqs": settings.max_num_seqs,
            "tensor-parallel-size": settings.tensor_parallel,
            **_across_nodes(settings),
            "gpu-memory-utilization": settings.gpu_memory_utilization,
            "seed": settings.seed,
            "max-logprobs": MOST_LOGPROBS,
            "logprobs-mode": "processed_logprobs",  # those of the distribution sampled from, temperature applied
            "generation-config": "vllm",  # a model's generation_config.json must not change the sampling
            "worker-extension-cls": "mrt_hpc.inference.vllm_extension.ReloadExtension",
            "middleware": "mrt_hpc.inference.vllm_middleware.RunRoutes",
            "uvicorn-log-level": "warning",
        }
        if on_cpu():
            options["worker-cls"] = "mrt_hpc.inference.vllm_cpu_worker.CountingWorker"
            options["scheduler-cls"] = "mrt_hpc.inference.vllm_scheduler.HoldingScheduler"
            if settings.kv_cache_gib is not None:
                options["kv-cache-memory-bytes"] = int(settings.kv_cache_gib * 2**30)
        if block_size := settings.block_size or (32 if on_cpu() else None):
            options["block-size"] = block_size
        flags = ["--enable-prefix-caching", "--disable-uvicorn-access-log", *(_CPU_FLAGS if on_cpu() else [])]
        if settings.sleeps and not on_cpu():
            flags.append("--enable-sleep-mode")
        return [
            *(text for name, value in options.items() for text in (f"--{name}", str(value))),
            *flags,
            *settings.extra_args,
        ]


def _across_nodes(settings: ServerSettings) -> dict[str, object]:
    """The arguments of a server whose GPUs are on several nodes.

    Raises:
        UserError: there are no GPUs. vLLM 0.32 asks Ray for a resource that its CPU platform does not name
            (``ray_device_key``), and ends.
    """
    if not settings.over_ray:
        return {}
    if on_cpu():
        raise UserError(
            "vLLM cannot divide a model over the nodes of a task without GPUs",
            where="resources.inference.gpus",
            expected="GPUs; without them the server computes on the first node, and all nodes grade",
            advice="set resources.inference.gpus to the GPUs of a node, or to 0; then the same submit command",
        )
    return {"distributed-executor-backend": "ray", "pipeline-parallel-size": settings.stages}


def refuse_stranger(path: Path, pid: int) -> None:
    """Check that the process that listens on a socket is the one that was started.

    Raises:
        UserError: another process listens, or none.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONTROL_TIMEOUT_S)
            connection.connect(str(path))
            size = struct.calcsize("3i")
            listener, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except OSError as error:
        what = f"no process listens on the server's socket: {error}"
        raise UserError(what, where=path, exit_code=ExitCode.RETRYABLE) from error
    if listener != pid:
        raise UserError(
            "another process listens on the server's socket",
            value=f"process {listener}",
            where=path,
            expected=f"process {pid}",
            exit_code=ExitCode.RETRYABLE,
        )


def _private_directory() -> Path:
    """Create a directory that only this user may enter, on this node, with a path short enough for a socket."""
    parent = tempfile.gettempdir()
    if len(parent) > LONGEST_SOCKET_FOLDER:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="mrt-hpc-", dir=parent))


def _wait_at_most(seconds: float, condition: Callable[[], bool]) -> None:
    with contextlib.suppress(UserError):
        wait_until(condition, reason="a process to end", deadline_s=seconds, longest_pause_s=_LOOK_EVERY_S)


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _group_is_empty(leader: int) -> bool:
    """Return whether all processes of a server have ended; the kernel ends them one after the other."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    return False
