"""Tasks of another role in the segment: whether they run, are queued, or will not run again. Both sources are files:
each task's own record, and its heartbeat.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from mrt_hpc.errors import Advice, ExitCode, UserError, retryable_error
from mrt_hpc.plan.jobs import Job
from mrt_hpc.recipe.sections import Resilience
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Observer
from mrt_hpc.run.task_state import TaskState, read_task

LOOK_EVERY_S = 1.0
"""Between looks at other tasks during a wait."""


Gone = Callable[[tuple[str, ...]], bool]
"""Whether all of these jobs have left their queue (or process) for good. Called often."""


def never_gone(_: tuple[str, ...]) -> bool:
    """The answer where only files tell of other jobs."""
    return False


class PeerStatus(StrEnum):
    QUEUED = "queued"
    """It will run."""
    RUNNING = "running"
    LOST = "lost"
    """It recorded that it runs, and its heartbeat stopped: its node is lost, or it hangs."""
    DONE = "done"
    FAILED = "failed"
    """It will not run again."""


class PeersAwayError(UserError):
    """None of the awaited tasks has run for too long; this one returns its nodes until one does."""

    def __init__(self, why: str, peers: "Peers") -> None:
        super().__init__(
            f"gave the nodes back: {peers.names} {why}",
            advice=Advice(
                "nothing: the task is queued again by itself, and continues when one of those tasks "
                "runs; mrt-hpc status {run} shows why they do not run",
                run=peers.layout.root,
            ),
            exit_code=ExitCode.GIVE_BACK,
        )
        self.awaited = tuple(job.name for job in peers.jobs)


class PeersFailedError(UserError):
    """All awaited tasks failed or their jobs are gone. Their own records name the cause. ``reason`` is what is awaited,
    ``what`` has become of the peers.
    """

    def __init__(self, reason: str, peers: "Peers", advice: str, what: str = "has failed") -> None:
        super().__init__(f"{peers.names} {what}, so this task cannot get {reason}", advice=advice)
        self.awaited = tuple(job.name for job in peers.jobs)


@dataclass(frozen=True)
class Peers:
    layout: RunLayout
    jobs: tuple[Job, ...]
    observer: Observer

    @property
    def names(self) -> str:
        return ", ".join(job.name for job in self.jobs)

    def lives(self) -> dict[tuple[str, int], PeerStatus]:
        return {(job.name, index): self._life(job.name, index) for job in self.jobs for index in range(job.tasks)}

    def _life(self, job: str, index: int) -> PeerStatus:
        record = read_task(self.layout, job, index)
        if record.state is TaskState.RUNNING:
            beats = self.observer.living_attempt(self.layout.heart(job, index)) == record.attempt
            return PeerStatus.RUNNING if beats else PeerStatus.LOST
        ended = {TaskState.DONE: PeerStatus.DONE, TaskState.FAILED: PeerStatus.FAILED}
        return ended.get(record.state, PeerStatus.QUEUED)


@dataclass
class PeerWait:
    """Watches other tasks during a wait, and ends it when it costs more than it can bring."""

    peers: Peers
    limits: Resilience
    reason: str
    """What is awaited, for messages."""
    gone: Gone = never_gone
    _began: float = field(default_factory=time.monotonic, init=False)
    _next_look: float = field(default=0.0, init=False)
    _none_running_since: float | None = field(default=None, init=False)

    def check(self) -> None:
        """Refuse to wait on for peers that failed, are gone or ended without a result; return the nodes where none ran
        or brought anything for too long.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        lives = set(self.peers.lives().values())
        if PeerStatus.RUNNING in lives:
            self._none_running_since = None
            if (minutes := (now - self._began) / 60) > self.limits.stall_limit_minutes:
                raise UserError(
                    f"gave the nodes back: {self.peers.names} has not produced {self.reason} in {minutes:.1f} minutes",
                    advice=Advice(
                        "nothing: the task is queued again by itself; mrt-hpc status {run}", run=self.peers.layout.root
                    ),
                    exit_code=ExitCode.GIVE_BACK,
                )
            return
        self._none_running_since = self._none_running_since if self._none_running_since is not None else now
        self._give_up(lives, now - self._none_running_since)

    def _give_up(self, lives: set[PeerStatus], waited_s: float) -> None:
        status = Advice("mrt-hpc status {run}", run=self.peers.layout.root)
        if lives == {PeerStatus.FAILED}:
            raise PeersFailedError(self.reason, self.peers, status)
        if lives <= {PeerStatus.DONE, PeerStatus.FAILED} and waited_s > self.limits.heartbeat_limit_s:
            raise retryable_error(
                f"{self.peers.names} has ended, so this task cannot get {self.reason}",
                advice=Advice("{status}, and mrt-hpc submit RUN", status=status),
            )
        if self.gone(tuple(job.name for job in self.peers.jobs)):
            what = "has left the queue and will not start again"
            raise PeersFailedError(self.reason, self.peers, f"{status}, and mrt-hpc submit RUN", what)
        if waited_s > self.limits.wait_limit_minutes * 60:
            why = f"has not run for {waited_s / 60:.1f} minutes, and {self.reason} can come from it only"
            raise PeersAwayError(why, self.peers)
