"""One run at one moment, as data with a stable shape, and what happens next: ``status --json`` prints it.

Fields are added at need; none is renamed or removed without a new ``format``. Times are seconds since the epoch,
durations seconds. Unknown values are null.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from pydantic import BaseModel, ConfigDict

from mrt_hpc.backends.backend import QueuedTask, QueueState
from mrt_hpc.plan.jobs import Job, Role, few_names
from mrt_hpc.run.layout import is_collection
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_history import ShardCommitted
from mrt_hpc.view.run_look import RunLook, RunState

FORMAT = 1
"""Number of the shape."""


class SnapshotPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Iterations(SnapshotPart):
    """How far training is."""

    done: int
    planned: int
    """0 for a separate evaluation."""
    weights_version: int | None
    """The newest published one."""
    groups_done: int | None
    """Complete groups of the current iteration (or collection); null where none are sampled."""
    groups_planned: int | None
    seconds: float | None
    """Median of the last ten iterations."""


class Measured(SnapshotPart):
    """The measurements of one iteration."""

    iteration: int
    reward: float | None
    """Mean over its traces."""
    progress: float | None
    """Mean over episodes."""
    answered: float | None
    """Share of traces with an answer."""
    seconds: float | None


class Evaluated(SnapshotPart):
    """One version on one benchmark."""

    version: int
    benchmark: str
    accuracy: float
    low: float
    """Lower end of the accuracy's 95 % interval."""
    high: float


class Evaluations(SnapshotPart):
    """How far evaluation is, in array tasks, and its results."""

    done: int
    planned: int
    results: tuple[Evaluated, ...]
    """By benchmark as planned, then by version."""
    models: tuple[str, ...] = ()
    """Of a separate evaluation: versions are places here; empty for a run."""


class Queued(SnapshotPart):
    """Tasks of a job in the same queue state for the same reason."""

    state: str
    """``pending`` or ``running``; after the end, for a while, how it was, as ``out of memory``."""
    reason: str
    """Why they wait, as the queue says; else empty."""
    tasks: int


class JobView(SnapshotPart):
    name: str
    role: Role
    ids: tuple[str, ...]
    """Of submissions in the queue, oldest first."""
    tasks: int
    states: dict[TaskState, int]
    """Task counts."""
    queue: tuple[Queued, ...]
    after: tuple[str, ...]
    """Jobs that it waits for."""
    time_limit_s: int
    gpus: int
    """Of a task."""


class TaskView(SnapshotPart):
    """A task at work, queued again, or failed. Others are counted in their job."""

    job: str
    index: int
    role: Role
    state: TaskState
    alive: bool
    """An attempt runs now."""
    queue_state: str = ""
    """In the words of ``jobs[].queue``; empty where the queue says nothing."""
    queue_reason: str = ""
    """Why it waits in the queue."""
    attempt: str
    since: float
    """When the state was recorded."""
    node: str | None
    weights_version: int | None
    """Its server's version, or the trainer's latest."""
    last_event: float | None
    """Its time."""
    failures: int
    """Consecutive, without progress."""
    reason: str
    """Why its last attempt ended early, or why it waits in the queue."""
    paused: str = ""
    """Why it runs and cannot go on (no room, no sign of life), with what to type next; else empty."""
    ends_at: float | None
    """By its time limit."""


class TokenRates(SnapshotPart):
    """Tokens per second of all tasks; null where unmeasured."""

    sampling: float | None
    """Traces and branches while inference samples, over the last five iterations, or the first one's groups."""
    whole: float | None
    """The same tokens over these iterations' whole time."""
    training: float | None
    """Tokens of updates, during updates."""
    evaluation: float | None
    """By the tasks of the last twenty shards."""


class Fault(SnapshotPart):
    """A fault, resume or change."""

    time: float
    what: str
    task: str
    detail: str


class Upcoming(SnapshotPart):
    """An expected event."""

    what: str
    at: float | None
    """Null where unknowable."""


class Snapshot(SnapshotPart):
    format: int = FORMAT
    run: str
    """Its directory."""
    name: str
    kind: str
    """The algorithm; or an evaluation's suite, as ``suite paper_20``."""
    time: float
    """When this was read."""
    state: RunState
    unreached: dict[str, str]
    """Unreached queues and why: all else is from the run's files."""
    unreadable: tuple[str, ...] = ()
    """A line with the reason for each unreadable file."""
    warnings: tuple[str, ...] = ()
    """What looks wrong with the last iteration or the optimiser steps."""
    process: int | None = None
    """The local process that runs the plan, or null."""
    iterations: Iterations
    measured: tuple[Measured, ...]
    """By iteration."""
    evaluations: Evaluations
    jobs: tuple[JobView, ...]
    tasks: tuple[TaskView, ...]
    throughput: TokenRates
    fault_counts: dict[str, int]
    """By name."""
    faults: tuple[Fault, ...]
    """The last twenty, by time."""
    upcoming: tuple[Upcoming, ...]
    """Earliest first, as far as known."""
    expected_end: float | None
    """Of training (or a separate evaluation), if nothing interrupts it."""
    report: str | None
    """Its path, if there is one."""
    report_is_old: bool = False
    """Older than the newest results."""


# -- upcoming ----------------------------------------------------------------------------------------------------------
# What happens next in a run, and when: from the measured seconds of its iterations, the plan, and the queue.


LATE = 2.0
"""Durations after which an iteration is late."""


@dataclass(frozen=True)
class Clock:
    """When a running run's iterations are expected to end."""

    now: float
    done: int
    """Ended iterations."""
    seconds: float | None
    """Of one iteration."""
    since: float | None
    """End of the last one, seconds since the epoch; None if unrecorded."""
    held_up: bool = False
    """A running task cannot go on."""

    def end_of(self, iterations: int) -> float | None:
        """When so many iterations have ended; None where unknown or past, or where the present one takes twice as long
        as usual: something else holds it up.
        """
        if self.seconds is None or iterations <= self.done or self.held_up:
            return None
        if self.since is not None and self.now - self.since > LATE * self.seconds:
            return None
        begin = self.now if self.since is None else max(self.since, self.now - self.seconds)
        return begin + (iterations - self.done) * self.seconds


def upcoming_events(look: RunLook, iterations: Iterations, clock: Clock) -> list[Upcoming]:
    """Expected events, earliest first; those without a time last, in plan order."""
    if look.state is RunState.FINISHED:
        return []
    if look.has_ended:
        return [Upcoming(what=f"nothing, until {look.again}", at=None)]
    if _trainer_has_failed(look):
        training = [Upcoming(what=f"no iteration ends, until {look.again}", at=None)]
    else:
        training = [*_iterations(look, iterations, clock), *_jobs(look, clock)]
    events = [*training, *_limits(look), *_starts(look, clock.now)]
    return sorted(events, key=lambda event: inf if event.at is None else event.at)


def expected_end(look: RunLook, iterations: Iterations, clock: Clock, shards: Sequence[ShardCommitted]) -> float | None:
    """When training or a separate evaluation should end; None where nothing runs or was measured."""
    if look.state is not RunState.RUNNING or clock.held_up or _trainer_has_failed(look):
        return None
    if iterations.planned:
        return clock.end_of(iterations.planned)
    left = sum(record.state is not TaskState.DONE for job, _, record in look.tasks() if job.role is Role.EVALUATION)
    at_work = sum(job.role is Role.EVALUATION and (job.name, n) in look.running_tasks for job, n, _ in look.tasks())
    if not shards or not at_work:
        return None
    seconds = sum(shard.ended - shard.began for shard in shards) / len(shards)
    return clock.now + seconds * left / at_work


def _iterations(look: RunLook, iterations: Iterations, clock: Clock) -> Iterator[Upcoming]:
    if iterations.done >= iterations.planned:
        return
    groups = ""
    if iterations.groups_done is not None and iterations.groups_planned is not None:
        groups = f" ({iterations.groups_done} of {iterations.groups_planned} groups are sampled)"
    at = clock.end_of(iterations.done + 1) if look.state is RunState.RUNNING else None
    yield Upcoming(what=f"iteration {iterations.done} ends{groups}", at=at)


def _jobs(look: RunLook, clock: Clock) -> Iterator[Upcoming]:
    """Each role's first job that waits for an unfinished trainer. Inference starts with its trainer."""
    shown: set[Role] = {Role.INFERENCE}
    for job in look.plan.jobs:
        awaited = [look.plan.job(wait.job) for wait in job.after if wait.job not in look.jobs_done]
        trainers = [other for other in awaited if other.does(Role.TRAINER)]
        if job.role in shown or {one.state for one in look.records[job.name]} != {TaskState.WAITING} or not trainers:
            continue
        shown.add(job.role)
        is_timed = look.state is RunState.RUNNING and trainers == awaited  # of other jobs no end is forecast
        at = clock.end_of(max(trainer.end_iteration for trainer in trainers)) if is_timed else None
        names = few_names([other.name for other in awaited])
        yield Upcoming(what=f"{job.name}{_work(job)} may start, after {names}", at=at)


def _trainer_has_failed(look: RunLook) -> bool:
    """Whether a training task has failed and is not queued."""
    failed = ((job, n) for job, n, record in look.tasks() if record.state is TaskState.FAILED)
    return any(job.does(Role.TRAINER) and (job.name, n) not in look.queued_tasks for job, n in failed)


def _work(job: Job) -> str:
    """What a job will do, in brackets."""
    if job.evaluations:
        versions = sorted({unit.version for unit in job.evaluations})
        return f" (weights versions {', '.join(map(str, versions))})" if len(versions) <= 4 else f" ({job.tasks} tasks)"
    if job.segment is None or not job.iterations or is_collection(job.first_iteration):
        return ""
    return f" (iterations {job.first_iteration} to {job.end_iteration - 1})"


def _limits(look: RunLook) -> Iterator[Upcoming]:
    """The earliest time limit of a running task."""
    if limits := _first_of_each_job(look, QueueState.RUNNING):
        name, task = min(limits, key=lambda limit: limit[1].ends_at or inf)
        yield Upcoming(what=f"{name} reaches its time limit; finished work stays", at=task.ends_at)


def _starts(look: RunLook, now: float) -> Iterator[Upcoming]:
    """The starts that the queue expects, the first of each job. Where a user has changed a job's time limit, the start
    that follows from its end may lie in the past: nothing is forecast.
    """
    for name, task in _first_of_each_job(look, QueueState.PENDING):
        assert task.ends_at is not None, "only tasks whose end is known are considered"
        limit = look.plan.job(name).resources.time_limit_minutes * 60
        if (at := task.ends_at - limit) >= now:
            yield Upcoming(what=f"{name} starts, as the queue expects", at=at)


def _first_of_each_job(look: RunLook, state: QueueState) -> list[tuple[str, QueuedTask]]:
    """Each job's task in this state with the earliest end."""
    first: dict[str, QueuedTask] = {}
    planned = {job.name for job in look.plan.jobs}
    for (job, index), task in look.queued_tasks.items():
        is_planned = job in planned and (job, index) not in look.tasks_between_attempts
        if task.state is state and is_planned and task.ends_at is not None:
            first[job] = min(first.get(job, task), task, key=lambda task: task.ends_at or inf)
    return list(first.items())
