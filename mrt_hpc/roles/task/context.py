"""What a role is given: its place in the plan, the recipe, the run directory, and the means to wait for other tasks."""

import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from signal import SIGTERM
from typing import TypeVar

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.jobs import Job, Plan, Role
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.roles.task.peers import Gone, Peers, PeerWait, never_gone
from mrt_hpc.roles.task.shutdown import Interrupted, ShutdownRequest
from mrt_hpc.run.access import private_folder
from mrt_hpc.run.archive import sampled_positions, unpack
from mrt_hpc.run.events import EventKind, EventLog, Use, has_progressed
from mrt_hpc.run.groups import complete_groups
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Holder, Observer
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.process import end_or_kill
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.retries import list_directory, retrying, wait_until
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.turns import Turn, remove_abandoned

T = TypeVar("T")

log = logging.getLogger(__name__)

LONGEST_LOOK_S = 0.25
"""The longest pause between two looks at the run directory while another task works, seconds: short beside an
iteration, long for a shared filesystem.
"""


@dataclass(frozen=True)
class Task:
    """One attempt at one array task (one process of it, where a task has several)."""

    layout: RunLayout
    experiment: Experiment
    """The recipe of the run, or of the evaluation on its own."""
    plan: Plan
    job: Job
    index: int
    """The index of the task within the array of its job."""
    rank: int
    """The rank of this process; ``world_size`` for the process of a colocated task that samples."""
    world_size: int
    """The number of ranks."""
    local_rank: int
    attempt: str
    """A name that only this attempt has; all of its ranks share it."""
    events: EventLog
    observer: Observer
    """Watches the heartbeats of other tasks."""
    time_left_s: float | None = None
    """Seconds to the time limit when the attempt began; None where there is no limit."""
    gone: Gone = never_gone
    """Answers whether the jobs of other tasks have left the queue, which no file of the run can say."""
    shutdown: ShutdownRequest = field(default_factory=ShutdownRequest)
    turn: Turn = field(default_factory=Turn)
    """The turn on the task's GPUs, where another process of the task uses them as well."""
    companion: "Companion | None" = None
    """The process that samples, as the first rank of a colocated task sees it; None in all other processes."""
    _began: float = field(default_factory=time.monotonic, init=False)

    @property
    def recipe(self) -> Recipe:
        """The recipe of a run that trains.

        Raises:
            TypeError: the task belongs to an evaluation on its own.
        """
        if not isinstance(self.experiment, Recipe):
            raise TypeError(f"{self.job.role} belongs to an evaluation on its own, which trains nothing")
        return self.experiment

    @property
    def iterations(self) -> range:
        """The iterations of the segment."""
        return self.job.iterations

    @property
    def age_s(self) -> float:
        """Seconds since the attempt began."""
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float:
        """Seconds to the time limit; infinite where there is none."""
        return inf if self.time_left_s is None else self._began + self.time_left_s - time.monotonic()

    @property
    def has_progressed(self) -> bool:
        """Whether this attempt has produced a result that stays."""
        return has_progressed(self.layout.events, self.job.name, self.index, self.attempt)

    @property
    def holder(self) -> Holder:
        """This attempt, as its leases name it."""
        return Holder(self.layout.root, self.job.name, self.index, self.attempt)

    @property
    def log_stem(self) -> str:
        """The start of the names of this attempt's log files."""
        return f"{self.job.name}.{self.index:05d}.{self.attempt}"

    def log(self, what: str) -> Path:
        """A log file for something that this attempt owns, such as its server."""
        return self.layout.logs / f"{self.log_stem}.{what}.log"

    def peers(self, role: Role, iterations: range | None = None) -> Peers:
        """The tasks of a role that work on any of these iterations; by default on those of this segment."""
        wanted = self.iterations if iterations is None else iterations
        jobs = tuple(job for job in self.plan.jobs if job.does(role) and _overlap(job.iterations, wanted))
        return Peers(self.layout, jobs, self.observer)

    def peer_wait(self, reason: str, producers: Peers) -> PeerWait:
        """What watches the tasks that produce what this task is about to wait for."""
        return PeerWait(producers, self.experiment.resilience, reason, self.gone)

    def spend(self, use: Use) -> None:
        """Record what the time of this task is used for from now on; the first rank of it does, and the process of a
        colocated task that samples.
        """
        if self.rank in (0, self.world_size):
            self.events.spend(use)

    def wait_for_peers(self, wait: PeerWait, condition: Callable[[], T | None]) -> T:
        """Wait for what the tasks of another role of the segment produce. The caller says what its time is used for
        afterwards (:meth:`spend`).

        Raises:
            UserError: the producers have failed; or they do not run, or bring nothing, for longer than the recipe
                allows, and this task gives its nodes back; or the process that samples for a colocated task has ended.
        """

        def check() -> None:
            self._check_companion()
            wait.check()

        def look() -> T | None:
            if not (value := condition()):
                self.spend(Use.WAITING)
            return value

        with self.shutdown.while_waiting():
            return wait_until(look, reason=wait.reason, deadline_s=inf, check=check, longest_pause_s=LONGEST_LOOK_S)

    def _check_companion(self) -> None:
        """End with the process that samples for this one.

        Raises:
            UserError: it has failed, was killed, or gives the nodes back.
        """
        if self.companion is None or self.shutdown.given:
            return
        if self.companion.was_stopped:
            self.shutdown.interrupt(Interrupted(128 + SIGTERM))
        self.companion.check()

    def set_aside(self, paths: Sequence[Path], reason: str) -> None:
        """Move files of the run to ``set_aside``, and record that in the events."""
        for path in self.retrying(lambda: set_aside(self.layout, paths, reason), "what is set aside"):
            self.events.emit(EventKind.SET_ASIDE, path=str(path), reason=reason)

    def retrying(self, action: Callable[[], T], what: str) -> T:
        """Do something to the run directory; a full disk is waited for, and passing errors of the filesystem are tried
        again.

        Raises:
            UserError: the disk stayed full for longer than the recipe allows, and this task gives its nodes back.
        """
        return retrying(action, what, self.events.patience)

    def reopen(self, tasks: Iterable[tuple[str, int]], why: str) -> None:
        """Record that what these tasks (job and index) had finished is damaged: tasks that are done count as failed,
        and tasks that wait for them end. The same submit command then runs them again.
        """
        for job, index in tasks:
            if read_task(self.layout, job, index).state is TaskState.DONE:
                log.warning("task %d of %s has to be run again: %s", index, job, why)
                again = TaskRecord(TaskState.FAILED, message=why)
                self.retrying(partial(write_task, self.layout, job, index, again), "the state of a task")


def _overlap(first: range, second: range) -> bool:
    return max(first.start, second.start) < min(first.stop, second.stop)


# The two processes of a colocated task: the first rank of the trainer, and its companion, which samples.
#
# They take turns on the GPUs of the task. The companion is a child of the first rank and ends with it.


TURN = ".turn"
"""The end of the name of a file of turns."""
END_DEADLINE_S = 20.0
"""Seconds for the companion to end its server after SIGTERM, before it is killed."""
STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Its exit codes after SIGTERM, before and after it has its handlers."""


def turn_of(task: Task) -> Turn:
    """The turn on the GPUs of a colocated task. The file is on a disk of the node, and new for every attempt."""
    return Turn(_turns_folder() / f"{_turns_of(task)}.{task.attempt}{TURN}")


def remove_earlier_turns(task: Task) -> None:
    """Remove what earlier attempts of a task that were killed have left of their turns on this node."""
    mine = turn_of(task).path
    turns = list_directory(_turns_folder(), f"{_turns_of(task)}.*{TURN}")
    remove_abandoned(path for path in turns if path != mine)


def _turns_folder() -> Path:
    return private_folder(Path(tempfile.gettempdir()), f"mrt-hpc-turns-{os.geteuid()}")


def _turns_of(task: Task) -> str:
    """The beginning of the names of the files of a task's turns."""
    return f"mrt-hpc-{task.holder.task_digest}"


@dataclass(frozen=True)
class Companion:
    """The process that samples, as the first rank sees it."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def was_stopped(self) -> bool:
        """Whether it has ended because it was asked to."""
        return self.process.poll() in STOPPED

    def check(self) -> None:
        """Check that it runs; called while the trainer waits for what it samples.

        Raises:
            UserError: it has failed, was killed, or gives the nodes back.
        """
        code = self.process.poll()
        if code is None or code in STOPPED:
            return
        raise UserError(
            f"the process that samples for this task has ended with exit code {code}",
            where=self.log,
            expected="a process that runs until the segment is trained",
            advice="read the end of that log; mrt-hpc submit RUN continues the run",
            exit_code=ExitCode(code) if code in (ExitCode.FATAL, ExitCode.GIVE_BACK) else ExitCode.RETRYABLE,
        )

    def interrupt(self) -> None:
        """Ask it to end."""
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Ask it to end, wait for that, and kill it where it takes too long."""
        self.interrupt()
        end_or_kill(self.process, END_DEADLINE_S)

    def wait_for_end(self) -> None:
        """Wait until it has seen that the segment is over, and end it where it does not.

        Raises:
            UserError: it has failed.
        """
        try:
            self.process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.end()
            return
        if self.process.returncode:
            self.check()


# The groups of an iteration as roles see them: which are there, and what happens to damaged ones.


def positions_there(task: Task, iteration: int) -> set[int]:
    """The positions of the complete groups of an iteration. An archive that cannot be read is set aside."""
    try:
        return sampled_positions(task.layout, iteration)
    except DamagedError as damage:
        task.set_aside([task.layout.group_archive(iteration)], f"a damaged archive: {damage.what}")
        return complete_groups(task.layout.groups(iteration))


def set_group_aside(task: Task, iteration: int, position: int, damage: DamagedError) -> None:
    """Move a damaged group away, so that it can be sampled again. Other groups of its archive are unpacked and stay."""
    archive, reason = task.layout.group_archive(iteration), f"a damaged group: {damage.what} ({damage.where})"
    if archive.exists():
        task.retrying(partial(unpack, task.layout, iteration), f"unpacking {archive}")
        task.set_aside([archive], reason)
    else:
        task.set_aside([task.layout.group(iteration, position)], reason)


# When a segment of training is over, by the files of the run.


STATE = "state"
"""The entry of the manifests of a weights version and a checkpoint with the name of what they hold."""


def is_trained(task: Task) -> bool:
    """Whether the last weights version of the segment is published, and a checkpoint holds the state that the next
    segment continues from: the same, or a later one.
    """
    layout, end = task.layout, task.job.end_iteration
    saved = [layout.step_of(path) or 0 for path in list_directory(layout.checkpoints)]
    if not layout.weights_version(end).exists() or max(saved, default=0) < end:
        return False
    return max(saved) > end or _state_of(task, layout.checkpoint(end)) == _state_of(task, layout.weights_version(end))


def _state_of(task: Task, directory: Path) -> str | None:
    try:
        manifest = task.retrying(lambda: read_manifest(directory), f"reading {directory}")
    except DamagedError:  # the trainer sets it aside
        return str(directory)
    state: str | None = manifest.about.get(STATE)
    return state
