"""Logs of a run: each file's task and attempt, the last traceback, and new lines.

Without a queue each attempt has its own files. On Slurm one file has all attempts of a task while its job keeps its id;
servers always have a file for each attempt.
"""

import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mrt_hpc.attempt.run_progress import write_time
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.ownership import file_stream
from mrt_hpc.run.layout import COMPANION_LOG, RunLayout

_OWN = re.compile(r"(?P<job>.+?)\.(?P<index>\d{5})\.(?P<attempt>.+)\.(?P<what>[^.]+)\.log")
_SLURM = re.compile(r"(?P<id>\d+)(?:_(?P<index>\d+))?_(?P<rank>\d+)_log\.(?P<stream>out|err)")
TRACEBACK = "Traceback (most recent call last):"
TAIL_BYTES = 512 * 1024
"""Bytes at a log's end in which a traceback is looked for."""
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\w+ (INFO|WARNING|ERROR)\b|(INFO|WARNING|ERROR)\b")
"""How a log line begins that belongs to no traceback."""
LONGEST_MESSAGE = 20
"""Shown lines of an exception's message after the first."""


@dataclass(frozen=True)
class LogFile:
    path: Path
    job: str
    index: int
    attempt: str | None
    """None where one file is for all attempts."""
    what: str
    """Its process, as ``rank0`` or ``server``."""

    @property
    def is_own(self) -> bool:
        """Whether the role itself writes it, not a server."""
        return self.what.startswith("rank") or self.what == COMPANION_LOG

    def prefix(self, attempt: str) -> str:
        """Before each line where several logs are shown together.

        Args:
            attempt: the task's present one, for a file of all attempts.
        """
        return f"{self.job}[{self.index}] {self.attempt or attempt or '-'} {self.what} | "


def log_files(layout: RunLayout, role: str | None = None, faults: list[str] | None = None) -> Iterator[LogFile]:
    """A run's (or role's) logs; other files are skipped.

    Args:
        faults: gets a line for each unreadable folder.
    """
    faults = [] if faults is None else faults
    for entry in _entries(layout.logs, faults):
        if entry.is_dir():
            yield from (
                log
                for file in _entries(Path(entry.path), faults)
                if (log := _slurm_log(Path(file.path), entry.name)) is not None and _is_of(log, role)
            )
        elif (log := _attempt_log(Path(entry.path))) is not None and _is_of(log, role):
            yield log


def _entries(folder: Path, faults: list[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        faults.append(f"logs cannot be read: {error.strerror or error} ({folder})")
        return []


def _attempt_log(path: Path) -> LogFile | None:
    if (match := _OWN.fullmatch(path.name)) is None:
        return None
    return LogFile(path, match["job"], int(match["index"]), match["attempt"], match["what"])


def _slurm_log(path: Path, job: str) -> LogFile | None:
    if (match := _SLURM.fullmatch(path.name)) is None:
        return None
    stream = "" if match["stream"] == "out" else ".err"
    return LogFile(path, job, int(match["index"] or 0), None, f"rank{match['rank']}{stream}")


def _is_of(log: LogFile, role: str | None) -> bool:
    """Whether a log is of a role: by the job's name, maybe with a part's number, or as its tasks do this role's work
    too.
    """
    words = f"({role}|{Role.COLOCATED})" if role in (Role.INFERENCE, Role.TRAINER) else role
    return role is None or re.fullmatch(rf"(.*\.)?{words}(-\d+)?", log.job) is not None


def last_traceback(logs: Sequence[LogFile]) -> tuple[LogFile, str] | None:
    """The last traceback, searching the latest log first, or None."""
    for log in sorted(logs, key=lambda log: write_time(log.path), reverse=True):
        if (text := traceback_in(tail(log.path, TAIL_BYTES))) is not None:
            return log, text
    return None


def tail(path: Path, count: int) -> str:
    return _read(path, max(0, _size(path) - count), count).decode(errors="replace")


def traceback_in(text: str) -> str | None:
    """The last traceback and its message, or None. Prefixes such as a process's name are removed."""
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
    """The message of an exception; may have several lines."""
    for number, line in enumerate(lines[: LONGEST_MESSAGE + 1]):
        if number and (not line.strip() or _LOGGED.match(line) or TRACEBACK in line):
            return
        yield line


# -- following all logs


BEGIN_WITH = 8
"""The latest logs whose ends are shown first."""
AT_ONCE = 1024 * 1024
"""Bytes that one look reads at most; the next continues there."""


@dataclass(frozen=True)
class LogLine:
    """A log line without its end."""

    log: LogFile
    text: str


@dataclass
class LogFollower:
    """A run's (or role's) logs from now on."""

    layout: RunLayout
    role: str | None
    lines: int
    """Of each log, shown first."""
    _read: dict[Path, int] = field(default_factory=dict, init=False)
    """Bytes read."""
    _begun: bool = field(default=False, init=False)

    def new_lines(self) -> Iterator[LogLine]:
        """New whole lines, by log. The first call returns the ends of the latest logs."""
        logs = list(log_files(self.layout, self.role))
        if not self._begun:
            self._begun = True
            yield from self._ends(logs)
            return
        for log in logs:
            yield from self._new(log)

    def last_lines(self) -> Iterator[LogLine]:
        """The rest when nothing more is written: new lines, and unfinished last ones."""
        while lines := list(self.new_lines()):
            yield from lines
        for log in log_files(self.layout, self.role):
            rest = _read(log.path, self._read.get(log.path, 0), AT_ONCE)
            self._read[log.path] = self._read.get(log.path, 0) + len(rest)
            yield from (LogLine(log, text) for text in rest.decode(errors="replace").splitlines())

    def _ends(self, logs: list[LogFile]) -> Iterator[LogLine]:
        by_time = sorted(logs, key=lambda log: write_time(log.path))
        for log in by_time:
            self._read[log.path] = _size(log.path)
        for log in by_time[-BEGIN_WITH:]:
            begin = max(0, (size := self._read[log.path]) - AT_ONCE)
            text = self._whole(log.path, begin, size - begin).decode(errors="replace").splitlines()
            yield from (LogLine(log, line) for line in deque(text[1 if begin else 0 :], maxlen=self.lines))

    def _new(self, log: LogFile) -> Iterator[LogLine]:
        begin = self._read.get(log.path, 0)
        if _size(log.path) < begin:
            begin = 0  # the file was replaced by a shorter one
        whole = self._whole(log.path, begin, AT_ONCE)
        yield from (LogLine(log, text) for text in whole.decode(errors="replace").splitlines())

    def _whole(self, path: Path, begin: int, count: int) -> bytes:
        """Whole lines from a byte on; one longer than ``count`` is cut."""
        text = _read(path, begin, count)
        whole = text if len(text) == AT_ONCE and b"\n" not in text else text[: text.rfind(b"\n") + 1]
        self._read[path] = begin + len(whole)
        return whole


def _read(path: Path, begin: int, count: int) -> bytes:
    """Some bytes; none where the log is removed, unreadable or no file, as it then says nothing."""
    try:
        with file_stream(path, sys.maxsize) as stream:
            stream.seek(begin)
            return stream.read(count)
    except (OSError, ValueError):
        return b""


def _size(path: Path) -> int:
    """0 where it is removed or unreadable."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
