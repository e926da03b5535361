"""The section of recipe, versions and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.analysis.number_formats import DASH
from mrt_hpc.analysis.page.columns import by_run
from mrt_hpc.analysis.page.content import Column, Listing, Section, Table, by_directory
from mrt_hpc.analysis.page.figures import labelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mrt_hpc.analysis.page.content import RunRecord


def setup(records: Sequence[RunRecord]) -> Section:
    """Recipe, versions and files."""
    directories = by_directory(records)
    summaries = [record.summary for record in directories]
    files = [{file.what: file.path for file in s.files} for s in summaries]
    tables = (
        by_run("Settings", directories, _joined([_settings(record) for record in directories])),
        _models(records),
        by_run("Versions", directories, _joined([s.versions for s in summaries])),
        by_run("Files in the run directory", directories, _joined(files)),
    )
    listings = tuple(
        Listing(labelled(directories, record, "Resolved recipe"), record.recipe)
        for record in directories
        if record.recipe
    )
    return Section("setup", "Recipe and versions", (), tuple(t for t in tables if t.rows), listings=listings)


def _settings(record: RunRecord) -> dict[str, str]:
    summary = record.summary
    if not record.trained:
        return {"recipe": summary.recipe, **summary.settings}
    method = {"algorithm": summary.algorithm, "model": summary.model, "prover": summary.prover or DASH}
    return {"recipe": summary.recipe, **method, **summary.settings}


def _models(records: Sequence[RunRecord]) -> Table:
    """Where the models of evaluations on their own are from."""
    rows = tuple((r.name, r.evaluation, r.summary.model) for r in records if r.evaluation is not None)
    names = ("model", "evaluation", "directory")
    return Table("Models", tuple(Column(name, numeric=False) for name in names), rows)


def _joined(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for one in facts for name in one)
    return {name: [one.get(name, DASH) for one in facts] for name in names}
