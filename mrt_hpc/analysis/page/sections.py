"""The sections of the page and their tables; several runs stand side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mrt_hpc.analysis.page.columns import RUN, VERSION
from mrt_hpc.analysis.page.content import Column, Section, Table, by_directory
from mrt_hpc.analysis.page.costs import costs, faults
from mrt_hpc.analysis.page.results import results
from mrt_hpc.analysis.page.setup import setup
from mrt_hpc.analysis.page.training import learning, progress

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mrt_hpc.analysis.page.content import RunRecord

MODEL = Column("model", numeric=False)
OF_VERSIONS = (VERSION, Column("gain over the first, points"), Column("change from the first, points"))
"""The columns that tell the weights versions of a run apart."""


def sections(records: Sequence[RunRecord]) -> tuple[Section, ...]:
    """All sections of the page but the reader of sample traces."""
    trained = [record for record in records if record.trained]
    directories = by_directory(records)
    return (
        _fitted(results(records), records) if trained else _of_models(results(records)),
        *((_fitted(learning(trained), trained),) if trained else ()),
        *progress(records, trained),
        _fitted(costs(directories), directories),
        _fitted(faults(directories), directories),
        setup(records),
    )


def _fitted(section: Section, records: Sequence[RunRecord]) -> Section:
    """A section whose tables name the run or model in every row only where there are several."""
    if len(records) > 1:
        return section
    return replace(section, tables=tuple(_without(table, {RUN}) for table in section.tables))


def _of_models(section: Section) -> Section:
    """A section whose tables call models by their names alone."""
    named = (_without(table, OF_VERSIONS) for table in section.tables)
    return replace(section, tables=tuple(_renamed(table, RUN, MODEL) for table in named))


def _without(table: Table, columns: Collection[Column]) -> Table:
    kept = [i for i, column in enumerate(table.columns) if column not in columns]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def _renamed(table: Table, before: Column, after: Column) -> Table:
    return replace(table, columns=tuple(after if column == before else column for column in table.columns))
