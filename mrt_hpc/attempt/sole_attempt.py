"""At most one job works on a task at a time. The queue may hold two, as an interrupted submission may have left a job
that nothing names any more.

Each attempt claims its task by a file beside the task's heart: ``trainer.claim-00003`` is the third. The file is
created exclusively, so of two attempts that begin at once one is refused. The newest claim holds the task until its
attempt writes that it is over, or its heart has stood still for long enough.
"""
# Claims are never removed, so that an old list of them does no harm.

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mrt_hpc.attempt.ledger import job_of
from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.run.atomic import create_text
from mrt_hpc.run.leases import NO_BEAT, Beat, Heart, read_beat
from mrt_hpc.run.retries import list_directory, retry_action

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
_CLAIM = re.compile(r".+\.claim-(\d{5})")
_OVER = ""
"""The content of a claim whose attempt has ended by itself; before, it is the attempt's name."""


class TaskClaim(NamedTuple):
    number: int
    attempt: str
    beat: Beat
    """The last beat of the task's heart that was seen with it."""


@contextmanager
def sole_attempt(task: "Task") -> Iterator[None]:
    """Hold a task, and beat for it, during the block. It waits for an attempt of another job that is just ending.

    Raises:
        UserError: an attempt of another job works on the task; nothing is recorded, and this one comes back later.
    """
    heart, limit_s = task.layout.heart(task.job.name, task.index), task.experiment.resilience.heartbeat_limit_s
    with task.shutdown.while_waiting():
        last = finished_claim(heart, task.attempt, limit_s)
    if last is None:
        raise _second_job_error(task)
    mine = heart.with_name(f"{heart.stem}.claim-{last.number + 1:05d}")
    if not task.retry(lambda: create_text(mine, task.attempt), "the claim on the task"):
        raise _second_job_error(task)
    if _is_of_another_job(last, task.attempt) and read_beat(heart) not in (last.beat, NO_BEAT):
        raise _second_job_error(task)  # it has only stood still
    with Heart(heart, task.attempt, limit_s) as beating:
        # an attempt that stood still may have counted as over: another has claimed since then
        newest = beating.beat_and(lambda: task.retry(lambda: _newest_path(heart), "the claims on the task"))
        if newest != mine:
            raise _second_job_error(task)
        try:
            yield
        finally:
            _end(mine, limit_s)


def finished_claim(heart: Path, attempt: str, limit_s: float) -> TaskClaim | None:
    """The newest claim on the task of a heart, if it no longer holds the task: its attempt is over, its heart has stood
    still for ``limit_s``, or it is of the same job. The local back end has no jobs: there the process that runs the
    plan sees to it that there is one attempt.
    """
    start = changed = time.monotonic()
    before = None
    while True:
        claim, now = _newest_claim(heart), time.monotonic()
        if not _is_of_another_job(claim, attempt):
            return claim
        if claim != before:
            before, changed = claim, now
        if now - changed >= limit_s:
            return claim
        if now - start >= limit_s + LOOK_EVERY_S:
            return None
        time.sleep(LOOK_EVERY_S)


def _is_of_another_job(claim: TaskClaim, attempt: str) -> bool:
    """Whether the claim, or the heart that was seen with it, is of another job: a refused attempt leaves a claim after
    that of the one that works.
    """
    return any(job_of(other) not in (None, job_of(attempt)) for other in (claim.attempt, claim.beat.attempt))


def _newest_claim(heart: Path) -> TaskClaim:
    path = _newest_path(heart)
    if path is None:
        return TaskClaim(0, _OVER, NO_BEAT)
    return TaskClaim(_number(path), retry_action(path.read_text, "the claim on the task"), read_beat(heart))


def _newest_path(heart: Path) -> Path | None:
    claims = [path for path in list_directory(heart.parent, f"{heart.stem}.claim-*") if _CLAIM.fullmatch(path.name)]
    return max(claims, key=_number, default=None)


def _number(claim: Path) -> int:
    return int(claim.name.rpartition("-")[2])


def _end(claim: Path, limit_s: float) -> None:
    """Say in a claim that its attempt is over. Emptying a file needs no room on the disk."""
    try:
        claim.write_text(_OVER)
    except OSError as error:
        log.warning("another job for this task waits %g s, because %s keeps its attempt: %s", limit_s, claim, error)


def _second_job_error(task: "Task") -> UserError:
    return UserError(
        f"another job works on task {task.index} of {task.job.name}",
        where=task.layout.root,
        expected="one job for each task; this one does nothing, and comes back later",
        advice=Advice(
            "mrt-hpc cancel {run}, and mrt-hpc submit RUN; or scancel the job that is too many: squeue --me shows both",
            run=task.layout.root,
        ),
        exit_code=ExitCode.GIVE_BACK,
    )
