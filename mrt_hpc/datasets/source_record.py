"""The record beside a prepared data file: its source with revision and checksums, and how it was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict

from mrt_hpc.errors import word
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.typed_file import read_typed

if TYPE_CHECKING:
    from pathlib import Path


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileChecksum(_Model):
    """A file of the source."""

    name: str
    sha256: str


class ColumnNames(_Model):
    """The columns that were read; ``id`` is null where ids were made, ``choices`` where the problems have none."""

    problem: str
    answer: str
    id: str | None
    choices: str | None


class SourceRecord(_Model):
    """Where a data file is from. It holds no time and no place of this machine: the same input gives the same bytes."""

    source: str
    """As it was typed."""
    revision: str | None
    """The commit of a data set of the hub."""
    config: str | None
    split: str | None
    files: list[FileChecksum]
    columns: ColumnNames
    rows: int
    """The number of rows of the source."""
    problems: int
    """The number of problems in the data file."""
    dropped: int
    """The number of rows that made no problem."""
    kept: str | None = None
    """The rows that were taken, in words; null for all."""
    sample_seed: int | None = None
    """The seed of a sample; null where all problems were taken."""
    sampled_of: int | None = None
    """The number of problems that the sample was drawn from."""
    sha256: str
    """Of the data file."""
    mrt_hpc_version: str

    def write(self, path: Path) -> None:
        """Write the record to ``path`` in one step."""
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record in ``path``.

        Raises:
            FileNotFoundError: there is none.
            UnreadableError: it is no file, or holds something else.
        """
        advice = f"rm -r {word(path)}, or prepare the data file again: mrt-hpc data prepare SOURCE OUT --force"
        return read_typed(path, cls, "the record of a data file", advice=advice)


def record_file(path: Path) -> Path:
    """The place of the record of a data file."""
    return path.with_name(f"{path.name}.source.json")
