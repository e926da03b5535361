"""The start of a vLLM server: its settings, its command line and environment, and its process."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.compiled_code import KEPT, CompiledCode
from mrt_hpc.inference.protocol import FIRST_VERSION_VARIABLE, MOST_LOGPROBS, SERVED_VARIABLE, ServedSettings
from mrt_hpc.inference.server_control import CONTROL_TIMEOUT_S, READ_LOG, Address
from mrt_hpc.inference.server_main import DIRECTORY_VARIABLE, LONGEST_SOCKET_FOLDER, OWNER_VARIABLE, folder_variables
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.access import ON_LOOPBACK
from mrt_hpc.run.atomic import make_folder
from mrt_hpc.run.process import import_path, loading
from mrt_hpc.run.retries import wait_until

_EAGER = "--enforce-eager"
_CPU_FLAGS = (_EAGER, "--no-enable-chunked-prefill")
"""Compilation gains nothing on CPU; a prompt prefilled in parts kills the engine there if its request has a seed
(vLLM 0.32 rewinds the offset of the request's generator, and a CPU generator has none)."""

_WITHOUT_FLASHINFER = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ALLREDUCE_USE_FLASHINFER": "0"}
"""vLLM uses FlashInfer where it happens to find nvcc and ninja, as after ``module load cuda``. FlashInfer then compiles
kernels for minutes at the start of the server, and its sums differ from those of a node without nvcc. It is off
everywhere, together with the options of :func:`_without_flashinfer`.
"""
_NOTHING_COMPILED = "TORCHDYNAMO_DISABLE"
SOCKET = "vllm.sock"
"""The Unix socket in its directory at which a server listens, unless its settings name another address."""
_MODEL = "model"
"""The link to the weights that a server on one node starts with, in the folder in which it begins. vLLM's key for
compiled code holds the model's path, which is thereby the same for all weights versions, runs and jobs.
"""
SPINS = "3000"
"""How often a thread looks whether the others are done before it sleeps: some microseconds. Where another process needs
a core, threads that look for longer keep it from the thread that they wait for. 100 times as often takes 10 times as
long beside one busy process, and a third more processor time on a quiet machine.
"""
_DECIDE_NO_CODE = ("model", "uds", "host", "port", "seed")
_OF_ONE_SERVER = ("VLLM_API_KEY", "VLLM_RPC_BASE_PATH", "VLLM_CACHE_ROOT", "VLLM_HOST_IP")


@cache
def on_cpu() -> bool:
    """Return whether vLLM will run without an accelerator on this machine. A build of torch for CPUs has that in its
    version, and is not imported for it: that would take each start of a task a second.
    """
    with contextlib.suppress(PackageNotFoundError):
        if version("torch").endswith("+cpu"):
            return True
    with loading():
        import torch

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
        "GOMP_SPINCOUNT": SPINS,
        _NOTHING_COMPILED: "1",  # otherwise the first sample needs a C++ compiler, which a node may lack
    }
    if binding == "nobind":
        # vLLM reads this in every process. The server has its engine in another process all the same; with more than
        # one rank the ranks have processes of their own, too.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return environment


SEEDS = 2**32
"""The number of seeds for a server: vLLM passes its own to numpy, which takes 32 bits."""


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
    compiled_code: Path | None = None
    """The folder on the shared filesystem that keeps what it compiles; None to keep it on the node alone."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of vLLM's API server."""

    @staticmethod
    def of(recipe: Experiment, width: int, cores: float, share: float = 1.0, **others: Any) -> "ServerSettings":
        """What a recipe asks of a server.

        Args:
            recipe: the recipe.
            width: the number of GPUs, or on CPU of processes, that each layer is divided over.
            cores: those of the node that the server may use.
            share: of memory and cores that the server may use, where several work side by side.
            others: further settings.
        """
        serving = recipe.serving
        return ServerSettings(
            max_num_seqs=serving.max_concurrent_sequences,
            tensor_parallel=width,
            gpu_memory_utilization=serving.gpu_memory_utilization * share,
            kv_cache_gib=serving.kv_cache_gib * share / width,
            cpu_threads=max(1, round(cores * share / width)),
            seed=recipe.seed % SEEDS,
            start_deadline_s=serving.start_limit_s,
            extra_args=("--enforce-eager",) if serving.enforce_eager else (),
            **others,
        )


@dataclass(frozen=True)
class ServerCommand:
    """How one start of a server is asked for."""

    settings: ServerSettings
    model_dir: Path
    """The directory of the weights that it starts with."""
    weights_version: int
    """The version of these weights."""
    directory: Path
    """The private directory of its sockets and temporary files."""
    key: str = field(repr=False)
    """The key that every request needs."""

    def words(self) -> list[str]:
        """Return the arguments of vLLM's API server.

        Raises:
            UserError: the server would span nodes without GPUs.
        """
        options = [text for name, value in self._options().items() for text in (f"--{name}", str(value))]
        return [*options, *self._flags]

    def environment(self) -> dict[str, str]:
        """Return the environment: that of this process, what makes the server private, offline and owned, and where it
        keeps what it compiles.
        """
        return self._environment | (self.compiled_code.environment() if self.compiled_code else {})

    def link_weights(self) -> None:
        """Make the link to the weights in the directory, where the server begins. A server on several nodes has none,
        because the link would be on this node alone; it begins where this process is.
        """
        if not self.settings.over_ray:
            (link := self.directory / _MODEL).unlink(missing_ok=True)
            link.symlink_to(self.model_dir.absolute())

    @cached_property
    def compiled_code(self) -> CompiledCode | None:
        """What the server compiles, where that is kept; None where it compiles nothing, or on several nodes."""
        folder, config = self.settings.compiled_code, self.model_dir / "config.json"
        if folder is None or self.settings.over_ray or not self._compiles or not config.is_file():
            return None
        settings = {name: str(value) for name, value in self._options().items() if name not in _DECIDE_NO_CODE}
        variables = {name: text for name, text in self._environment.items() if name.startswith("VLLM_")}
        decided_by = {
            "model": config.read_text(errors="replace"),
            "settings": [settings, *self._flags],
            "variables": {name: text for name, text in variables.items() if name not in _OF_ONE_SERVER},
        }
        return CompiledCode.of(folder, decided_by)

    @property
    def _flags(self) -> list[str]:
        return [*_flags(self.settings), *self.settings.extra_args]

    @property
    def _compiles(self) -> bool:
        """Whether vLLM compiles the model: its last word on that counts."""
        return [word for word in self._flags if word in (_EAGER, "--no-enforce-eager")][-1:] != [_EAGER]

    @property
    def _environment(self) -> dict[str, str]:
        """The variables, none of which depends on :attr:`compiled_code`."""
        # The settings that an attached task asks for.
        served = ServedSettings(self.settings.dtype, self._draws_by_request)
        environment = {
            **os.environ,
            **import_path(),
            OWNER_VARIABLE: str(os.getpid()),
            DIRECTORY_VARIABLE: str(self.directory),
            FIRST_VERSION_VARIABLE: str(self.weights_version),
            SERVED_VARIABLE: msgspec.json.encode(served).decode(),
            "VLLM_API_KEY": self.key,
            "VLLM_SERVER_DEV_MODE": "1",  # enables the control routes
            **folder_variables(self.directory),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # `server_main` relies on it
            "HF_HUB_OFFLINE": "1",
            "NCCL_RAS_ENABLE": "0",  # it would answer questions about the server at a port of its own
            **_WITHOUT_FLASHINFER,
            **({} if self.settings.over_ray else ON_LOOPBACK),
        }
        if self.settings.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.settings.gpus)
        if self._draws_by_request:
            environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        if on_cpu():
            environment |= cpu_environment(self.settings.cpu_threads)
            if self._compiles:
                del environment[_NOTHING_COMPILED]
        return environment

    @property
    def _draws_by_request(self) -> bool:
        """Whether the noise of a sample follows from its seed from its first token on; on CPU it always does."""
        return self.settings.noise_by_request or on_cpu()

    @property
    def _place(self) -> dict[str, object]:
        """The arguments for the address to listen at."""
        if self.settings.listen is None:
            return {"uds": self.directory / SOCKET}
        place = urlsplit(self.settings.listen.url)
        return {"host": place.hostname, "port": place.port}

    def _options(self) -> dict[str, object]:
        settings = self.settings
        return {
            "model": self.model_dir if settings.over_ray else _MODEL,
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
            **(_without_gpu(settings) if on_cpu() else _without_flashinfer()),
            **_block_size(settings),
        }


def _without_gpu(settings: ServerSettings) -> dict[str, object]:
    """The arguments of a server on CPU alone."""
    cache = settings.kv_cache_gib
    return {
        "worker-cls": "mrt_hpc.inference.vllm_on_cpu.CountingWorker",
        "scheduler-cls": "mrt_hpc.inference.vllm_on_cpu.HoldingScheduler",
        **({} if cache is None else {"kv-cache-memory-bytes": int(cache * 2**30)}),
    }


def _without_flashinfer() -> dict[str, object]:
    """The arguments of a server on GPUs by which vLLM neither tunes FlashInfer's kernels nor adds one to the model."""
    return {
        "kernel-config.enable_flashinfer_autotune": False,
        "compilation-config.pass_config.fuse_allreduce_rms": False,
    }


def _block_size(settings: ServerSettings) -> dict[str, object]:
    """The argument for the tokens of a block of the prefix cache, unless it is vLLM's default."""
    size = settings.block_size or (32 if on_cpu() else None)
    return {"block-size": size} if size else {}


def _flags(settings: ServerSettings) -> list[str]:
    """The arguments without a value."""
    flags = ["--enable-prefix-caching", "--disable-uvicorn-access-log", *(_CPU_FLAGS if on_cpu() else [])]
    if settings.sleeps and not on_cpu():
        flags.append("--enable-sleep-mode")
    return flags


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
            value=f"{settings.stages} nodes",
            where="resources.inference.gpus",
            expected="GPUs; without them the server computes on the first node, and all nodes grade",
            advice="set resources.inference.gpus to the GPUs of a node, or to 0; then mrt-hpc submit RUN",
        )
    return {"distributed-executor-backend": "ray", "pipeline-parallel-size": settings.stages}


# The process of a vLLM server, with its children: its beginning, its end, and the socket at which it listens.


STOP_DEADLINE_S = 2.0
"""The time in which a server has to end on request, before its processes are killed. It has nothing to save, and would
wait for its clients; its owner may have little time to end.
"""
KILLED_DEADLINE_S = 20.0
"""The time in which the kernel has to end killed processes; it frees their memory first."""
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class ServerProcess:
    """A process that is the first of a process group of its own, which holds all its children."""

    process: subprocess.Popen[bytes]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables with which it began."""

    @classmethod
    def begun(cls, command: ServerCommand, log: Path) -> Self:
        """Begin a process that loads vLLM, and then waits for :meth:`serve`.

        Args:
            command: gives the environment; model and longest sequence may not be known yet.
            log: the file for its standard output and error, to which it appends.
        """
        environment = command.environment()
        make_folder(log.parent)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "mrt_hpc.inference.server_main"],
                env=environment,
                cwd=None if command.settings.over_ray else command.directory,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(process, environment)

    @classmethod
    def begun_early(cls, settings: ServerSettings, key: str, log: Path) -> Self:
        """Begin one while the weights and the longest sequence of its server are not known yet.

        Args:
            settings: of the server; model and longest sequence are not used.
            key: of the server.
            log: see :meth:`begun`.
        """
        known, directory = replace(settings, compiled_code=None), private_directory()
        try:
            return cls.begun(ServerCommand(known, known.model_dir, 0, directory, key), log)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    @property
    def directory(self) -> Path:
        """The private directory of its sockets."""
        return Path(self.environment[DIRECTORY_VARIABLE])

    def unfit_for(self, command: ServerCommand) -> str:
        """Why it cannot serve a command: it has ended, or began with another value of a variable that is read when vLLM
        is loaded. Empty text if it can.
        """
        if self.status is not None:
            return f"it ended with status {self.status}"
        changed = {name for name, _ in command.environment().items() ^ self.environment.items()}
        return ", ".join(sorted(changed - {FIRST_VERSION_VARIABLE, *KEPT}))

    def serve(self, command: ServerCommand) -> None:
        """Give it the arguments of vLLM's API server, and the variables that have changed.

        Raises:
            UserError: see :meth:`ServerCommand.words`.
        """
        changed = dict(command.environment().items() - self.environment.items())
        order = json.dumps([command.words(), changed]).encode()
        if (pipe := self.process.stdin) is not None:
            with contextlib.suppress(BrokenPipeError, ValueError), pipe:  # it has ended, which its owner notices
                pipe.write(order + b"\n")

    def give_up(self) -> None:
        """End it, and remove its directory: no server has taken it."""
        self.end(patience_s=0.0)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def status(self) -> int | None:
        """The status with which it ended; None while it runs."""
        return self.process.poll()

    def end(self, patience_s: float = STOP_DEADLINE_S) -> None:
        """Send SIGTERM, then SIGKILL, and wait until the memory of its children is free again.

        Args:
            patience_s: the seconds between the two signals in which it may end by itself.
        """
        process = self.process
        if process.poll() is None:
            process.terminate()
            _wait_at_most(patience_s, lambda: _has_ended(process.pid))
            os.killpg(process.pid, signal.SIGKILL)  # the process is not reaped yet, so no other process has this id
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        _wait_at_most(KILLED_DEADLINE_S, lambda: _group_is_empty(process.pid))


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
        raise UserError(
            f"no process listens on the server's socket: {error}",
            where=path,
            advice=READ_LOG,
            exit_code=ExitCode.RETRYABLE,
        ) from error
    if listener != pid:
        raise UserError(
            "another process listens on the server's socket",
            value=f"process {listener}",
            where=path,
            expected=f"process {pid}",
            advice=f"ps -fp {listener} shows that process; mrt-hpc submit RUN starts the server again, at "
            "another socket",
            exit_code=ExitCode.RETRYABLE,
        )


def private_directory() -> Path:
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
