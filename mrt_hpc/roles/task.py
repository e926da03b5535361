"""What a role is given: its place in the plan, its recipe, its run directory, and the means to wait for its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mrt_hpc.recipe.errors import ExitCode, UserError
from mrt_hpc.run.tasks import TaskState, read_task
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mrt_hpc.plan.model import Job, Plan, Role
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.events import EventLog
    from mrt_hpc.run.layout import RunLayout

T = TypeVar("T")

LONGEST_LOOK_S = 0.25
"""Between two looks at the run directory while a peer works: short beside an iteration, long for a shared filesystem.
"""


@dataclass(frozen=True)
class Task:
    """One attempt at one array task (one process of it, where a task has several ranks)."""

    layout: RunLayout
    recipe: Recipe
    plan: Plan
    job: Job
    index: int
    """Within the job's array."""
    rank: int
    world_size: int
    local_rank: int
    attempt: str
    """Unique to the attempt, the same for all its ranks."""
    events: EventLog

    @property
    def number(self) -> int:
        """Among all tasks of the role in this segment, split arrays taken together."""
        return self.job.first_task + self.index

    @property
    def iterations(self) -> range:
        """The iterations of the segment."""
        return range(self.job.first_iteration, self.job.end_iteration)

    @property
    def log_stem(self) -> str:
        """Start of the names of log files of this attempt."""
        return f"{self.job.name}.{self.index:05d}.{self.attempt}"

    def log(self, what: str) -> Path:
        """A log file for something that this attempt owns, such as its server."""
        return self.layout.logs / f"{self.log_stem}.{what}.log"

    def wait(self, condition: Callable[[], T | None], *, reason: str, producers: Role) -> T:
        """Wait for what the segment's tasks of another role produce; give up when one of them has failed.

        Raises:
            UserError: a producer failed, or the recipe's limit passed.
        """
        return wait_until(
            condition,
            reason=reason,
            deadline_s=self.recipe.schedule.wait_limit_minutes * 60,
            check=lambda: self._check_producers(producers, reason),
            advice=f"mrt-hpc status {self.layout.root}",
            longest_pause_s=LONGEST_LOOK_S,
        )

    def _check_producers(self, role: Role, reason: str) -> None:
        for job in self.plan.jobs:
            if job.role is role and job.segment == self.job.segment:
                for index in range(job.tasks):
                    record = read_task(self.layout, job.name, index)
                    if record.state is TaskState.FAILED:
                        raise UserError(
                            f"no use to wait for {reason}: task {index} of {job.name} has failed",
                            value=record.message.partition("\n")[0],
                            advice=f"mrt-hpc logs {self.layout.root} {role}",
                            exit_code=ExitCode.RETRYABLE,
                        )
