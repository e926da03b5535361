"""Follows all logs of a run: each look returns the lines that were written since the last one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.launch.view.log_files import LogFile, log_files, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout

BEGIN_WITH = 8
"""The number of logs, those written last, whose ends are shown at the begin."""
AT_ONCE = 1024 * 1024
"""The bytes of a log that one look reads at most; the next look continues there."""


@dataclass(frozen=True)
class LogLine:
    """A line of a log, without its end."""

    log: LogFile
    text: str


@dataclass
class LogFollower:
    """The logs of a run (of one role) from now on."""

    layout: RunLayout
    role: str | None
    lines: int
    """The number of lines of each log that are shown at the begin."""
    _read: dict[Path, int] = field(default_factory=dict, init=False)
    """The bytes read of each log."""
    _begun: bool = field(default=False, init=False)

    def new_lines(self) -> Iterator[LogLine]:
        """The whole lines that are new, log by log. The first call returns the ends of the logs written last."""
        logs = list(log_files(self.layout, self.role))
        if not self._begun:
            self._begun = True
            yield from self._ends(logs)
            return
        for log in logs:
            yield from self._new(log)

    def last_lines(self) -> Iterator[LogLine]:
        """What is left when nothing more is written: the new lines, and unfinished last ones."""
        while lines := list(self.new_lines()):
            yield from lines
        for log in log_files(self.layout, self.role):
            rest = _read(log.path, self._read.get(log.path, 0), AT_ONCE)
            self._read[log.path] = self._read.get(log.path, 0) + len(rest)
            yield from (LogLine(log, text) for text in rest.decode(errors="replace").splitlines())

    def _ends(self, logs: list[LogFile]) -> Iterator[LogLine]:
        by_time = sorted(logs, key=lambda log: written(log.path))
        for log in by_time:
            self._read[log.path] = _size(log.path)
        for log in by_time[-BEGIN_WITH:]:
            size = self._read[log.path]
            begin = max(0, size - AT_ONCE)
            whole = self._whole(log.path, begin, size - begin)
            text = whole.decode(errors="replace").splitlines()[1 if begin else 0 :]
            yield from (LogLine(log, line) for line in deque(text, maxlen=self.lines))

    def _new(self, log: LogFile) -> Iterator[LogLine]:
        begin = self._read.get(log.path, 0)
        if _size(log.path) < begin:
            begin = 0  # the file was replaced by a shorter one
        whole = self._whole(log.path, begin, AT_ONCE)
        yield from (LogLine(log, text) for text in whole.decode(errors="replace").splitlines())

    def _whole(self, path: Path, begin: int, count: int) -> bytes:
        """The whole lines from a byte on; a line that is longer than ``count`` is cut."""
        text = _read(path, begin, count)
        whole = text if len(text) == AT_ONCE and b"\n" not in text else text[: text.rfind(b"\n") + 1]
        self._read[path] = begin + len(whole)
        return whole


def _read(path: Path, begin: int, count: int) -> bytes:
    """Some bytes of a log; none where it was removed."""
    try:
        with path.open("rb") as stream:
            stream.seek(begin)
            return stream.read(count)
    except FileNotFoundError:
        return b""


def _size(path: Path) -> int:
    """The bytes of a log; 0 where it was removed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
