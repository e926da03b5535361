"""One run at one moment, as data with a stable shape: ``status --json`` prints it, and ``status``, ``status --watch``
and a run on this machine show it.

Fields are added at need; none is renamed or removed without a new number in ``format``. Times are seconds since the
epoch, durations seconds. What is not known is null.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from mrt_hpc.plan.jobs import Role
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_look import RunState

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
