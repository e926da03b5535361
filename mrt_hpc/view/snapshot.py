"""One run at one moment, as data with a stable shape: ``status --json`` prints it, and ``status``, ``status --watch``
and a run on this machine show it; and what happens next in the run.

Fields are added at need; none is renamed or removed without a new number in ``format``. Times are seconds since the
epoch, durations seconds. What is not known is null.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from pydantic import BaseModel, ConfigDict

from mrt_hpc.backends.backend import QueuedTask, QueueState
from mrt_hpc.plan.jobs import Job, Role
from mrt_hpc.run.layout import is_collection
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_history import ShardCommitted
from mrt_hpc.view.run_look import RunLook, RunState

FORMAT = 1
"""The number of the shape."""


class SnapshotPart(BaseModel):
    """A part of the snapshot."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Iterations(SnapshotPart):
    """How far training is."""

    done: int
    planned: int
    """0 for an evaluation on its own."""
    weights_version: int | None
    """The newest published weights version."""
    groups_done: int | None
    """The groups of the current iteration (or collection) that are complete; null where none are sampled."""
    groups_planned: int | None
    seconds: float | None
    """The median duration of the last ten iterations."""


class Measured(SnapshotPart):
    """What was measured in one iteration."""

    iteration: int
    reward: float | None
    """The mean reward of its traces."""
    progress: float | None
    """The mean progress of an episode of its traces."""
    answered: float | None
    """The share of its traces in which an answer was found."""
    seconds: float | None
    """Its duration."""


class Evaluated(SnapshotPart):
    """The result of one weights version on one benchmark."""

    version: int
    benchmark: str
    accuracy: float
    low: float
    """The lower end of the 95 % interval of the accuracy."""
    high: float


class Evaluations(SnapshotPart):
    """How far evaluation is, in array tasks, and its results."""

    done: int
    planned: int
    results: tuple[Evaluated, ...]
    """The results by benchmark as planned, then by version."""


class Queued(SnapshotPart):
    """Tasks of a job that are in the same state in the queue, for the same reason."""

    state: str
    """``pending`` or ``running``, and after the end for some time how it was, as in ``out of memory``."""
    reason: str
    """The queue's reason why they wait; empty for others."""
    tasks: int


class JobView(SnapshotPart):
    """A job of the plan."""

    name: str
    role: Role
    ids: tuple[str, ...]
    """The ids of its submissions in the queue, the oldest first."""
    tasks: int
    states: dict[TaskState, int]
    """The number of tasks in each state."""
    queue: tuple[Queued, ...]
    after: tuple[str, ...]
    """The jobs that it waits for."""
    time_limit_s: int
    gpus: int
    """The number of GPUs of a task."""


class TaskView(SnapshotPart):
    """A task that is at work, is queued again, or has failed. Tasks that are done, and those that wait for their first
    start, are counted in their job.
    """

    job: str
    index: int
    role: Role
    state: TaskState
    alive: bool
    """Whether an attempt runs at this moment."""
    attempt: str
    since: float
    """When the state was recorded."""
    node: str | None
    weights_version: int | None
    """The weights version that its server holds, or that the trainer computed last."""
    last_event: float | None
    """When it wrote its last event."""
    failures: int
    """The number of consecutive failures without progress."""
    reason: str
    """Why its last attempt ended early, or why it waits in the queue."""
    paused: str = ""
    """Why it runs and waits for room on the disk, with what to type next; empty where it does not."""
    ends_at: float | None
    """When its time limit ends it."""


class TokenRates(SnapshotPart):
    """Tokens per second, all tasks together; null where nothing was measured."""

    sampling: float | None
    """Sampled traces and branches while inference samples: over the last five iterations, or the groups of the first
    one."""
    whole: float | None
    """The same tokens over the whole duration of these iterations, waits included."""
    training: float | None
    """Tokens computed by the updates, while the trainer updates."""
    evaluation: float | None
    """Sampled by the evaluation tasks that committed the last twenty shards."""


class Fault(SnapshotPart):
    """A fault, a resume or a change of the run."""

    time: float
    what: str
    task: str
    detail: str


class Upcoming(SnapshotPart):
    """Something that is expected."""

    what: str
    at: float | None
    """When; null where it cannot be known."""


class Snapshot(SnapshotPart):
    """A run at one moment."""

    format: int = FORMAT
    run: str
    """The run directory."""
    name: str
    kind: str
    """The algorithm; or the suite of an evaluation on its own, as in ``suite paper_20``."""
    time: float
    """When this was read."""
    state: RunState
    unreached: dict[str, str]
    """Why a queue was not reached, by its name: all else is from the run's files."""
    unreadable: tuple[str, ...] = ()
    """A line for each file of the run that cannot be read, with the reason."""
    warnings: tuple[str, ...] = ()
    """What looks wrong with the last iteration, or with the optimiser steps of the run."""
    process: int | None = None
    """The number of the process of this machine that runs the plan; null where there is none."""
    iterations: Iterations
    measured: tuple[Measured, ...]
    """The figures in the order of iterations."""
    evaluations: Evaluations
    jobs: tuple[JobView, ...]
    tasks: tuple[TaskView, ...]
    throughput: TokenRates
    fault_counts: dict[str, int]
    """How often each fault happened, by its name."""
    faults: tuple[Fault, ...]
    """The last twenty faults, resumes and changes, in the order of time."""
    upcoming: tuple[Upcoming, ...]
    """What happens next, the earliest first as far as that is known."""
    expected_end: float | None
    """When training (or an evaluation on its own) is expected to end, if nothing interrupts it."""
    report: str | None
    """The path of the report, if there is one."""
    report_is_old: bool = False
    """Whether there is a report that is older than the newest results."""


# -- upcoming ----------------------------------------------------------------------------------------------------------
# What happens next in a run, and when: from the measured seconds of its iterations, the plan, and the queue.


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
