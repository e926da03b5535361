"""The notice to leave: a signal tells a task to end, and the task says when it can."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.recipe.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stopped(SystemExit):
    """The task was told to stop; it unwinds, and running it again goes on."""


class GaveBack(Stopped):
    """The task was told to give its nodes back, and is to be queued again; the message says why."""

    def __init__(self, why: str) -> None:
        super().__init__(int(ExitCode.GIVE_BACK))
        self.why = why


@dataclass
class Notice:
    """That a task was told to end: raised at once, or, where the role has asked for it, at its next safe point.

    The handlers of signals call ``tell`` and ``force``; they run in the main thread, between two of its instructions.
    """

    _ending: Stopped | None = field(default=None, init=False)
    _safe_points_only: bool = field(default=False, init=False)
    _waiting: bool = field(default=False, init=False)
    leaving: bool = field(default=False, init=False)
    """Whether it was raised: what unwinds is not unwound anew."""
    found_waiting: bool = field(default=False, init=False)
    """Whether the task was waiting for its peers when the notice came."""

    @property
    def given(self) -> bool:
        """Whether the task is to leave."""
        return self._ending is not None

    def tell(self, ending: Stopped) -> bool:
        """Give notice; a second one replaces the first (a preemption may be announced, and then come), until the task
        leaves.

        Returns:
            True when the role leaves by itself, at its next safe point; False when it is leaving already.

        Raises:
            Stopped: ``ending``, when it has asked for no safe point.
        """
        if self.leaving:
            return False
        self._ending = ending
        self.found_waiting = self._waiting
        if not self._safe_points_only:
            self.leave_if_given()
        return True

    def force(self) -> None:
        """There is no more time for a safe point.

        Raises:
            Stopped: what the notice said.
        """
        self._safe_points_only = False
        self.leave_if_given()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Within the block the task waits for its peers."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    @contextmanager
    def at_safe_points(self) -> Iterator[None]:
        """Within the block a notice waits for :meth:`leave_if_given`."""
        self._safe_points_only = True
        try:
            yield
        finally:
            self._safe_points_only = False

    def leave_if_given(self) -> None:
        """A safe point.

        Raises:
            Stopped: what the notice said.
        """
        if self._ending is not None and not self.leaving:
            self.leaving = True
            raise self._ending
