"""The record of a forked run: the run and the weights version that it began with, the changes of its recipe, and
whether the data files are as they were.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.typed_file import Whole, read_if_there


@dataclass(frozen=True)
class ForkedData:
    """A data file that the recipes of both runs name."""

    field: str
    """``data`` for the training data, or the name of a benchmark, as in ``benchmark math500``."""
    path: str
    """The file."""
    old: str
    """SHA-256 of the items of the file when the first run began, by its own copy."""
    new: str
    """SHA-256 of the items of the file when the forked run began."""

    @property
    def is_changed(self) -> bool:
        """Whether the file has other contents than before."""
        return self.old != self.new


class Changed(TypedDict):
    """A changed field of the recipe."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True)
class ForkRecord:
    """Where a forked run comes from."""

    run: str
    """The run directory, as it was then."""
    recipe: str
    """The name of its recipe."""
    version: Whole
    """The number of the weights version in that run; in the new run they are version 0."""
    digest: str
    """The digest of the weights version."""
    changes: tuple[Changed, ...]
    """Each changed field of the recipe: ``field``, ``old`` and ``new``."""
    data: tuple[ForkedData, ...]
    """The data files that both recipes name."""

    def write(self, layout: RunLayout) -> None:
        """Write the record into the new run."""
        data = [{**asdict(file), "state": "changed" if file.is_changed else "kept"} for file in self.data]
        write_json(layout.forked_from, {**asdict(self), "data": data})

    def in_words(self) -> dict[str, str]:
        """What the report says."""
        changes = (f"{c['field']} was {json.dumps(c['old'])} and is {json.dumps(c['new'])}" for c in self.changes)
        files = (f"{file.path} has other contents ({file.field})" for file in self.data if file.is_changed)
        return {
            "forked from": f"{self.run}, weights version {self.version} (digest {self.digest[:12]})",
            "changed in the fork": "; ".join([*changes, *files]) or "nothing",
        }


def read_fork(layout: RunLayout) -> ForkRecord | None:
    """Where a run comes from; None for one that is no fork.

    Raises:
        UnreadableError: the record is damaged.
    """
    advice = f"restore it from a backup, or remove it: mrt-hpc status {layout.word} works without it"
    return read_if_there(layout.forked_from, ForkRecord, "the record of the fork", None, advice=advice)
