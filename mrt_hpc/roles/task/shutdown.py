"""The request to shut down: a signal asks a task to end, and the task says when it can."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mrt_hpc.errors import ExitCode

T = TypeVar("T")


class Interrupted(SystemExit):
    """The task was asked to stop. It unwinds, and running it again continues its work."""


class RequeueRequested(Interrupted):
    """The task was asked to return its nodes, and is to be queued again; the message says why."""

    def __init__(self, why: str) -> None:
        super().__init__(int(ExitCode.GIVE_BACK))
        self.why = why


@dataclass
class ShutdownRequest:
    """The request to end a task: it raises at once, or, where the role has asked for that, at the role's next safe
    point.

    The handlers of signals call ``interrupt`` and ``force``; they run in the main thread, between two instructions.
    """

    _ending: Interrupted | None = field(default=None, init=False)
    _safe_points_only: bool = field(default=False, init=False)
    _cancel: Callable[[], object] | None = field(default=None, init=False)
    _waiting: bool = field(default=False, init=False)
    leaving: bool = field(default=False, init=False)
    """Whether the request has been raised; it is raised once."""
    found_waiting: bool = field(default=False, init=False)
    """Whether the task was waiting for other tasks when the request came."""
    forward: Callable[[], object] | None = None
    """Passes a request on to another process of the task; called with each."""
    record: Callable[[Interrupted], object] | None = None
    """Writes down how the task ends. A role that needs seconds to unwind calls it first (see :meth:`announce`), so that
    a task that is killed meanwhile has a record.
    """

    @property
    def given(self) -> bool:
        """Whether the task has been asked to end."""
        return self._ending is not None

    def interrupt(self, ending: Interrupted) -> bool:
        """Request the end. A second request replaces the first (a preemption may be announced, and then come), until
        the task leaves.

        Returns:
            True when the role leaves by itself, at its next safe point; False when it is leaving already.

        Raises:
            Interrupted: ``ending``, when it has asked for no safe point, and is in no event loop.
        """
        if self.leaving:
            return False
        if self.forward is not None:
            self.forward()
        self._ending = ending
        self.found_waiting = self._waiting
        if self._cancel is not None:
            return self._have_cancelled(self._cancel)
        if not self._safe_points_only:
            self.leave_if_given()
        return True

    def _have_cancelled(self, cancel: Callable[[], object]) -> bool:
        self.leaving = True
        cancel()
        return False

    def force(self) -> None:
        """Raise the request now: there is no more time for a safe point.

        Raises:
            Interrupted: what was requested.
        """
        self._safe_points_only = False
        self.leave_if_given()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Surrounds a block in which the task waits for other tasks."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    @contextmanager
    def at_safe_points(self) -> Iterator[None]:
        """Surrounds a block in which a request waits for :meth:`leave_if_given`."""
        self._safe_points_only = True
        try:
            yield
        finally:
            self._safe_points_only = False

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Surrounds a block in which a request calls ``cancel`` and raises nothing."""
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel = None

    def announce(self) -> None:
        """Write down how the task ends, if it was asked to, before it has unwound."""
        if self._ending is not None and self.record is not None:
            self.record(self._ending)

    def raise_if_leaving(self) -> None:
        """Raise what has cancelled the work of this task, if that was a request.

        Raises:
            Interrupted: what was requested.
        """
        if self._ending is not None and self.leaving:
            raise self._ending

    def leave_if_given(self) -> None:
        """A safe point: raise the request, if there is one.

        Raises:
            Interrupted: what was requested.
        """
        if self._ending is not None and not self.leaving:
            self.leaving = True
            raise self._ending


def run_until_asked_to_leave(shutdown: ShutdownRequest, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own; a request to shut down cancels it with all that it has started.

    An exception that a signal's handler raises would break out of the loop and leave its tasks pending.

    Raises:
        Interrupted: what was requested.
    """
    try:
        result = asyncio.run(_cancelled_by(shutdown, work))
    except asyncio.CancelledError:
        shutdown.raise_if_leaving()
        raise
    shutdown.raise_if_leaving()  # the cancellation came when all work was done
    return result


async def _cancelled_by(shutdown: ShutdownRequest, work: Coroutine[Any, Any, T]) -> T:
    cancel = asyncio.current_task(loop := asyncio.get_running_loop()).cancel  # type: ignore[union-attr]
    with shutdown.cancelling(lambda: loop.call_soon_threadsafe(cancel)):  # it also wakes a loop that sleeps
        try:
            return await work
        except asyncio.CancelledError:
            shutdown.announce()
            raise
