"""Checks whether the jobs that a task waits for have left the queue, if the node can ask Slurm."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.ledger import submissions
from mrt_hpc.launch.slurm.answers import squeue_format, squeue_records
from mrt_hpc.launch.slurm.commands import run_slurm

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.run.layout import RunLayout

log = logging.getLogger(__name__)

ASK_EVERY_S = 30.0
"""The seconds between two questions: many tasks may wait, and one controller serves the whole cluster."""
LISTINGS = 2
"""The number of listings in a row that must lack a job before it counts as gone."""
ANSWER_WITHIN_S = 10.0
"""The seconds that the controller has for an answer; a busy one is asked again later."""


@dataclass
class QueueWatch:
    """Asks squeue from time to time; called with names of jobs, it returns whether all have left the queue."""

    layout: RunLayout
    own_id: str
    """The id of the asking task: a listing that lacks it proves nothing."""
    clock: Callable[[], float] = time.monotonic
    _last: float = field(default=float("-inf"), init=False)
    _about: tuple[str, ...] = field(default=(), init=False)
    """The jobs of the last call."""
    _lacking: int = field(default=0, init=False)
    """The number of consecutive listings that lacked the jobs."""
    _told: set[str] = field(default_factory=set, init=False)
    """The reasons for which squeue gave no answer that stand in the log already: in a container it is never there."""

    def __call__(self, jobs: tuple[str, ...]) -> bool:
        """Whether none of these jobs, with all its submissions, has been in the queue for some time."""
        since = self.clock() - self._last
        if jobs != self._about or since >= LISTINGS * ASK_EVERY_S + ANSWER_WITHIN_S:
            self._about, self._lacking = jobs, 0  # listings of an earlier wait do not count for this one
        if since >= ASK_EVERY_S:
            self._last = self.clock()
            self._lacking = self._lacking + 1 if self._are_lacking(jobs) else 0
        return self._lacking >= LISTINGS

    def _are_lacking(self, jobs: tuple[str, ...]) -> bool:
        """Return whether one listing shows the calling task and none of the jobs; False where this is unknown."""
        try:
            sent = submissions(self.layout)
            listing = run_slurm(["squeue", "--me", "--all", squeue_format("%F")], ANSWER_WITHIN_S)
            queue = {job_id for (job_id,) in squeue_records(listing, 1)}
        except (
            UserError,
            OSError,
            ValueError,
        ) as error:  # no squeue on this node, or a filesystem fails for a moment
            self._tell(error.what if isinstance(error, UserError) else str(error))
            return False
        ids = {job: {one.job_id for one in sent if one.job == job} for job in jobs}
        return self.own_id in queue and all(mine and mine.isdisjoint(queue) for mine in ids.values())

    def _tell(self, reason: str) -> None:
        """Write into the log, once for each reason, why squeue gave no answer."""
        if reason not in self._told:
            self._told.add(reason)
            log.info("whether the jobs that this task waits for are queued is not known: %s", reason)
