"""What a role gets: its place in the plan, the recipe, the run directory, and ways to wait for other tasks."""

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
from mrt_hpc.run.events import EventKind, EventLog, Use
from mrt_hpc.run.groups import complete_groups
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Holder, Observer
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.process import end_or_kill
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.retries import list_directory, retry_action, wait_until
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.turns import Turn, remove_abandoned

T = TypeVar("T")

log = logging.getLogger(__name__)

LONGEST_LOOK_S = 0.25
"""Between two looks at the run directory while another task works: short beside an iteration, long for a shared
filesystem.
"""


@dataclass(frozen=True)
class Task:
    """One attempt at one array task (one of its processes, if several)."""

    layout: RunLayout
    experiment: Experiment
    """Of the run, or of a separate evaluation."""
    plan: Plan
    job: Job
    index: int
    """Within the array of its job."""
    rank: int
    """Of this process; ``world_size`` for the sampling process of a colocated task."""
    world_size: int
    local_rank: int
    attempt: str
    """Unique to this attempt, shared by its ranks."""
    events: EventLog
    observer: Observer
    time_left_s: float | None = None
    """When the attempt began; None without a limit."""
    gone: Gone = never_gone
    """Whether other tasks' jobs have left the queue, which no file of the run says."""
    shutdown: ShutdownRequest = field(default_factory=ShutdownRequest)
    turn: Turn = field(default_factory=Turn)
    """On the task's GPUs, where another of its processes uses them too."""
    companion: "Companion | None" = None
    """The sampling process, on the first rank of a colocated task; else None."""
    _began: float = field(default_factory=time.monotonic, init=False)

    @property
    def recipe(self) -> Recipe:
        if not isinstance(self.experiment, Recipe):
            raise TypeError(f"{self.job.role} belongs to an evaluation on its own, which trains nothing")
        return self.experiment

    @property
    def iterations(self) -> range:
        return self.job.iterations

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float:
        """The time to the limit; infinite without one."""
        return inf if self.time_left_s is None else self._began + self.time_left_s - time.monotonic()

    @property
    def holder(self) -> Holder:
        """This attempt, as its leases name it."""
        return Holder(self.layout.root, self.job.name, self.index, self.attempt)

    @property
    def log_stem(self) -> str:
        return f"{self.job.name}.{self.index:05d}.{self.attempt}"

    def log(self, what: str) -> Path:
        """A log for something that this attempt owns, such as its server."""
        return self.layout.logs / f"{self.log_stem}.{what}.log"

    def peers(self, role: Role, iterations: range | None = None) -> Peers:
        """Tasks of a role working on any of these iterations; default: this segment's."""
        wanted = self.iterations if iterations is None else iterations
        jobs = tuple(j for j in self.plan.jobs if j.does(role) and any(i in wanted for i in j.iterations))
        return Peers(self.layout, jobs, self.observer)

    def peer_wait(self, reason: str, producers: Peers) -> PeerWait:
        """Watches the producers of what this task will wait for."""
        return PeerWait(producers, self.experiment.resilience, reason, self.gone)

    def spend(self, use: Use) -> None:
        """Record the use of this task's time from now on; only the first rank and a colocated sampling process do."""
        if self.rank in (0, self.world_size):
            self.events.spend(use)

    def wait_for_peers(self, wait: PeerWait, condition: Callable[[], T | None]) -> T:
        """Wait for other roles of the segment. The caller says afterwards what its time is used for (:meth:`spend`).

        Raises:
            UserError: the producers failed, or brought nothing for too long and this task returns its nodes; or the
                companion ended.
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
        if self.companion is None or self.shutdown.is_given:
            return
        if self.companion.was_stopped:
            self.shutdown.interrupt(Interrupted(128 + SIGTERM))
        self.companion.check()

    def set_aside(self, paths: Sequence[Path], reason: str) -> None:
        for path in self.retry(lambda: set_aside(self.layout, paths, reason), "what is set aside"):
            self.events.emit(EventKind.SET_ASIDE, path=str(path), reason=reason)

    def retry(self, action: Callable[[], T], what: str) -> T:
        """Use the run directory; wait on a full disk, and repeat after temporary errors. A disk that stayed full too
        long makes the task return its nodes.
        """
        return retry_action(action, what, self.events.patience)

    def reopen(self, tasks: Iterable[tuple[str, int]], why: str) -> None:
        """Record that results of these tasks (job and index) are damaged: finished tasks count as failed, and tasks
        that wait for them end. The same submit command runs them again.
        """
        for job, index in tasks:
            if read_task(self.layout, job, index).state is TaskState.DONE:
                log.warning("task %d of %s has to be run again: %s", index, job, why)
                again = TaskRecord(TaskState.FAILED, message=why)
                self.retry(partial(write_task, self.layout, job, index, again), "the state of a task")


# The two processes of a colocated task: the first rank of the trainer, and its companion, which samples.
#
# They take turns on the GPUs of the task. The companion is a child of the first rank and ends with it.


TURN = ".turn"
"""Suffix of turn files."""
END_DEADLINE_S = 20.0
"""For the companion to end its server after SIGTERM, before it is killed."""
STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""The companion's exit codes after SIGTERM, before and after it has handlers."""


def turn_of(task: Task) -> Turn:
    """A file on a local disk, new for each attempt."""
    folder, name = _turns_of(task)
    return Turn(folder / f"{name}.{task.attempt}{TURN}")


def remove_earlier_turns(task: Task) -> None:
    """Killed attempts may have left turn files on this node."""
    (folder, name), mine = _turns_of(task), turn_of(task).path
    remove_abandoned(path for path in list_directory(folder, f"{name}.*{TURN}") if path != mine)


def _turns_of(task: Task) -> tuple[Path, str]:
    """The folder of the task's turn files, and the beginning of their names."""
    folder = private_folder(Path(tempfile.gettempdir()), f"mrt-hpc-turns-{os.geteuid()}")
    return folder, f"mrt-hpc-{task.holder.task_digest}"


@dataclass(frozen=True)
class Companion:
    """The sampling process, seen by the first rank."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def was_stopped(self) -> bool:
        return self.process.poll() in STOPPED

    def check(self) -> None:
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
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        self.interrupt()
        end_or_kill(self.process, END_DEADLINE_S)

    def wait_for_end(self) -> None:
        """Wait until it sees the segment's end; else end it."""
        try:
            self.process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.end()
            return
        if self.process.returncode:
            self.check()


# The groups of an iteration as roles see them: which are there, and what happens to damaged ones.


def positions_there(task: Task, iteration: int) -> set[int]:
    """Positions of complete groups. An unreadable archive is set aside."""
    try:
        return sampled_positions(task.layout, iteration)
    except DamagedError as damage:
        task.set_aside([task.layout.group_archive(iteration)], f"a damaged archive: {damage.what}")
        return complete_groups(task.layout.groups(iteration))


def set_group_aside(task: Task, iteration: int, position: int, damage: DamagedError) -> None:
    """Move a damaged group away for resampling; other groups of its archive are unpacked and stay."""
    archive, reason = task.layout.group_archive(iteration), f"a damaged group: {damage.what} ({damage.where})"
    if archive.exists():
        task.retry(partial(unpack, task.layout, iteration), f"unpacking {archive}")
        task.set_aside([archive], reason)
    else:
        task.set_aside([task.layout.group(iteration, position)], reason)


# When a segment of training is over, by the files of the run.


STATE = "state"
"""Manifest entry of weights and checkpoints: the name of the state they hold."""


def is_trained(task: Task) -> bool:
    """Whether the segment's last weights version is published and a checkpoint holds that state or a later one."""
    layout, end = task.layout, task.job.end_iteration
    saved = [layout.step_of(path) or 0 for path in list_directory(layout.checkpoints)]
    if not layout.weights_version(end).exists() or max(saved, default=0) < end:
        return False
    return max(saved) > end or _state_of(task, layout.checkpoint(end)) == _state_of(task, layout.weights_version(end))


def _state_of(task: Task, directory: Path) -> str | None:
    try:
        manifest = task.retry(lambda: read_manifest(directory), f"reading {directory}")
    except DamagedError:  # the trainer sets it aside
        return str(directory)
    state: str | None = manifest.about.get(STATE)
    return state
