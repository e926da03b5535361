"""One look at a run: its tasks' records beside the queues' answers, and the resulting state.

All commands that show runs read them here, so that they never disagree.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Self

from mrt_hpc.attempt.early_end import ScriptNotes, notes_of_scripts
from mrt_hpc.attempt.ledger import LOCAL, LocalProcess, cancel_time, comes_after, local_process, shown_process
from mrt_hpc.attempt.run_progress import Records, read_records
from mrt_hpc.backends.backend import Hold, QueuedTask, QueueState
from mrt_hpc.backends.queued_jobs import QueueLook
from mrt_hpc.errors import Advice
from mrt_hpc.plan.jobs import Job, Plan
from mrt_hpc.run.layout import FAMILY, RunLayout
from mrt_hpc.run.leases import read_beat, standstill_s
from mrt_hpc.run.retries import Shortage, shortage_at
from mrt_hpc.run.task_state import TaskRecord, TaskState, task_file
from mrt_hpc.run.typed_file import UnreadableError
from mrt_hpc.view.logs import LogFile, log_files

NO_QUEUES = QueueLook({}, {}, {})
"""For runs of which no queue holds a job, or was asked."""


class RunState(StrEnum):
    RUNNING = "running"
    """A task runs."""
    QUEUED = "queued"
    """No task runs; one is queued and starts in its turn, a sweep will come to the run, or tasks were submitted to an
    unreached queue.
    """
    WAITING = "waiting"
    """No task runs, and free resources would start none: all queued ones wait for other jobs, a moment or a person."""
    FINISHED = "finished"
    """All tasks are done."""
    FAILED = "failed"
    """Nothing runs or is queued, and a task failed."""
    STOPPED = "stopped"
    """Nothing runs or is queued, none failed, and work is left."""


IN_WORDS = {
    RunState.RUNNING: "is running",
    RunState.QUEUED: "is queued",
    RunState.WAITING: "waits",
    RunState.FINISHED: "is finished",
    RunState.FAILED: "has failed",
    RunState.STOPPED: "has stopped",
}
"""For sentences that begin with the run."""
ENDED = frozenset({RunState.FINISHED, RunState.FAILED, RunState.STOPPED})
"""A run in these goes on only by another command."""


@dataclass(frozen=True)
class RunLook:
    layout: RunLayout
    plan: Plan
    records: Records
    queues: QueueLook
    process: LocalProcess | None
    """That held the run last, on any machine."""
    unreadable: tuple[str, ...] = ()
    """A line for each unreadable record of a process, submission, cancellation or sweep."""
    cancelled: float | None = None
    """When the user cancelled it, seconds since the epoch; None where not, or submitted since."""
    sweeping: LocalProcess | None = None
    """The local process that runs this run's family one by one, or None."""

    @classmethod
    def load_records(cls, layout: RunLayout, plan: Plan, queues: QueueLook = NO_QUEUES) -> Self:
        """Read the tasks' records; ``queues`` is what the queues said."""
        process, faults = shown_process(layout)
        cancelled = sweeping = None
        try:
            cancelled = cancel_time(layout)
            if ((family := layout.root.parent) / FAMILY).is_file():
                sweeping = local_process(RunLayout(family))
        except UnreadableError as error:
            faults = [*faults, error.line]
        records = read_records(plan, layout)
        return cls(layout, plan, records, queues, process, (*faults, *queues.unreadable), cancelled, sweeping)

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """A line for each unreadable file."""
        lines = [
            f"{job.name} task {n}: {record.message.partition(chr(10))[0]} ({task_file(self.layout, job.name, n)})"
            for job, n, record in self.tasks()
            if record.state is TaskState.UNREADABLE
        ]
        return (*lines, *self.unreadable)

    @cached_property
    def runs_here(self) -> bool:
        """Whether a local process runs or is submitting the plan."""
        return self.process is not None and self.process.is_here

    @cached_property
    def runs_elsewhere(self) -> bool:
        """Whether another machine's process recorded that it runs the plan, and no end. Whether it is lost cannot be
        seen from here.
        """
        if (process := self.process) is None or process.host == socket.gethostname():
            return False
        return read_beat(self.layout.heart(LOCAL, process.generation)).attempt == process.name

    @cached_property
    def queued_tasks(self) -> Mapping[tuple[str, int], QueuedTask]:
        return {(job, one.index): one for job, tasks in self.queues.tasks.items() for one in tasks if not one.has_ended}

    @cached_property
    def listed_tasks(self) -> Mapping[tuple[str, int], QueuedTask]:
        """The queue's word on each task of the latest submission."""
        known = ((job, task) for job, tasks in self.queues.tasks.items() for task in tasks)
        return {(job, task.index): task for job, task in known if task.state is not QueueState.UNKNOWN}

    @cached_property
    def running_tasks(self) -> frozenset[tuple[str, int]]:
        return frozenset((job.name, n) for job, n, record in self.tasks() if self._is_alive(job.name, n, record))

    def record_of(self, job: str, index: int) -> TaskRecord:
        """A task that the plan no longer has counts as waiting."""
        tasks = self.records.get(job, ())
        return tasks[index] if index < len(tasks) else TaskRecord(TaskState.WAITING)

    def tasks(self) -> Iterator[tuple[Job, int, TaskRecord]]:
        for job in self.plan.jobs:
            for index, record in enumerate(self.records[job.name]):
                yield job, index, record

    @cached_property
    def tasks_between_attempts(self) -> frozenset[tuple[str, int]]:
        """Tasks that run by the queue and have recorded an end: about to leave the queue, or just restarted."""
        open_states = (TaskState.WAITING, TaskState.RUNNING, TaskState.UNREADABLE)
        return frozenset((job, n) for job, n in self.running_tasks if self.records[job][n].state not in open_states)

    @cached_property
    def jobs_running(self) -> frozenset[str]:
        return frozenset(job for job, _ in self.running_tasks)

    @cached_property
    def jobs_at_work(self) -> frozenset[str]:
        """Jobs with a running task that recorded no end."""
        return frozenset(job for job, _ in self.running_tasks - self.tasks_between_attempts)

    @cached_property
    def jobs_queued(self) -> frozenset[str]:
        return frozenset(job for job, _ in self.queued_tasks)

    @cached_property
    def jobs_done(self) -> frozenset[str]:
        done = TaskState.DONE
        return frozenset(job for job, records in self.records.items() if all(one.state is done for one in records))

    @property
    def logs(self) -> Mapping[tuple[str, int], list[LogFile]]:
        return self._logs_and_faults[0]

    @property
    def unread_logs(self) -> Sequence[str]:
        """A line for each unreadable folder of logs."""
        return self._logs_and_faults[1]

    @cached_property
    def _logs_and_faults(self) -> tuple[dict[tuple[str, int], list[LogFile]], list[str]]:
        logs: dict[tuple[str, int], list[LogFile]] = {}
        faults: list[str] = []
        for log in log_files(self.layout, faults=faults):
            logs.setdefault((log.job, log.index), []).append(log)
        return logs, faults

    @cached_property
    def standstill_s(self) -> Mapping[tuple[str, int], float]:
        """Seconds since the last beat of running tasks whose heart has missed one."""
        ages = {(job, index): standstill_s(self.layout.heart(job, index)) for job, index in self.running_tasks}
        return {task: age for task, age in ages.items() if age is not None}

    @cached_property
    def disk_shortage(self) -> Shortage | None:
        """Shortage of the run's filesystem now: a task that cannot write cannot say so."""
        with suppress(OSError):
            return shortage_at(self.layout.root)
        return None

    @cached_property
    def scripts(self) -> Mapping[tuple[str, int], ScriptNotes]:
        """Notes of the latest attempts' job scripts."""
        latest: dict[tuple[str, int], ScriptNotes] = {}
        for (job, index, attempt), notes in notes_of_scripts(self.layout).items():
            if (job, index) not in latest or comes_after(attempt, latest[job, index].attempt):
                latest[job, index] = notes
        return latest

    def _is_alive(self, job: str, index: int, record: TaskRecord) -> bool:
        """Whether an attempt runs: a lost one's record says so forever."""
        if (task := self.queued_tasks.get((job, index))) is not None:
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
        if all(record.state is TaskState.DONE for _, _, record in self.tasks()):
            return RunState.FINISHED
        if self.running_tasks or self.runs_here or self.runs_elsewhere:
            return RunState.RUNNING
        if self.queued_tasks:
            return RunState.WAITING if all(map(self._is_held, self.queued_tasks)) else RunState.QUEUED
        if any(record.state is TaskState.FAILED for _, _, record in self.tasks()):
            return RunState.FAILED
        return RunState.QUEUED if self._may_be_queued() or self.sweeping is not None else RunState.STOPPED

    def _is_held(self, task: tuple[str, int]) -> bool:
        """Whether a queued task waits for more than its turn."""
        meaning = self.queues.meaning(task[0], self.queued_tasks[task].reason)
        return meaning is not None and meaning.hold is not Hold.RESOURCES

    def _may_be_queued(self) -> bool:
        """Whether jobs with work left were submitted to an unreached queue."""
        unasked = self.queues.ids.keys() - self.queues.tasks.keys()
        return any(job.name in unasked and record.state is not TaskState.DONE for job, _, record in self.tasks())

    @property
    def again(self) -> str:
        """What lets the run go on."""
        if self.layout.recipe_lock.is_file():
            return f"{self.layout.again} continues the run"
        return f"{self.layout.recipe_lock} is restored from a backup, without which the run cannot go on"

    @property
    def has_ended(self) -> bool:
        """Whether only another command continues the run."""
        return self.state in ENDED


def end_in_words(layout: RunLayout, state: RunState) -> str:
    """The last sentence of a command that showed a run to its end, with the next command."""
    command = "report" if state is RunState.FINISHED else "explain"
    return f"the run {IN_WORDS[state]}; next: {Advice('mrt-hpc {command} {run}', command=command, run=layout.root)}"
