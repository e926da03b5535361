"""What srun starts for each process of a task: submitit calls a :class:`TaskCall`, which runs the role.

For an array submitit pickles two strings, no part of the run itself. One pickle serves all tasks; each takes its index
from Slurm. Roles are idempotent, so no state passes from one attempt to the next.
"""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from submitit.core.utils import DelayedSubmission

from mrt_hpc.attempt.ledger import submissions
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.slurm.commands import run_slurm
from mrt_hpc.backends.slurm.environment import slurm_task
from mrt_hpc.backends.slurm.queue import own_jobs
from mrt_hpc.errors import UserError
from mrt_hpc.run.layout import RunLayout

if TYPE_CHECKING:
    from mrt_hpc.attempt.entry import RoleFunction

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskCall:
    """Runs this process's part of a task of an array."""

    run_dir: str
    job_name: str
    role: "RoleFunction | None" = None
    """See :func:`mrt_hpc.attempt.entry.run_task`."""

    def __call__(self) -> None:
        """Run the role in this process.

        Raises:
            SystemExit: the role failed in a way that it can explain; the exit code says whether running again may help.
        """
        from mrt_hpc.attempt.entry import run_task  # the roles' modules, which a submission does not load

        task = slurm_task()
        left = None if task.ends_at is None else task.ends_at - time.time()
        placement = Placement(task.rank, task.world_size, task.local_rank, task.attempt, left, task.began_at)
        watch = QueueWatch(RunLayout(Path(self.run_dir)), task.array_job_id or task.job_id)
        try:
            run_task(self.run_dir, self.job_name, task.array_index, placement, self.role, watch)
        except UserError as error:
            print(error.message(), file=sys.stderr, flush=True)
            sys.exit(int(error.exit_code))

    def checkpoint(self) -> DelayedSubmission:
        """submitit calls it: repeat the same call if a signal arrives before the task has its own handlers."""
        return DelayedSubmission(self)


ASK_EVERY_S = 30.0
"""Seconds between two questions: many tasks may wait, and one controller serves the whole cluster."""
LISTINGS = 2
"""So many listings in a row must lack a job before it counts as gone."""
ANSWER_WITHIN_S = 10.0
"""A busy controller is asked again later."""


@dataclass
class QueueWatch:
    """Asks squeue from time to time; called with names of jobs, it returns whether all have left the queue."""

    layout: RunLayout
    own_id: str
    """A listing that lacks the asking task proves nothing."""
    clock: Callable[[], float] = time.monotonic
    _last: float = field(default=float("-inf"), init=False)
    _about: tuple[str, ...] = field(default=(), init=False)
    """The jobs of the last call."""
    _lacking: int = field(default=0, init=False)
    """Consecutive listings that lacked the jobs."""
    _logged: set[str] = field(default_factory=set, init=False)
    """The logged reasons why squeue gave no answer: in a container it is never there."""

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
        """Whether one listing shows the calling task and none of the jobs; False where unknown, and for a job that is
        too new for the listing.
        """
        try:
            sent = submissions(self.layout)
            queue = own_jobs(self.layout, lambda command: run_slurm(command, ANSWER_WITHIN_S))
        except (UserError, OSError, ValueError) as error:  # no squeue on this node, or a filesystem fails for a moment
            reason = error.what if isinstance(error, UserError) else str(error)
            if reason not in self._logged:
                self._logged.add(reason)
                log.info("whether the jobs that this task waits for are queued is not known: %s", reason)
            return False
        listed = {job_id for ids in queue.values() for job_id in ids}
        old = {one.job for one in sent} - {one.job for one in sent if one.is_new}
        return self.own_id in listed and old.issuperset(jobs) and queue.keys().isdisjoint(jobs)
