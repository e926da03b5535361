"""The findings of a check of data files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """What is wrong."""

    CHANGED_FILE = "changed_file"
    """The file is not the one that its record of the source tells of."""
    BAD_LINE = "bad_line"
    """A line is no problem: a run refuses the file."""
    REPEATED_ID = "repeated_id"
    """Several lines of a file have one id: a run refuses the file."""
    REPEATED_PROBLEM = "repeated_problem"
    """Several lines of a file hold the same problem."""
    SIMILAR_PROBLEM = "similar_problem"
    """Two lines of a file hold nearly the same problem."""
    SHARED_PROBLEM = "shared_problem"
    """Two files hold the same problem."""
    SHARED_SIMILAR_PROBLEM = "shared_similar_problem"
    """Two files hold nearly the same problem."""
    UNREADABLE_ANSWER = "unreadable_answer"
    """The verifier cannot read a gold answer, so that an answer in another spelling is wrong."""
    SPECIAL_TOKEN = "special_token"
    """The text of a problem holds what a tokenizer reads as a special token: a run with such a model refuses the file.
    """


@dataclass(frozen=True)
class Place:
    """A line of a data file."""

    file: str
    line: int
    """Counted from 1; 0 for the whole file."""
    id: str
    """Of the problem; empty where the line has none."""


@dataclass(frozen=True)
class Finding:
    """One finding, with all lines that take part in it."""

    kind: FindingKind
    places: tuple[Place, ...]
    detail: str = ""
    """What stands there, or why it is refused."""
    overlap: float | None = None
    """Of similar problems: the Jaccard similarity of their 5-grams of words."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that take part."""
        return tuple(dict.fromkeys(place.file for place in self.places))


@dataclass(frozen=True)
class CheckedFile:
    """A file that was checked."""

    file: str
    problems: int
    """The number of lines that hold a problem."""
    sha256: str
    recorded: bool
    """Whether a record of its source stands beside it."""


@dataclass(frozen=True)
class CheckReport:
    """All that a check found."""

    files: tuple[CheckedFile, ...]
    against: tuple[CheckedFile, ...]
    """Files that were only compared with."""
    compared: tuple[tuple[str, str], ...]
    """The pairs of files whose problems were compared."""
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def of(self, kind: FindingKind, *files: str) -> list[Finding]:
        """The findings of one kind in a file, or between two files."""
        return [finding for finding in self.findings if finding.kind is kind and set(finding.files) == set(files)]
