"""Makes a data file of the schema of runs from a source with columns of its own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mrt_hpc
from mrt_hpc.datasets.columns import (
    Asked,
    BadRowError,
    Columns,
    answer_text,
    find_columns,
    id_text,
    problem_text,
    value_of,
)
from mrt_hpc.datasets.repository import Selection
from mrt_hpc.datasets.rows import read_rows
from mrt_hpc.datasets.source_record import ColumnNames, FileChecksum, SourceRecord, record_file
from mrt_hpc.datasets.sources import Source, open_source
from mrt_hpc.errors import UserError
from mrt_hpc.run.atomic import checksums, write_text
from mrt_hpc.run.data import problem_lines
from mrt_hpc.run.records import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mrt_hpc.datasets.rows import Row


@dataclass(frozen=True)
class Order:
    """What to prepare."""

    source: str
    output: Path
    selection: Selection = field(default_factory=Selection)
    columns: Asked = field(default_factory=Asked)
    drop_bad: bool = False
    """Whether rows that make no problem are left out; otherwise the first of them is an error."""
    force: bool = False
    """Whether an output that is there is replaced."""


@dataclass(frozen=True)
class BadRow:
    """A row that makes no problem."""

    where: str
    reason: str


@dataclass(frozen=True)
class Prepared:
    """A data file that was written."""

    output: Path
    record: SourceRecord
    dropped: tuple[BadRow, ...]


@dataclass(frozen=True)
class _Parsed:
    problems: tuple[Problem, ...]
    bad: tuple[BadRow, ...]


def prepare(order: Order) -> Prepared:
    """Read a source and write the data file, with the record of the source beside it.

    The record is written first: if the command is stopped between the two, the same command still makes the data file.

    Raises:
        UserError: the output is there already, the source or its columns cannot be read, or a row makes no problem.
    """
    _refuse_existing(order)
    source = open_source(order.source, order.selection)
    _refuse_itself(order.output, source)
    rows = [row for file in source.files for row in read_rows(file)]
    columns = find_columns(_names(rows, order.source), order.columns)
    parsed = _parsed(rows, columns, order.output.stem)
    _refuse_bad(order, parsed)
    text = problem_lines(parsed.problems)
    record = _record(source, columns, rows, parsed, text)
    record.write(record_file(order.output))
    write_text(order.output, text)
    return Prepared(order.output, record, parsed.bad)


def _refuse_existing(order: Order) -> None:
    if order.output.exists() and not order.force:
        raise UserError(
            "the output is there already", value=str(order.output), advice="name another, or replace it with --force"
        )


def _refuse_itself(output: Path, source: Source) -> None:
    if output.exists() and any(output.samefile(file.path) for file in source.files):
        raise UserError("the output would replace the source", value=str(output), advice="name another output")


def _names(rows: Iterable[Row], source: str) -> list[str]:
    """All columns, in the order in which rows name them."""
    names = list(dict.fromkeys(str(name) for row in rows if isinstance(row.value, dict) for name in row.value))
    if not names:
        raise UserError("the source holds no rows with columns", where=source, advice="name another source")
    return names


def _parsed(rows: Sequence[Row], columns: Columns, stem: str) -> _Parsed:
    problems: dict[str, Problem] = {}
    bad: list[BadRow] = []
    for number, row in enumerate(rows):
        try:
            problem = _problem(row, columns, f"{stem}-{number}")
            if problem.id in problems:
                raise BadRowError(f"{columns.id} repeats the value {problem.id!r} of an earlier row")
        except BadRowError as error:
            bad.append(BadRow(row.where, str(error)))
        else:
            problems[problem.id] = problem
    return _Parsed(tuple(problems.values()), tuple(bad))


def _problem(row: Row, columns: Columns, new_id: str) -> Problem:
    """The problem of a row; a new id counts the rows of the source, so that a row left out changes no other id."""
    if not isinstance(row.value, dict):
        raise BadRowError(f"the row is of type {type(row.value).__name__}: it takes an object with columns")
    return Problem(
        id=new_id if columns.id is None else id_text(value_of(row.value, columns.id), columns.id),
        problem=problem_text(value_of(row.value, columns.problem), columns.problem),
        answer=answer_text(value_of(row.value, columns.answer), columns.answer),
    )


def _refuse_bad(order: Order, parsed: _Parsed) -> None:
    if parsed.bad and not order.drop_bad:
        first = parsed.bad[0]
        others = f"; {len(parsed.bad) - 1} more rows make none" if len(parsed.bad) > 1 else ""
        repeated = "repeats the value" in first.reason
        raise UserError(
            f"a row makes no problem: {first.reason}{others}",
            where=first.where,
            advice=("give every row a new id with --new-ids, or " if repeated else "correct the source, or ")
            + "leave such rows out with --drop-bad",
        )
    if not parsed.problems:
        raise UserError("no row makes a problem", where=order.source, advice="name the columns: --problem, --answer")


def _record(source: Source, columns: Columns, rows: Sequence[Row], parsed: _Parsed, text: str) -> SourceRecord:
    sums = checksums([file.path for file in source.files])
    return SourceRecord(
        source=source.name,
        revision=source.commit,
        config=source.part.config if source.part else None,
        split=source.part.split if source.part else None,
        files=[FileChecksum(name=file.name, sha256=sha) for file, sha in zip(source.files, sums, strict=True)],
        columns=ColumnNames(problem=columns.problem, answer=columns.answer, id=columns.id),
        rows=len(rows),
        problems=len(parsed.problems),
        dropped=len(parsed.bad),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        mrt_hpc_version=mrt_hpc.__version__,
    )
