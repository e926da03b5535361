"""One look at a run: the records of its tasks beside what the queues say, and the state that follows for the whole run.

``status --watch``, ``status --json``, ``runs``, ``explain`` and ``logs --follow`` read a run through it, so that they
never differ about whether it runs.
"""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Self

from mrt_hpc.attempt.ledger import LOCAL, LocalProcess, cancelled_at, local_process, shown_process
from mrt_hpc.attempt.run_progress import Records, read_records
from mrt_hpc.backends.backend import Hold, QueuedTask, QueueState
from mrt_hpc.backends.queued_jobs import QueueLook
from mrt_hpc.plan.jobs import Job, Plan
from mrt_hpc.run.layout import FAMILY, RunLayout
from mrt_hpc.run.leases import read_beat
from mrt_hpc.run.task_state import TaskRecord, TaskState, task_file
from mrt_hpc.run.typed_file import UnreadableError
from mrt_hpc.view.logs import LogFile, log_files

NO_QUEUES = QueueLook({}, {}, {})
"""The look at a run of which no queue holds a job, or was asked."""


class RunState(StrEnum):
    """The state of a whole run."""

    RUNNING = "running"
    """One task or more runs."""
    QUEUED = "queued"
    """No task runs, and at least one is queued and starts in its turn, or a sweep comes to the run in its turn; or
    tasks were submitted, and the queue was not reached.
    """
    WAITING = "waiting"
    """No task runs, and free resources would start none: all queued tasks wait for other jobs, a moment or a person."""
    FINISHED = "finished"
    """All tasks are done."""
    FAILED = "failed"
    """Nothing runs or is queued, and a task has failed."""
    STOPPED = "stopped"
    """Nothing runs or is queued, no task has failed, and work is left."""


IN_WORDS = {
    RunState.RUNNING: "is running",
    RunState.QUEUED: "is queued",
    RunState.WAITING: "waits",
    RunState.FINISHED: "is finished",
    RunState.FAILED: "has failed",
    RunState.STOPPED: "has stopped",
}
"""What a run does, for sentences that begin with it."""
ENDED = frozenset({RunState.FINISHED, RunState.FAILED, RunState.STOPPED})
"""The states after which a run goes on only with another command."""


@dataclass(frozen=True)
class RunLook:
    """A run at one moment."""

    layout: RunLayout
    plan: Plan
    records: Records
    queues: QueueLook
    process: LocalProcess | None
    """The process that held the run last, on any machine."""
    unreadable: tuple[str, ...] = ()
    """A line for each record of a process, a submission, a cancellation or a sweep that cannot be read."""
    cancelled: float | None = None
    """When the user cancelled the run, seconds since the epoch; None where it was not, or has been submitted since."""
    sweeping: LocalProcess | None = None
    """The process of this machine that runs the family of this run, one member after the other; None without."""

    @classmethod
    def at(cls, layout: RunLayout, plan: Plan, queues: QueueLook = NO_QUEUES) -> Self:
        """Read the records of the run's tasks.

        Args:
            layout: of the run.
            plan: of the run.
            queues: what the queues have said about it.
        """
        process, faults = shown_process(layout)
        cancelled = sweeping = None
        try:
            cancelled = cancelled_at(layout)
            if ((family := layout.root.parent) / FAMILY).is_file():
                sweeping = local_process(RunLayout(family))
        except UnreadableError as error:
            faults = [*faults, error.line]
        records = read_records(plan, layout)
        return cls(layout, plan, records, queues, process, (*faults, *queues.unreadable), cancelled, sweeping)

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """A line for each file that cannot be read: records of tasks, of a process, and of submissions."""
        damaged = (
            f"{job.name} task {index}: {record.message.partition(chr(10))[0]} "
            f"({task_file(self.layout, job.name, index)})"
            for job, index, record in self.tasks()
            if record.state is TaskState.UNREADABLE
        )
        return (*damaged, *self.unreadable)

    @cached_property
    def runs_here(self) -> bool:
        """Whether a process of this machine runs the plan, or is just submitting it."""
        return self.process is not None and self.process.is_here

    @cached_property
    def runs_elsewhere(self) -> bool:
        """Whether a process of another machine has recorded that it runs the plan, and no end of it. Whether it is lost
        cannot be seen from here.
        """
        process = self.process
        if process is None or process.host == socket.gethostname():
            return False
        return read_beat(self.layout.heart(LOCAL, process.generation)).attempt == process.name

    @cached_property
    def queued(self) -> Mapping[tuple[str, int], QueuedTask]:
        """The tasks that are queued or run in a queue, by job and index."""
        return {(job, task.index): task for job, tasks in self.queues.tasks.items() for task in tasks if not task.ended}

    @cached_property
    def running(self) -> frozenset[tuple[str, int]]:
        """The tasks of which an attempt runs, by job and index."""
        return frozenset(
            (job.name, index) for job, index, record in self.tasks() if self._is_alive(job.name, index, record)
        )

    def record_of(self, job: str, index: int) -> TaskRecord:
        """The record of a task; one that the plan no longer has counts as waiting."""
        tasks = self.records.get(job, ())
        return tasks[index] if index < len(tasks) else TaskRecord(TaskState.WAITING)

    def tasks(self) -> Iterator[tuple[Job, int, TaskRecord]]:
        """Every task with its job, its index and its record."""
        for job in self.plan.jobs:
            for index, record in enumerate(self.records[job.name]):
                yield job, index, record

    @cached_property
    def jobs_running(self) -> frozenset[str]:
        """The jobs of which a task runs."""
        return frozenset(job for job, _ in self.running)

    @cached_property
    def jobs_queued(self) -> frozenset[str]:
        """The jobs of which a task is queued or runs in a queue."""
        return frozenset(job for job, _ in self.queued)

    @cached_property
    def jobs_done(self) -> frozenset[str]:
        """The jobs of which all tasks are done."""
        return frozenset(
            job for job, records in self.records.items() if all(record.state is TaskState.DONE for record in records)
        )

    @cached_property
    def logs(self) -> Mapping[tuple[str, int], list[LogFile]]:
        """The logs of each task that has some, by job and index."""
        logs: dict[tuple[str, int], list[LogFile]] = {}
        for log in log_files(self.layout):
            logs.setdefault((log.job, log.index), []).append(log)
        return logs

    def _is_alive(self, job: str, index: int, record: TaskRecord) -> bool:
        """Whether an attempt at a task runs: a record of a lost one says so forever."""
        if (task := self.queued.get((job, index))) is not None:
            return task.state is QueueState.RUNNING
        if record.state is not TaskState.RUNNING:
            return False
        if self.runs_here:
            return True
        if job in self.queues.tasks:
            return False  # the queue was reached, and does not hold it
        lost_here = self.process is not None and not self.runs_elsewhere and job not in self.queues.ids
        return not lost_here and read_beat(self.layout.heart(job, index)).attempt == record.attempt

    @cached_property
    def state(self) -> RunState:
        """The state of the whole run."""
        if all(record.state is TaskState.DONE for _, _, record in self.tasks()):
            return RunState.FINISHED
        if self.running or self.runs_here or self.runs_elsewhere:
            return RunState.RUNNING
        if self.queued:
            return RunState.WAITING if all(map(self._is_held, self.queued)) else RunState.QUEUED
        if any(record.state is TaskState.FAILED for _, _, record in self.tasks()):
            return RunState.FAILED
        return RunState.QUEUED if self._may_be_queued() or self.sweeping is not None else RunState.STOPPED

    def _is_held(self, task: tuple[str, int]) -> bool:
        """Whether a queued task waits for something else than its turn."""
        meaning = self.queues.meaning(task[0], self.queued[task].reason)
        return meaning is not None and meaning.hold is not Hold.RESOURCES

    def _may_be_queued(self) -> bool:
        """Whether jobs with work left were submitted to a queue that was not reached."""
        unasked = self.queues.ids.keys() - self.queues.tasks.keys()
        return any(job.name in unasked and record.state is not TaskState.DONE for job, _, record in self.tasks())

    @property
    def ended(self) -> bool:
        """Whether the run goes on only after another command."""
        return self.state in ENDED


def end_in_words(layout: RunLayout, state: RunState) -> str:
    """The sentence with which a command ends that has shown a run to its end, with the next command."""
    command = "report" if state is RunState.FINISHED else "explain"
    return f"the run {IN_WORDS[state]}; next: mrt-hpc {command} {layout.root}"
