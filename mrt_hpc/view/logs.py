"""The logs of a run: which task and attempt each file is of, the last traceback in it, and the lines that are new.

Without a queue each attempt has files of its own. On Slurm the output of a task is in one file for all its attempts, as
long as its job keeps its id; servers have a file for each attempt on every back end.
"""

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.attempt.run_progress import written
from mrt_hpc.plan.jobs import Role
from mrt_hpc.run.layout import COMPANION_LOG, RunLayout

_OWN = re.compile(r"(?P<job>.+?)\.(?P<index>\d{5})\.(?P<attempt>.+)\.(?P<what>[^.]+)\.log")
_SLURM = re.compile(r"(?P<id>\d+)(?:_(?P<index>\d+))?_(?P<rank>\d+)_log\.(?P<stream>out|err)")
TRACEBACK = "Traceback (most recent call last):"
TAIL_BYTES = 512 * 1024
"""The bytes at the end of a log in which a traceback is looked for."""
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\w+ (INFO|WARNING|ERROR)\b|(INFO|WARNING|ERROR)\b")
"""How a line of a log begins that is no part of a traceback."""
LONGEST_MESSAGE = 20
"""The lines after the first one of an exception's message that are shown."""


@dataclass(frozen=True)
class LogFile:
    """A log, and the task that writes it."""

    path: Path
    job: str
    index: int
    attempt: str | None
    """None where one file is for all attempts."""
    what: str
    """Which of its processes, as ``rank0`` or ``server``."""

    @property
    def is_own(self) -> bool:
        """Whether the role itself writes it, and no server that it has started."""
        return self.what.startswith("rank") or self.what == COMPANION_LOG

    def prefix(self, attempt: str) -> str:
        """What stands before each of its lines where several logs are shown together.

        Args:
            attempt: the present one of the task, for a file that is for all attempts.
        """
        return f"{self.job}[{self.index}] {self.attempt or attempt or '-'} {self.what} | "


def log_files(layout: RunLayout, role: str | None = None) -> Iterator[LogFile]:
    """The logs of a run (of one role); files that are no logs of tasks are passed over."""
    for entry in _entries(layout.logs):
        if entry.is_dir():
            yield from (
                log
                for file in _entries(Path(entry.path))
                if (log := _of_slurm(Path(file.path), entry.name)) is not None and _is_of(log, role)
            )
        elif (log := _of_attempt(Path(entry.path))) is not None and _is_of(log, role):
            yield log


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _of_attempt(path: Path) -> LogFile | None:
    match = _OWN.fullmatch(path.name)
    if match is None:
        return None
    return LogFile(path, match["job"], int(match["index"]), match["attempt"], match["what"])


def _of_slurm(path: Path, job: str) -> LogFile | None:
    match = _SLURM.fullmatch(path.name)
    if match is None:
        return None
    stream = "" if match["stream"] == "out" else ".err"
    return LogFile(path, job, int(match["index"] or 0), None, f"rank{match['rank']}{stream}")


def _is_of(log: LogFile, role: str | None) -> bool:
    """Whether a log is of a role: the job's name ends with it, or with it and the number of a part, or its tasks do
    the work of this role and another.
    """
    words = f"({role}|{Role.COLOCATED})" if role in (Role.INFERENCE, Role.TRAINER) else role
    return role is None or re.fullmatch(rf"(.*\.)?{words}(-\d+)?", log.job) is not None


def last_traceback(logs: Sequence[LogFile]) -> tuple[LogFile, str] | None:
    """The last traceback in these logs, the log that was written last first; None where there is none."""
    for log in sorted(logs, key=lambda log: written(log.path), reverse=True):
        if (text := traceback_in(tail(log.path, TAIL_BYTES))) is not None:
            return log, text
    return None


def tail(path: Path, count: int) -> str:
    """The last bytes of a log as text; empty where it was removed: a user may remove old logs at any time."""
    return _read(path, max(0, _size(path) - count), count).decode(errors="replace")


def traceback_in(text: str) -> str | None:
    """The last traceback of a text with the message of its exception; None where there is none. What stands before each
    of its lines, as the name of a process, is removed.
    """
    lines = text.splitlines()
    begin = max((number for number, line in enumerate(lines) if TRACEBACK in line), default=None)
    if begin is None:
        return None
    prefix = lines[begin].partition(TRACEBACK)[0]
    mine = [line.removeprefix(prefix) for line in lines[begin:]]
    last_frame = 0
    while last_frame + 1 < len(mine) and mine[last_frame + 1].startswith(" "):
        last_frame += 1
    return "\n".join([*mine[: last_frame + 1], *_message(mine[last_frame + 1 :])])


def _message(lines: Sequence[str]) -> Iterator[str]:
    """The message of an exception, which may have several lines."""
    for number, line in enumerate(lines[: LONGEST_MESSAGE + 1]):
        if number and (not line.strip() or _LOGGED.match(line) or TRACEBACK in line):
            return
        yield line


# -- following all logs


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
