"""Reads data files that may be wrong: each line that is no problem becomes a finding, and the rest is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.datasets.findings import CheckedFile, Finding, FindingKind, Place
from mrt_hpc.datasets.source_record import SourceRecord, record_file
from mrt_hpc.errors import UserError, word
from mrt_hpc.run.atomic import checksum
from mrt_hpc.run.data import problem_of_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mrt_hpc.run.records import Problem


@dataclass(frozen=True)
class Entry:
    """A problem and its place."""

    place: Place
    problem: Problem


@dataclass(frozen=True)
class LoadedSet:
    """What a data file holds."""

    about: CheckedFile
    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...]
    """Bad lines, and a file that has changed since it was prepared."""

    @property
    def file(self) -> str:
        """The name of the file, as it was typed."""
        return self.about.file


def load(path: Path) -> LoadedSet:
    """Read a data file as far as it can be read.

    Raises:
        UserError: there is no such file.
    """
    if not path.is_file():
        raise UserError(
            "no such data file",
            value=str(path),
            expected="a file of JSON lines",
            advice=f"ls {word(path.parent)}, or mrt-hpc data prepare SOURCE {word(path)}",
        )
    read = list(_lines(path))
    entries = tuple(item for item in read if isinstance(item, Entry))
    faults = [item for item in read if isinstance(item, Finding)]
    if not read:
        faults.append(_of_file(FindingKind.BAD_LINE, path, "the file holds nothing"))
    about = CheckedFile(str(path), len(entries), checksum(path), record_file(path).is_file())
    return LoadedSet(about, entries, (*_changed(path, about), *faults))


def _lines(path: Path) -> Iterator[Entry | Finding]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _read(line, path, number)


def _read(line: bytes, path: Path, number: int) -> Entry | Finding:
    try:
        problem = problem_of_line(line, f"{path}, line {number}")
    except UserError as error:
        refused = f"{error.what}: {error.value!r}"
        return Finding(FindingKind.BAD_LINE, (Place(str(path), number, ""),), refused)
    return Entry(Place(str(path), number, problem.id), problem)


def _changed(path: Path, about: CheckedFile) -> Iterator[Finding]:
    """A finding where the record of the source tells of another content, or cannot be read."""
    if not about.recorded:
        return
    record_path = record_file(path)
    try:
        expected = SourceRecord.read(record_path).sha256
    except UserError as error:
        yield _of_file(FindingKind.CHANGED_FILE, path, f"{record_path.name}: {error.what}: {error.value}")
        return
    if expected != about.sha256:
        told = f"SHA-256 is {about.sha256[:12]}..., {record_path.name} says {expected[:12]}..."
        yield _of_file(FindingKind.CHANGED_FILE, path, told)


def _of_file(kind: FindingKind, path: Path, detail: str) -> Finding:
    return Finding(kind, (Place(str(path), 0, ""),), detail)
