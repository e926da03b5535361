"""Looks at the queues of a run from time to time, while the files of the run are shown."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.launch.queued_jobs import look_at_queues

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType

    from mrt_hpc.launch.queued_jobs import QueueLook
    from mrt_hpc.run.layout import RunLayout

ASK_EVERY_S = 30.0
"""The seconds between two questions: one controller serves the whole cluster."""
WITHIN_S = 5.0
"""The seconds that a queue has for its answer: the first view waits for it, and so does the end of the view."""


@dataclass
class QueueLooks:
    """The latest answer of the queues; use as a context manager, which ends the thread that asks."""

    layout: RunLayout
    within_s: float = WITHIN_S
    clock: Callable[[], float] = time.monotonic
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1), init=False)
    _asked: Future[QueueLook] | None = field(default=None, init=False)
    _latest: QueueLook | None = field(default=None, init=False)
    _next: float = field(default=0.0, init=False)

    def __enter__(self) -> QueueLooks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def latest(self) -> QueueLook:
        """The newest answer. The first call waits for it; later ones ask again when it is due, and wait for nothing."""
        if self._asked is None and (self._latest is None or self.clock() >= self._next):
            self._asked = self._thread.submit(look_at_queues, self.layout, self.within_s)
        if self._asked is not None and (self._latest is None or self._asked.done()):
            self._latest, self._asked = self._asked.result(), None
            self._next = self.clock() + ASK_EVERY_S
        assert self._latest is not None, "the first call has waited for an answer"
        return self._latest
