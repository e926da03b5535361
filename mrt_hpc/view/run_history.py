"""What a run's events say, kept up to date: faults, each task's place and weights, and completion times of versions and
shards.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Self

from mrt_hpc.attempt.ledger import comes_after
from mrt_hpc.roles.event_texts import Happenings
from mrt_hpc.run.events import EventKind, EventStream, Process, ProcessEvent
from mrt_hpc.run.layout import RunLayout

_PART, _GROUP = (f'"kind": "{kind}"'.encode() for kind in (EventKind.PART_COMMITTED, EventKind.GROUP_COMMITTED))
SHARDS_KEPT = 20
"""Shards whose times are kept: the newest measure the present rate."""
_VERSION_OF = {EventKind.WEIGHTS_LOADED, EventKind.SERVER_STARTED, EventKind.SERVER_RESTARTED, EventKind.PUBLISHED}
"""Events that tell a task's weights version."""


@dataclass(frozen=True)
class ShardCommitted:
    version: int
    benchmark: str
    shard: int
    began: float
    """The committing attempt's start, seconds since the epoch."""
    ended: float


@dataclass
class TaskNews:
    """A task's latest attempt, by its events."""

    attempt: str
    began: float
    host: str
    time: float
    """Of its last event."""
    version: int | None = None


@dataclass
class RunHistory(Happenings):
    """A run's events so far."""

    tasks: dict[tuple[str, int], TaskNews] = field(default_factory=dict)
    """By job and index."""
    published: dict[int, float] = field(default_factory=dict)
    """Times of versions."""
    shards: deque[ShardCommitted] = field(default_factory=lambda: deque(maxlen=SHARDS_KEPT))

    @classmethod
    def of(cls, layout: RunLayout) -> Self:
        """Of commits, nearly all events, only each task's last is read: it shows life."""
        return cls(EventStream(layout.events, lambda line: _PART not in line and _GROUP not in line))

    def _take(self, recorded: ProcessEvent) -> None:
        super()._take(recorded)
        process, event = recorded.process, recorded.event
        if recorded.kind == EventKind.PUBLISHED:
            self.published[event["version"]] = recorded.time
        if process is None or process.rank != 0:
            return
        news = self._news(process, recorded)
        if recorded.kind in _VERSION_OF and event.get("version") is not None:
            news.version = event["version"]
        if recorded.kind == EventKind.SHARD_COMMITTED:
            version, benchmark, shard = (event[name] for name in ("version", "benchmark", "shard"))
            self.shards.append(ShardCommitted(version, benchmark, shard, news.began, recorded.time))

    def _news(self, process: Process, recorded: ProcessEvent) -> TaskNews:
        """Updated by one of its events."""
        key, host = (process.job, process.index), str(recorded.event.get("host", ""))
        news = self.tasks.get(key)
        if news is None or _is_later(process.attempt, recorded.time, news):
            news = self.tasks[key] = TaskNews(process.attempt, recorded.time, host, recorded.time)
        elif news.attempt != process.attempt:
            return TaskNews(process.attempt, recorded.time, host, recorded.time)  # of an earlier attempt, read late
        news.time = max(news.time, recorded.time)
        return news

    def attempts_of(self, job: str, index: int) -> int:
        """Attempts begun, by file names."""
        names = self.stream.processes()
        return len({attempt.attempt for attempt in names if (attempt.job, attempt.index) == (job, index)})


def _is_later(attempt: str, time: float, news: TaskNews) -> bool:
    """Whether an attempt is later than the news, maybe by another clock."""
    if comes_after(attempt, news.attempt) or comes_after(news.attempt, attempt):
        return comes_after(attempt, news.attempt)
    return attempt != news.attempt and time >= news.time
