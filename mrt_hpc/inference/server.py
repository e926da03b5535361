"""A vLLM server as a child process: started, watched, given new weights in place, and restarted when it dies.

It listens on a Unix socket in a private directory: it needs no free port, and no other user of the node reaches its
routes. Every request also needs the run's key.
"""

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from mrt_hpc.errors import Advice, retryable_error
from mrt_hpc.inference import server_start
from mrt_hpc.inference.server_control import ServerControl, refuse_no_weights
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.run.retries import wait_until

log = logging.getLogger(__name__)

RECOVERY_DEADLINE_S = 60.0
"""A server that runs but does not answer counts as dead after this time."""
_LOOK_EVERY_S = 0.2
READ_LOG = "read the end of that log; mrt-hpc submit RUN starts the server again"
_LOG_TAIL_BYTES, _CAUSE_BYTES = 4000, 64_000
"""An error shows the first; a known cause, which stands above the last traceback, is searched in the second."""
_OR_IMAGE = "or use an image of `mrt-hpc container build`"
NODE_LACKS = {
    "Failed to find C compiler": f"load a compiler in setup of the site profile (`module load gcc`), {_OR_IMAGE}",
    "Python.h: No such file": f"name a Python with headers as python in the site profile, {_OR_IMAGE}",
    "failed to map segment from shared object": "set scratch in the site profile to a folder not mounted noexec",
}
"""Advice by what a log says where a server cannot make or load compiled code; doctor --on-node tries each."""


@dataclass
class VllmServer:
    """A context manager. Several threads may call `restart_if_dead` at once."""

    settings: server_start.ServerSettings
    log: Path
    """Every start appends its output."""
    weights_version: int = 0
    """The version of ``settings.model_dir``; afterwards the one loaded last."""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    while_starting: Callable[[], None] | None = field(default=None, repr=False)
    """Called repeatedly during the first start; raises when the server is no longer needed."""
    begun: server_start.ServerProcess | None = field(default=None, repr=False)
    """A process that loads vLLM already, for the first start."""
    starts: int = 0
    is_loading: bool = field(default=False, init=False)
    """It loads weights, and then samples nothing."""
    _restarting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _model_dir: Path = field(init=False, repr=False)
    _closed: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _process: server_start.ServerProcess | None = field(default=None, init=False, repr=False)
    _directory: Path = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._model_dir = self.settings.model_dir
        self._directory = server_start.private_directory() if self.begun is None else self.begun.directory

    @property
    def socket(self) -> Path:
        """It stays the same after a restart."""
        return self._directory / server_start.SOCKET

    @property
    def command(self) -> server_start.ServerCommand:
        return server_start.ServerCommand(
            self.settings, self._model_dir, self.weights_version, self._directory, self.key
        )

    @property
    def control(self) -> ServerControl:
        return ServerControl(self.socket, self.key, self.log, READ_LOG)

    @property
    def each(self) -> "tuple[VllmServer]":
        """As of a :class:`~mrt_hpc.inference.server_pool.ServerPool`."""
        return (self,)

    @property
    def pid(self) -> int | None:
        """The API server's process; None while none runs."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        try:
            self.start(self.while_starting)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, check: Callable[[], None] | None = None) -> None:
        """Wait until the server answers. ``check`` is called repeatedly and may raise to stop the wait. Errors hold the
        end of the log.
        """

        def look() -> None:
            self._raise_if_closed()
            self._raise_if_dead()
            if check is not None:
                check()

        self._raise_if_closed()
        self.socket.unlink(missing_ok=True)
        command = self.command
        with command.compiled_code.surround_start(self._has_ended) if command.compiled_code else nullcontext():
            command.link_weights()
            self._process = process = self._taken_or_begun(command)
            if self._closed.is_set():  # by another thread meanwhile
                self._end_process(patience_s=0.0)
                self._raise_if_closed()
            process.serve(command)
            self.starts += 1
            wait_until(
                self.healthy,
                reason="the vLLM server",
                deadline_s=self.settings.start_deadline_s,
                check=look,
                where=self.log,
                advice="read the end of that log; where the server only needs more time: "
                "--set serving.start_limit_s=SECONDS",
                longest_pause_s=_LOOK_EVERY_S,
            )
        server_start.refuse_stranger(self.socket, self._process.pid)

    def healthy(self) -> bool:
        return self.control.status() == httpx.codes.OK

    def restart_if_dead(self) -> bool:
        """Restart the server with the weights loaded last if it died or does not answer; return whether it did.
        Concurrent callers wait for the first.
        """
        with self._restarting:
            if self._recovers():
                return False
            self._end_process()
            self.start()
            return True

    def restart(self) -> None:
        with self._restarting:
            self._end_process(patience_s=0.0)
            self.start()

    def load_weights(self, directory: Path, version: int, swap: WeightSwap = WeightSwap.DRAIN) -> dict[str, Any]:
        """Load new weights into the running model; see :meth:`ServerControl.load`. Restarts wait for the end.

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
            deadlines = settings.pause_deadline_s, settings.start_deadline_s  # it reads a whole model, as at its start
            report = self.control.load(directory, version, *deadlines, swap=swap)
        except BaseException:
            self._end_process()  # no sample may come from a partly loaded model
            raise
        self._model_dir, self.weights_version = directory, version
        return report

    def sleep(self) -> None:
        """Free its GPUs' memory: weights go to the node's memory, and the key-value cache is dropped. On CPU it does
        nothing.
        """
        if self.settings.sleeps and not server_start.is_on_cpu():
            self.control.sleep(self.settings.pause_deadline_s)

    def wake_up(self) -> None:
        """Take the memory back, with the weights as they were."""
        if self.settings.sleeps and not server_start.is_on_cpu():
            self.control.wake_up(self.settings.pause_deadline_s)

    def close(self) -> None:
        """End the process and all its children; afterwards no thread restarts it."""
        self._closed.set()
        begun, self.begun = self.begun, None
        if begun is not None:
            begun.end(patience_s=0.0)
        self._end_process()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _taken_or_begun(self, command: server_start.ServerCommand) -> server_start.ServerProcess:
        """The process that loads vLLM already, where it can serve the command."""
        process, self.begun = self.begun, None
        if process is not None and (reason := process.unfit_for(command)):
            log.warning("the process that has loaded vLLM early is not used (%s): %s", self.log, reason)
            process.end(patience_s=0.0)
            process = None
        return process or server_start.ServerProcess.begin_process(command, self.log)

    def _recovers(self) -> bool:
        """Wait for an answer, as the server may only be busy."""
        end = time.monotonic() + RECOVERY_DEADLINE_S
        while self._is_running() and not self._closed.is_set() and time.monotonic() < end:
            if (status := self.control.status()) is not None:
                return status == httpx.codes.OK
            time.sleep(_LOOK_EVERY_S)
        return False

    def _is_running(self) -> bool:
        return self._process is not None and self._process.status is None

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.status is not None

    def _raise_if_closed(self) -> None:
        if self._closed.is_set():
            raise retryable_error(
                "the vLLM server was closed",
                where=self.log,
                advice="nothing where the task was asked to end; mrt-hpc submit RUN starts the server again",
            )

    def _raise_if_dead(self) -> None:
        if not self._is_running():
            code = self._process.status if self._process else None
            said = self._log_tail(_CAUSE_BYTES)
            lacks = next((f"{what}; " for cause, what in NODE_LACKS.items() if cause in said), "")
            raise retryable_error(
                f"the vLLM server ended with status {code} before it answered:\n{self._log_tail(_LOG_TAIL_BYTES)}",
                value=f"model {self._model_dir}",
                where=self.log,
                advice=Advice("{lacks}{read_log}", lacks=Advice(lacks), read_log=Advice(READ_LOG)),
            )

    def _log_tail(self, size: int) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - size))
            return log.read().decode(errors="replace")

    def _end_process(self, patience_s: float = server_start.STOP_DEADLINE_S) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(patience_s)
