"""The record of a forked run: its origin, the changes of its recipe, and whether data files changed."""

import json
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from mrt_hpc.errors import Advice
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.typed_file import Whole, read_if_there


@dataclass(frozen=True)
class ForkedData:
    """A data file of both recipes."""

    field: str
    """``data``, or e.g. ``benchmark math500``."""
    path: str
    old: str
    """SHA-256 of the items when the first run began, by its own copy."""
    new: str
    """SHA-256 when the forked run began."""

    @property
    def is_changed(self) -> bool:
        return self.old != self.new


class Changed(TypedDict):
    field: str
    old: Any
    new: Any


@dataclass(frozen=True)
class ForkRecord:
    run: str
    """As it was then."""
    recipe: str
    version: Whole
    """In that run; version 0 in the new one."""
    digest: str
    """Of the weights version."""
    changes: tuple[Changed, ...]
    data: tuple[ForkedData, ...]
    """Named by both recipes."""

    def write(self, layout: RunLayout) -> None:
        data = [{**asdict(file), "state": "changed" if file.is_changed else "kept"} for file in self.data]
        write_json(layout.forked_from, {**asdict(self), "data": data})

    def report_lines(self) -> dict[str, str]:
        """What the report says."""
        changes = (f"{c['field']} was {json.dumps(c['old'])} and is {json.dumps(c['new'])}" for c in self.changes)
        files = (f"{file.path} has other contents ({file.field})" for file in self.data if file.is_changed)
        return {
            "forked from": f"{self.run}, weights version {self.version} (digest {self.digest[:12]})",
            "changed in the fork": "; ".join([*changes, *files]) or "nothing",
        }


def read_fork(layout: RunLayout) -> ForkRecord | None:
    """None for a run that is no fork."""
    advice = Advice("restore it from a backup, or remove it: mrt-hpc status {run} works without it", run=layout.root)
    return read_if_there(layout.forked_from, ForkRecord, "the record of the fork", None, advice=advice)
