"""What happens next in a run, and when: from the measured seconds of its iterations, the plan, and the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from mrt_hpc.backends.backend import QueuedTask, QueueState
from mrt_hpc.plan.jobs import Job, Role
from mrt_hpc.run.layout import is_collection
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_history import ShardCommitted
from mrt_hpc.view.run_look import RunLook, RunState
from mrt_hpc.view.snapshot import Iterations, Upcoming


@dataclass(frozen=True)
class Clock:
    """When the iterations of a run that goes on are expected to end."""

    now: float
    done: int
    """The iterations that have ended."""
    seconds: float | None
    """The duration of one."""
    since: float | None
    """When the last of them ended, seconds since the epoch; None where no event says it."""

    def end_of(self, iterations: int) -> float | None:
        """When so many iterations have ended; None where it cannot be known, or lies behind."""
        if self.seconds is None or iterations <= self.done:
            return None
        begin = self.now if self.since is None else max(self.since, self.now - self.seconds)
        return begin + (iterations - self.done) * self.seconds


def upcoming(look: RunLook, iterations: Iterations, clock: Clock) -> list[Upcoming]:
    """What happens next, the earliest first; what has no time stands last, in the order of the plan.

    Args:
        look: at the run.
        iterations: how far training is.
        clock: of its iterations.
    """
    if look.state is RunState.FINISHED:
        return []
    if look.ended:
        return [Upcoming(what=f"nothing, until {look.layout.again} continues the run", at=None)]
    events = [*_iterations(look, iterations, clock), *_jobs(look, clock), *_limits(look), *_starts(look)]
    return sorted(events, key=lambda event: inf if event.at is None else event.at)


def expected_end(look: RunLook, iterations: Iterations, clock: Clock, shards: Sequence[ShardCommitted]) -> float | None:
    """When training, or an evaluation on its own, is expected to end; None where nothing runs or was measured."""
    if look.state is not RunState.RUNNING:
        return None
    if iterations.planned:
        return clock.end_of(iterations.planned)
    left = sum(record.state is not TaskState.DONE for job, _, record in look.tasks() if job.role is Role.EVALUATION)
    at_work = sum(job.role is Role.EVALUATION and (job.name, n) in look.running for job, n, _ in look.tasks())
    if not shards or not at_work:
        return None
    seconds = sum(shard.ended - shard.began for shard in shards) / len(shards)
    return clock.now + seconds * left / at_work


def _iterations(look: RunLook, iterations: Iterations, clock: Clock) -> Iterator[Upcoming]:
    """The end of the current iteration."""
    if iterations.done >= iterations.planned:
        return
    groups = ""
    if iterations.groups_done is not None and iterations.groups_planned is not None:
        groups = f" ({iterations.groups_done} of {iterations.groups_planned} groups are sampled)"
    at = clock.end_of(iterations.done + 1) if look.state is RunState.RUNNING else None
    yield Upcoming(what=f"iteration {iterations.done} ends{groups}", at=at)


def _jobs(look: RunLook, clock: Clock) -> Iterator[Upcoming]:
    """The first job of each role that waits for a trainer that has not ended. Inference starts with its trainer."""
    shown: set[Role] = {Role.INFERENCE}
    for job in look.plan.jobs:
        if job.role in shown or _has_begun(look, job) or not (trainer := _awaited_trainer(look, job)):
            continue
        shown.add(job.role)
        at = clock.end_of(trainer.end_iteration) if look.state is RunState.RUNNING else None
        yield Upcoming(what=f"{job.name}{_work(job)} may start, after {trainer.name}", at=at)


def _awaited_trainer(look: RunLook, job: Job) -> Job | None:
    """The trainer that a job waits for and that is not done; None where there is none."""
    awaited = [look.plan.job(wait.job) for wait in job.after]
    return next((job for job in awaited if job.does(Role.TRAINER) and job.name not in look.jobs_done), None)


def _has_begun(look: RunLook, job: Job) -> bool:
    return any(record.state is not TaskState.WAITING for record in look.records[job.name])


def _work(job: Job) -> str:
    """What a job will do, in brackets."""
    if job.evaluations:
        versions = sorted({unit.version for unit in job.evaluations})
        return f" (weights versions {', '.join(map(str, versions))})" if len(versions) <= 4 else f" ({job.tasks} tasks)"
    if job.segment is None or not job.iterations or is_collection(job.first_iteration):
        return ""
    return f" (iterations {job.first_iteration} to {job.end_iteration - 1})"


def _limits(look: RunLook) -> Iterator[Upcoming]:
    """The first of the time limits of running tasks."""
    limits = _first_of_each_job(look, QueueState.RUNNING)
    if limits:
        name, task = min(limits, key=lambda limit: limit[1].ends_at or inf)
        what = f"{name} reaches its time limit: a task that is not done is queued again and continues its work"
        yield Upcoming(what=what, at=task.ends_at)


def _starts(look: RunLook) -> Iterator[Upcoming]:
    """The starts that the queue expects, the first of each job."""
    for name, task in _first_of_each_job(look, QueueState.PENDING):
        assert task.ends_at is not None, "only tasks whose end is known are considered"
        limit = look.plan.job(name).resources.time_limit_minutes * 60
        yield Upcoming(what=f"{name} starts, as the queue expects", at=task.ends_at - limit)


def _first_of_each_job(look: RunLook, state: QueueState) -> list[tuple[str, QueuedTask]]:
    """The task of each job in this state whose end is the first that the queue knows."""
    first: dict[str, QueuedTask] = {}
    planned = {job.name for job in look.plan.jobs}
    for (job, _), task in look.queued.items():
        if task.state is not state or task.ends_at is None or job not in planned:
            continue
        if job not in first or task.ends_at < (first[job].ends_at or inf):
            first[job] = task
    return list(first.items())
