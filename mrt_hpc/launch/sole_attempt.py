"""At most one job works on a task at a time, also where the queue holds two jobs for it: a submission that was
interrupted may have left a job that nothing names any more.

The heart of a task says which attempt works on it. Two that begin at once are told apart by claims: files beside the
heart with growing numbers, each created exclusively. An attempt claims, looks at the heart again, begins to beat, and
sees whether its claim is still the newest: of two attempts, the later claim sees the other's heart, or the earlier one
sees the later claim. Slurm runs one attempt of a job at a time, so a later attempt of the same job does not wait.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.launch.attempt_end import job_of
from mrt_hpc.run.atomic import create_next
from mrt_hpc.run.heartbeats import Heart, Observer
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mrt_hpc.roles.task.context import Task

LOOK_EVERY_S = 1.0
_CLAIM = re.compile(r"\d{5}\.claim-(\d+)")


@contextmanager
def sole_attempt(task: Task) -> Iterator[None]:
    """Beat for a task during the block. An attempt of another job that is just ending is waited for.

    Raises:
        UserError: an attempt of another job works on the task; nothing is recorded, and this one comes back later.
    """
    heart, limit_s = task.layout.heart(task.job.name, task.index), task.experiment.resilience.heartbeat_limit_s
    observer = Observer(limit_s)
    with task.shutdown.while_waiting():
        if another_works(heart, task.attempt, observer):
            raise _refused(task)
    claim = task.retrying(lambda: _claim(heart, task.attempt), "the claim on the task")
    if _other(heart, task.attempt, observer):
        raise _refused(task)
    with Heart(heart, task.attempt, limit_s):
        for path in task.retrying(lambda: _claims(heart), "the claims on the task"):
            if _number(path) > _number(claim):
                raise _refused(task)
            if _number(path) < _number(claim):
                path.unlink(missing_ok=True)
        yield


def another_works(heart: Path, attempt: str, observer: Observer) -> bool:
    """Whether an attempt of another job works on the task of this heart, and goes on for longer than a heart that has
    stopped counts as alive.
    """
    end = time.monotonic() + observer.limit_s + LOOK_EVERY_S
    while (works := _other(heart, attempt, observer)) and time.monotonic() < end:
        time.sleep(LOOK_EVERY_S)
    return works


def _other(heart: Path, attempt: str, observer: Observer) -> bool:
    """Whether a heart beats for an attempt of another job. An attempt of the local back end belongs to no job: the
    process that runs the plan sees to it that there is one.
    """
    living = observer.living(heart)
    return living is not None and job_of(living) not in (None, job_of(attempt))


def _claim(heart: Path, attempt: str) -> Path:
    """Create the next claim on a task."""
    newest = max(map(_number, _claims(heart)), default=0)
    return create_next(lambda number: heart.with_name(f"{heart.stem}.claim-{number:05d}"), newest + 1, attempt)


def _claims(heart: Path) -> list[Path]:
    return [path for path in list_directory(heart.parent, f"{heart.stem}.claim-*") if _CLAIM.fullmatch(path.name)]


def _number(claim: Path) -> int:
    return int(claim.name.rpartition("-")[2])


def _refused(task: Task) -> UserError:
    return UserError(
        f"another job works on task {task.index} of {task.job.name}",
        where=task.layout.root,
        expected="one job for each task; this one does nothing, and comes back later",
        advice=f"mrt-hpc cancel {task.layout.root}, and the same submit command again; or scancel the job that is too "
        "many: squeue --me shows both",
        exit_code=ExitCode.GIVE_BACK,
    )
