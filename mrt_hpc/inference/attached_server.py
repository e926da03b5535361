"""A vLLM server that runs already: a task samples through it and loads weights into it, and leaves it running.

Such a server is started by the user, with `mrt-hpc serve`. It must see the run's files under the same paths, and no
other task may use it at the same time, as it holds one weights version at a time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.server_control import ServerControl, refuse_no_weights
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

log = logging.getLogger(__name__)

AGAIN = "start it again (mrt-hpc serve RECIPE), then type the same submit command again"
"""What to type where an attached server has failed."""


@dataclass
class AttachedServer:
    """Use as a context manager: the server holds the wanted weights before the block begins."""

    control: ServerControl
    model_dir: Path
    """The weights that it has to hold first."""
    weights_version: int
    max_model_len: int
    """Tokens of the longest sequence that the task needs."""
    read_deadline_s: float
    """Seconds in which it has to answer for the first time, and to read a model."""
    pause_deadline_s: float
    """Seconds in which it has to finish the samples that have begun when new weights are loaded."""
    while_starting: Callable[[], None] | None = field(default=None, repr=False)
    """Called again and again until it answers; raises to give up."""

    @property
    def pid(self) -> None:
        """Its process is not this task's, and may run on another node."""

    def __enter__(self) -> AttachedServer:
        wait_until(
            lambda: self.control.status() == httpx.codes.OK,
            reason=f"the vLLM server at {self.control.address.text}",
            deadline_s=self.read_deadline_s,
            check=self.while_starting or (lambda: None),
        )
        self._refuse_too_short()
        self.load_weights(self.model_dir, self.weights_version)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It goes on running."""

    def close(self) -> None:
        """It goes on running."""

    def load_weights(self, directory: Path, version: int) -> dict[str, Any]:
        """Put weights into the running model; see :meth:`ServerControl.load`.

        Raises:
            UserError: the directory holds no weights, or the server refused or stopped half-way.
        """
        refuse_no_weights(directory)
        report = self.control.load(
            directory, version, pause_deadline_s=self.pause_deadline_s, read_deadline_s=self.read_deadline_s
        )
        self.model_dir, self.weights_version = directory, version
        return report

    def tokens_done(self) -> int | None:
        """Tokens read and generated since it started; None when it does not answer."""
        return self.control.tokens_done()

    def restart_if_dead(self) -> bool:
        """Whether it had to be started again, which a task cannot do: False where it answers.

        Raises:
            UserError: it does not answer.
        """
        if self.control.status() != httpx.codes.OK:
            raise self._gone("does not answer")
        return False

    def restart(self) -> None:
        """A task cannot end a server that it has not started.

        Raises:
            UserError: always.
        """
        raise self._gone("has done nothing for serving.stall_limit_s while it had requests")

    def _refuse_too_short(self) -> None:
        if (longest := self.control.longest_sequence()) < self.max_model_len:
            raise UserError(
                "the attached vLLM server holds too short sequences",
                value=f"{longest} tokens",
                where=self.control.address.text,
                expected=f"{self.max_model_len} tokens or more, as the recipe needs",
                advice=AGAIN,
            )

    def _gone(self, how: str) -> UserError:
        return UserError(
            f"the attached vLLM server {how}",
            where=self.control.address.text,
            advice=AGAIN,
            exit_code=ExitCode.RETRYABLE,
        )
