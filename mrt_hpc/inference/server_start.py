"""The start of a vLLM server: settings, command line, environment and process."""

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

from mrt_hpc.errors import Advice, UserError, retryable_error
from mrt_hpc.inference.compiled_code import KEPT, CompiledCode
from mrt_hpc.inference.protocol import FIRST_VERSION_VARIABLE, MOST_LOGPROBS
from mrt_hpc.inference.server_control import CONTROL_TIMEOUT_S, READ_LOG
from mrt_hpc.inference.server_main import DIRECTORY_VARIABLE, LONGEST_SOCKET_FOLDER, OWNER_VARIABLE, folder_variables
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.run.atomic import make_folder
from mrt_hpc.run.network import ON_LOOPBACK
from mrt_hpc.run.process import import_path, pause_collector
from mrt_hpc.run.retries import wait_until

_EAGER = "--enforce-eager"
_CPU_FLAGS = (_EAGER, "--no-enable-chunked-prefill")
"""Compilation gains nothing on CPU. A prompt that is prefilled in parts kills the engine there if its request has a
seed: vLLM 0.32 rewinds the generator's offset, which a CPU generator lacks.
"""

_WITHOUT_FLASHINFER = {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_ALLREDUCE_USE_FLASHINFER": "0"}
"""vLLM uses FlashInfer where it finds nvcc and ninja, as after ``module load cuda``: kernels then compile for minutes,
and sums differ from those of other nodes.
"""
_NO_FLASHINFER_KERNELS: dict[str, object] = {
    "kernel-config.enable_flashinfer_autotune": False, "compilation-config.pass_config.fuse_allreduce_rms": False,
}  # fmt: skip
"""Arguments by which vLLM neither tunes FlashInfer's kernels nor adds one to the model."""
_NOTHING_COMPILED = "TORCHDYNAMO_DISABLE"
SOCKET = "vllm.sock"
_MODEL = "model"
"""The link to the first weights. vLLM's key for compiled code holds the model's path, which the link makes the same for
all versions, runs and jobs.
"""
SPINS = "3000"
"""Looks for other threads before one sleeps: some microseconds. Longer looks take the core that another process needs:
100 times as many take 10 times as long beside one busy process.
"""
_DECIDE_NO_CODE = ("model", "uds", "seed")
_OF_ONE_SERVER = ("VLLM_API_KEY", "VLLM_RPC_BASE_PATH", "VLLM_CACHE_ROOT", "VLLM_HOST_IP")


@cache
def is_on_cpu() -> bool:
    """The version of torch tells: importing it would take each task a second."""
    with contextlib.suppress(PackageNotFoundError):
        if version("torch").endswith("+cpu"):
            return True
    with pause_collector():
        import torch

    return not torch.cuda.is_available()


def cpu_environment(threads: int | None) -> dict[str, str]:
    """The variables for vLLM without an accelerator, on this number of threads (None: all cores).

    Threads are not bound to cores: bound ones wait for each other, and for other processes on their cores. They compute
    in the engine's process. OpenMP would let a waiting thread sleep at once, because there are more threads than cores.
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
"""vLLM passes a server's seed to numpy, which takes 32 bits."""


@dataclass(frozen=True)
class ServerSettings:
    model_dir: Path
    max_model_len: int
    dtype: str = "auto"
    """``auto`` follows the configuration, but fp32 becomes bf16."""
    max_num_seqs: int = 256
    tensor_parallel: int = 1
    """The number of GPUs (on CPU, of processes) that each layer is divided over."""
    stages: int = 1
    """The number of consecutive parts of the layers, each on ``tensor_parallel`` GPUs."""
    over_ray: bool = False
    """Whether its GPUs are those of the Ray cluster that this process has joined."""
    gpus: tuple[str, ...] = ()
    """As CUDA names them; empty for those that this process may see."""
    gpu_memory_utilization: float = 0.9
    kv_cache_gib: float | None = None
    """The cache's size on CPU; on GPU it follows from ``gpu_memory_utilization``."""
    block_size: int | None = None
    """Tokens per block of the prefix cache. None is vLLM's default, or 32 on CPU, where the default of 128 misses most
    prefixes.
    """
    cpu_threads: int | None = None
    """Cores for each of its processes, on CPU; None for all that this process may use."""
    seed: int = 0
    start_deadline_s: float = 900.0
    """Large models may come from a busy shared filesystem."""
    pause_deadline_s: float = 300.0
    sleeps: bool = False
    """Whether it can free its GPUs' memory for a while; vLLM then allocates that memory in another way."""
    noise_by_request: bool = False
    """Whether a sample draws from its seed by the number of its tokens. vLLM's newer GPU runner draws by absolute
    position.
    """
    compiled_code: Path | None = None
    """The shared folder that keeps compiled code; None keeps it on the node alone."""
    extra_args: tuple[str, ...] = ()

    @staticmethod
    def of(recipe: Experiment, width: int, cores: float, share: float = 1.0, **others: Any) -> "ServerSettings":
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
    settings: ServerSettings
    model_dir: Path
    weights_version: int
    directory: Path
    """A private place for sockets and temporary files."""
    key: str = field(repr=False)

    def words(self) -> list[str]:
        options = [text for name, value in self._options().items() for text in (f"--{name}", str(value))]
        return [*options, *self._flags]

    def environment(self) -> dict[str, str]:
        """The variables that make the server private, offline and owned, and say where compiled code is kept."""
        return self._environment | (self.compiled_code.environment() if self.compiled_code else {})

    def link_weights(self) -> None:
        """A server on several nodes has no link, which would be on this node alone."""
        if not self.settings.over_ray:
            (link := self.directory / _MODEL).unlink(missing_ok=True)
            link.symlink_to(self.model_dir.absolute())

    @cached_property
    def compiled_code(self) -> CompiledCode | None:
        """A server that spans several nodes, or compiles nothing, has none."""
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
        of_place = _CPU_FLAGS if is_on_cpu() else ("--enable-sleep-mode",) if self.settings.sleeps else ()
        return ["--enable-prefix-caching", "--disable-uvicorn-access-log", *of_place, *self.settings.extra_args]

    @property
    def _compiles(self) -> bool:
        """Whether vLLM compiles the model: its last argument on that counts."""
        return [word for word in self._flags if word in (_EAGER, "--no-enforce-eager")][-1:] != [_EAGER]

    @property
    def _environment(self) -> dict[str, str]:
        """It is independent of :attr:`compiled_code`."""
        environment = {
            **os.environ,
            **import_path(),
            OWNER_VARIABLE: str(os.getpid()),
            DIRECTORY_VARIABLE: str(self.directory),
            FIRST_VERSION_VARIABLE: str(self.weights_version),
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
        if self.settings.noise_by_request or is_on_cpu():
            environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        if is_on_cpu():
            environment |= cpu_environment(self.settings.cpu_threads)
            if self._compiles:
                del environment[_NOTHING_COMPILED]
        return environment

    def _options(self) -> dict[str, object]:
        settings = self.settings
        size = settings.block_size or (32 if is_on_cpu() else None)
        return {
            "model": self.model_dir if settings.over_ray else _MODEL,
            "uds": self.directory / SOCKET,
            "dtype": settings.dtype,
            "max-model-len": settings.max_model_len,
            "max-num-seqs": settings.max_num_seqs,
            "tensor-parallel-size": settings.tensor_parallel,
            **_ray_arguments(settings),
            "gpu-memory-utilization": settings.gpu_memory_utilization,
            "seed": settings.seed,
            "max-logprobs": MOST_LOGPROBS,
            "logprobs-mode": "processed_logprobs",  # those of the distribution sampled from, temperature applied
            "generation-config": "vllm",  # a model's generation_config.json must not change the sampling
            "worker-extension-cls": "mrt_hpc.inference.vllm_extension.ReloadExtension",
            "middleware": "mrt_hpc.inference.vllm_middleware.RunRoutes",
            "uvicorn-log-level": "warning",
            **(_on_cpu(settings) if is_on_cpu() else _NO_FLASHINFER_KERNELS),
            **({"block-size": size} if size else {}),
        }


def _on_cpu(settings: ServerSettings) -> dict[str, object]:
    cache = settings.kv_cache_gib
    return {
        "worker-cls": "mrt_hpc.inference.seeded_noise.CountingWorker",
        "scheduler-cls": "mrt_hpc.inference.vllm_on_cpu.HoldingScheduler",
        **({} if cache is None else {"kv-cache-memory-bytes": int(cache * 2**30)}),
    }


def _ray_arguments(settings: ServerSettings) -> dict[str, object]:
    """vLLM 0.32 asks Ray for a resource that its CPU platform does not name (``ray_device_key``), and ends."""
    if not settings.over_ray:
        return {}
    if is_on_cpu():
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
"""A server has nothing to save, and would wait for its clients; its owner may have little time."""
KILLED_DEADLINE_S = 20.0
"""The kernel first frees the memory of killed processes."""
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class ServerProcess:
    """The leader of a process group that holds all its children."""

    process: subprocess.Popen[bytes]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def begin_process(cls, command: ServerCommand, log: Path) -> Self:
        """Begin a process that loads vLLM, and then waits for :meth:`serve`. Model and longest sequence of the command
        may not be known yet.
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
    def begin_early(cls, settings: ServerSettings, key: str, log: Path) -> Self:
        """Begin before the weights and the longest sequence are known."""
        known, directory = replace(settings, compiled_code=None), private_directory()
        try:
            return cls.begin_process(ServerCommand(known, known.model_dir, 0, directory, key), log)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    @property
    def directory(self) -> Path:
        return Path(self.environment[DIRECTORY_VARIABLE])

    def unfit_for(self, command: ServerCommand) -> str:
        """Why it cannot serve a command: it has ended, or began with other variables that loading vLLM reads."""
        if self.status is not None:
            return f"it ended with status {self.status}"
        changed = {name for name, _ in command.environment().items() ^ self.environment.items()}
        return ", ".join(sorted(changed - {FIRST_VERSION_VARIABLE, *KEPT}))

    def serve(self, command: ServerCommand) -> None:
        changed = dict(command.environment().items() - self.environment.items())
        order = json.dumps([command.words(), changed]).encode()
        if (pipe := self.process.stdin) is not None:
            with contextlib.suppress(BrokenPipeError, ValueError), pipe:  # it has ended, which its owner notices
                pipe.write(order + b"\n")

    def give_up(self) -> None:
        """End it and remove its directory, if no server has taken it."""
        self.end(patience_s=0.0)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> int | None:
        return self.process.poll()

    def end(self, patience_s: float = STOP_DEADLINE_S) -> None:
        """Send SIGTERM, ``patience_s`` later SIGKILL, and wait until its children's memory is free."""
        process = self.process
        if process.poll() is None:
            process.terminate()
            # without reaping it
            no_reap = os.WEXITED | os.WNOHANG | os.WNOWAIT
            _wait_at_most(patience_s, lambda: os.waitid(os.P_PID, process.pid, no_reap) is not None)
            os.killpg(process.pid, signal.SIGKILL)  # the process is not reaped yet, so no other process has this id
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        _wait_at_most(KILLED_DEADLINE_S, lambda: _group_is_empty(process.pid))


def refuse_stranger(path: Path, pid: int) -> None:
    """Check that the process that listens on a socket is the one that was started."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONTROL_TIMEOUT_S)
            connection.connect(str(path))
            size = struct.calcsize("3i")
            listener, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except OSError as error:
        raise retryable_error(
            f"no process listens on the server's socket: {error}", where=path, advice=READ_LOG
        ) from error
    if listener != pid:
        raise retryable_error(
            "another process listens on the server's socket",
            value=f"process {listener}",
            where=path,
            expected=f"process {pid}",
            advice=Advice(
                "ps -fp {listener} shows that process; mrt-hpc submit RUN starts the server again, at another socket",
                listener=listener,
            ),
        )


def private_directory() -> Path:
    """A directory of this user alone, with a path short enough for a socket."""
    parent = tempfile.gettempdir()
    parent = parent if len(parent) <= LONGEST_SOCKET_FOLDER else "/tmp"
    return Path(tempfile.mkdtemp(prefix="mrt-hpc-", dir=parent))


def _wait_at_most(seconds: float, condition: Callable[[], bool]) -> None:
    with contextlib.suppress(UserError):
        wait_until(condition, reason="a process to end", deadline_s=seconds, longest_pause_s=_LOOK_EVERY_S)


def _group_is_empty(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    return False
