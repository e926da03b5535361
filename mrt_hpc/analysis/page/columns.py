"""Columns and tables that several sections share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.analysis.page.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mrt_hpc.analysis.page.content import RunRecord

RUN = Column("run", numeric=False)
VERSION = Column("version")


def name_before(records: Sequence[RunRecord], record: RunRecord) -> str:
    """The name of a run before a sentence about it, where there are several runs."""
    return "" if len(records) == 1 else f"{record.name}: "


def by_run(caption: str, records: Sequence[RunRecord], rows: Mapping[str, Sequence[str]]) -> Table:
    """A column each run."""
    columns = (Column("", numeric=False), *(Column(record.name, numeric=False) for record in records))
    return Table(caption, columns, tuple((name, *values) for name, values in rows.items()))
