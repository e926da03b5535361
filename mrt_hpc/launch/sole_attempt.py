"""At most one job works on a task at a time, also where the queue holds two jobs for it: a submission that was
interrupted may have left a job that nothing names any more.

An attempt holds its task by a lease beside the task's heart, and the lease counts as long as that heart beats. Slurm
runs one attempt of a job at a time, so a later attempt of the same job takes the lease over at once.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.launch.attempt_end import job_of
from mrt_hpc.run.heartbeats import Heart, Observer
from mrt_hpc.run.leases import Holder, Leases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

LOOK_EVERY_S = 1.0


@contextmanager
def sole_attempt(task: Task) -> Iterator[None]:
    """Hold a task during the block, with its heartbeat. An attempt of another job that is just ending is waited for.

    Raises:
        UserError: an attempt of another job works on the task; nothing is recorded, and this one comes back later.
    """
    limit_s = task.experiment.resilience.heartbeat_limit_s
    leases = _leases(task.layout, task.job.name, task.index, task.attempt, limit_s)
    end = time.monotonic() + limit_s + LOOK_EVERY_S
    while not task.retrying(lambda: leases.claim(task.index), "the claim on the task"):
        if time.monotonic() > end:
            raise _refused(task)
        time.sleep(LOOK_EVERY_S)
    # Of two that claim at once, the one before may begin its heart just now, or see this claim after it has done so.
    if leases.was_taken_from_living(task.index):
        leases.release(task.index)
        raise _refused(task)
    try:
        with Heart(task.layout.heart(task.job.name, task.index), task.attempt, limit_s):
            if not task.retrying(lambda: leases.is_mine(task.index), "the claim on the task"):
                raise _refused(task)
            yield
    finally:
        with suppress(OSError):  # without its heart it holds nothing
            leases.release(task.index)


def another_works(layout: RunLayout, job: str, index: int, attempt: str, limit_s: float) -> bool:
    """Whether an attempt of another job holds a task and lives. Such an attempt is watched for as long as a heart may
    take to beat.
    """
    leases = _leases(layout, job, index, attempt, limit_s)
    end = time.monotonic() + limit_s + LOOK_EVERY_S
    while held := not leases.free([index]):
        if time.monotonic() > end:
            break
        time.sleep(LOOK_EVERY_S)
    return held


def _leases(layout: RunLayout, job: str, index: int, attempt: str, limit_s: float) -> Leases:
    heart = layout.heart(job, index)
    return Leases(
        directory=heart.parent,
        mine=Holder(layout.root, job, index, attempt),
        observer=Observer(limit_s),
        is_complete=lambda _: False,
        heart=lambda _: heart,
        is_over=lambda holder: job_of(holder.attempt) in (None, job_of(attempt)),
    )


def _refused(task: Task) -> UserError:
    return UserError(
        f"another job works on task {task.index} of {task.job.name}",
        where=task.layout.root,
        expected="one job for each task; this one does nothing, and comes back later",
        advice=f"mrt-hpc cancel {task.layout.root}, and the same submit command again; or scancel the job that is too "
        "many: squeue --me shows both",
        exit_code=ExitCode.GIVE_BACK,
    )
