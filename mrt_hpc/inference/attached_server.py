"""Use of a vLLM server that already runs: a task samples through it, loads weights into it, and leaves it running.

Such a server is started by the user, with `mrt-hpc serve`. It must see the run's files under the same paths, and no
other task may use it at the same time, as it holds one weights version at a time.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.server_control import ServerControl, refuse_no_weights
from mrt_hpc.recipe.sections import WeightSwap
from mrt_hpc.run.retries import wait_until

log = logging.getLogger(__name__)

AGAIN = "start it again (mrt-hpc serve RECIPE), then mrt-hpc submit RUN"
"""The command to type where an attached server has failed."""


@dataclass
class AttachedServer:
    """A running vLLM server, used as a context manager: it holds the wanted weights before the block begins."""

    control: ServerControl
    model_dir: Path
    """The directory of the weights that the server has to hold first."""
    weights_version: int
    max_model_len: int
    """The number of tokens of the longest sequence that the task needs."""
    dtype: str
    """The number format that the recipe asks for."""
    common_seeds: bool
    """Whether samples of equal seeds must have the same random numbers."""
    read_deadline_s: float
    """The seconds in which the server has to answer for the first time, and to read a model."""
    pause_deadline_s: float
    """The seconds in which the server has to finish the running samples when new weights are loaded."""
    while_starting: Callable[[], None] | None = field(default=None, repr=False)
    """A function called repeatedly until the server answers; it raises an error to stop the wait."""
    is_loading: bool = field(default=False, init=False)
    """Whether this task is loading weights into it."""

    @property
    def each(self) -> "tuple[AttachedServer]":
        """This server alone."""
        return (self,)

    @property
    def pid(self) -> None:
        """None: the server's process is not this task's, and may run on another node."""

    def __enter__(self) -> Self:
        wait_until(
            lambda: self.control.status() == httpx.codes.OK,
            reason=f"the vLLM server at {self.control.address.text}",
            deadline_s=self.read_deadline_s,
            check=self.while_starting or (lambda: None),
            where="serving.attach",
            advice=AGAIN,
        )
        self._refuse_too_short()
        self._refuse_other_settings()
        self.load_weights(self.model_dir, self.weights_version)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the server running."""

    def close(self) -> None:
        """Do nothing: the server continues to run."""

    def load_weights(self, directory: Path, version: int, swap: WeightSwap = WeightSwap.DRAIN) -> dict[str, Any]:
        """Load weights into the running model; see :meth:`ServerControl.load`.

        Raises:
            UserError: the directory holds no weights, or the server refused or stopped during the reload.
        """
        refuse_no_weights(directory)
        self.is_loading = True
        try:
            report = self.control.load(
                directory,
                version,
                swap=swap,
                pause_deadline_s=self.pause_deadline_s,
                read_deadline_s=self.read_deadline_s,
            )
        finally:
            self.is_loading = False
        self.model_dir, self.weights_version = directory, version
        return report

    def sleep(self) -> None:
        """Do nothing: the memory of its GPUs is not this task's."""

    def wake_up(self) -> None:
        """Do nothing."""

    def restart_if_dead(self) -> bool:
        """Return False where the server answers; a task cannot restart one that it has not started.

        Raises:
            UserError: the server does not answer.
        """
        if self.control.status() != httpx.codes.OK:
            raise self._refused("does not answer", exit_code=ExitCode.RETRYABLE)
        return False

    def restart(self) -> None:
        """Raise an error, as a task cannot end a server that it has not started.

        Raises:
            UserError: always.
        """
        what = "made no progress for serving.stall_limit_s while it had requests"
        raise self._refused(what, exit_code=ExitCode.RETRYABLE)

    def _refuse_too_short(self) -> None:
        if (longest := self.control.longest_sequence()) < self.max_model_len:
            what = "limits sequences to fewer tokens than the recipe needs"
            raise self._refused(what, value=f"{longest} tokens", expected=f"{self.max_model_len} tokens or more")

    def _refuse_other_settings(self) -> None:
        served = self.control.served()
        if served.dtype != self.dtype:
            raise self._other_settings(f"dtype {served.dtype}", f"serving.dtype {self.dtype}")
        if self.common_seeds and not served.noise_by_request:
            raise self._other_settings(
                "random numbers by position in the sequence", "random numbers by request, for prover.seeds: common"
            )

    def _other_settings(self, has: str, wanted: str) -> UserError:
        what = "was started with other settings than the recipe asks for"
        advice = "start it with this recipe (mrt-hpc serve RECIPE), then mrt-hpc submit RUN"
        return self._refused(what, value=has, expected=wanted, advice=advice)

    def _refused(self, what: str, **facts: Any) -> UserError:
        """The error of this server, with some of the arguments of :class:`UserError`."""
        facts = {"where": self.control.address.text, "advice": AGAIN, **facts}
        return UserError(f"the attached vLLM server {what}", **facts)
