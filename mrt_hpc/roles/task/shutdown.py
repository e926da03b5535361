"""The request to shut down: a signal asks a task to end, and the task says when it can."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mrt_hpc.errors import ExitCode

T = TypeVar("T")


class Interrupted(SystemExit):
    """The task was asked to stop; running it again continues its work."""


class RequeueRequested(Interrupted):
    """The task was asked to return its nodes and is queued again; the message says why."""

    def __init__(self, why: str) -> None:
        super().__init__(int(ExitCode.GIVE_BACK))
        self.why = why


@dataclass
class ShutdownRequest:
    """The request to end a task: raised at once, or at the role's next safe point if it asked for that.

    Signal handlers call ``interrupt`` and ``force`` in the main thread, between two instructions.
    """

    _ending: Interrupted | None = field(default=None, init=False)
    _safe_points_only: bool = field(default=False, init=False)
    _cancel: Callable[[], object] | None = field(default=None, init=False)
    _waiting: bool = field(default=False, init=False)
    leaving: bool = field(default=False, init=False)
    """The request is raised once."""
    found_waiting: bool = field(default=False, init=False)
    """Whether the task was waiting for others when the request came."""
    forward: Callable[[], object] | None = None
    """Passes each request to another process of the task."""
    record: Callable[[Interrupted], object] | None = None
    """Records how the task ends. A role that needs seconds to unwind calls it first (:meth:`announce`), in case it is
    killed meanwhile.
    """

    @property
    def is_given(self) -> bool:
        return self._ending is not None

    def interrupt(self, ending: Interrupted) -> bool:
        """Request the end; a second request replaces the first (an announced preemption may come) until the task
        leaves.

        Returns:
            True when the role leaves by itself at a safe point; False when it is leaving already.

        Raises:
            Interrupted: ``ending``, without safe points and outside of an event loop.
        """
        if self.leaving:
            return False
        if self.forward is not None:
            self.forward()
        self._ending = ending
        self.found_waiting = self._waiting
        if self._cancel is not None:
            self.leaving = True
            self._cancel()
            return False
        if not self._safe_points_only:
            self.leave_if_given()
        return True

    def force(self) -> None:
        """Raise the request now: no time is left for a safe point."""
        self._safe_points_only = False
        self.leave_if_given()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """The block in which the task waits for others."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    @contextmanager
    def defer_to_safe_points(self) -> Iterator[None]:
        """The block in which a request waits for :meth:`leave_if_given`."""
        self._safe_points_only = True
        try:
            yield
        finally:
            self._safe_points_only = False

    @contextmanager
    def cancel_on_request(self, cancel: Callable[[], object]) -> Iterator[None]:
        """The block in which a request calls ``cancel`` and raises nothing."""
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel = None

    def announce(self) -> None:
        """Record the requested end before the task has unwound."""
        if self._ending is not None and self.record is not None:
            self.record(self._ending)

    def raise_if_leaving(self) -> None:
        """Raise the request if it cancelled this task's work."""
        if self._ending is not None and self.leaving:
            raise self._ending

    def leave_if_given(self) -> None:
        """A safe point: raise a given request."""
        if self._ending is not None and not self.leaving:
            self.leaving = True
            raise self._ending


def run_until_asked_to_leave(shutdown: ShutdownRequest, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in its own event loop; a request to shut down cancels it with all that it started. An exception
    from a signal handler would leave the loop's tasks pending.
    """
    try:
        result = asyncio.run(_run_cancellable(shutdown, work))
    except asyncio.CancelledError:
        shutdown.raise_if_leaving()
        raise
    shutdown.raise_if_leaving()  # the cancellation came when all work was done
    return result


async def _run_cancellable(shutdown: ShutdownRequest, work: Coroutine[Any, Any, T]) -> T:
    cancel = asyncio.current_task(loop := asyncio.get_running_loop()).cancel  # type: ignore[union-attr]
    with shutdown.cancel_on_request(lambda: loop.call_soon_threadsafe(cancel)):  # it also wakes a loop that sleeps
        try:
            return await work
        except asyncio.CancelledError:
            shutdown.announce()
            raise
