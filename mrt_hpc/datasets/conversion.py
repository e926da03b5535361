"""Makes a data file of the schema of runs from a source with columns of its own."""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict

import mrt_hpc
from mrt_hpc.analysis.measures import Record
from mrt_hpc.datasets.columns import Asked, BadRowError, Columns, find_columns, plain_text, require_read, value_of
from mrt_hpc.datasets.sources import DataSource, Selection, open_source, read_rows
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.run.atomic import checksums, write_text
from mrt_hpc.run.problems import problem_lines
from mrt_hpc.run.records import Problem
from mrt_hpc.run.typed_file import read_typed

# -- sample ------------------------------------------------------------------------------------------------------------
# Takes a part of a data set: the rows up to a value of a column, and a sample that a seed decides.


@dataclass(frozen=True)
class AtMost:
    """Keeps the rows whose number in a column is at most a limit."""

    column: str
    limit: int

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Raises BadRowError where the column holds no whole number."""
        value = value_of(row, self.column)
        try:
            return int(str(value)) <= self.limit
        except ValueError as error:
            raise BadRowError(f"{self.column} is no whole number: {value!r}") from error

    def __str__(self) -> str:
        return f"{self.column} at most {self.limit}"


@dataclass(frozen=True)
class Sample:
    """The problems whose SHA-256 of the seed and the text is smallest.

    It depends on no random generator and on no order of rows. A smaller sample of the same seed is a part of a larger
    one, and no text is taken twice.
    """

    problems: int
    seed: int = 0

    def of(self, problems: Iterable[Problem]) -> list[Problem]:
        """In the order of the problems; all of them where there are too few."""
        smallest = heapq.nsmallest(self.problems, self._keyed(problems))
        return [problem for _, _, problem in sorted(smallest, key=itemgetter(1))]

    def _keyed(self, problems: Iterable[Problem]) -> Iterator[tuple[bytes, int, Problem]]:
        """The first problem of each text, with its key and its number."""
        seen: set[bytes] = set()
        for number, problem in enumerate(problems):
            key = hashlib.sha256(f"{self.seed}\n{problem.problem}".encode()).digest()
            if key not in seen:
                seen.add(key)
                yield key, number, problem


# -- source record -----------------------------------------------------------------------------------------------------
# The record beside a prepared data file: its source with revision and checksums, and how it was read.


class _Strict(Record):
    model_config = ConfigDict(strict=True)


class FileChecksum(_Strict):
    name: str
    sha256: str


class SourceRecord(_Strict):
    """Where a data file is from. It holds no time and no place of this machine: the same input gives the same bytes."""

    source: str
    """As it was typed."""
    revision: str | None
    """The commit of a data set of the hub."""
    config: str | None
    split: str | None
    files: list[FileChecksum]
    columns: Columns
    rows: int
    problems: int
    dropped: int
    """Rows that made no problem."""
    kept: str | None = None
    """The rows that were taken, in words; null for all."""
    sample_seed: int | None = None
    """Null where all problems were taken."""
    sampled_of: int | None = None
    """The number of problems before sampling."""
    sha256: str
    """Of the data file."""
    mrt_hpc_version: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises FileNotFoundError, or UnreadableError where it is no file or holds something else."""
        advice = Advice(
            "rm -r {path}, or prepare the data file again: mrt-hpc data prepare SOURCE OUT --force", path=path
        )
        return read_typed(path, cls, "the record of a data file", advice=advice)


def record_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.source.json")


@dataclass(frozen=True)
class Order:
    source: str
    output: Path
    selection: Selection = field(default_factory=Selection)
    columns: Asked | Columns = field(default_factory=Asked)
    """Columns that are known hold all that problems need, as those of the paper's data sets."""
    drop_bad: bool = False
    """Whether rows that make no problem are left out; otherwise the first of them is an error."""
    force: bool = False
    """Whether an output that is there is replaced."""
    stem: str | None = None
    """The beginning of the ids that are made; None takes the output's name."""
    keep: AtMost | None = None
    """None takes all."""
    sample: Sample | None = None
    """None takes all."""
    problems: int | None = None
    """The number that must come out; None takes any."""
    about: str = ""
    """What is ordered, for a list."""


@dataclass(frozen=True)
class Prepared:
    """A data file that was written."""

    output: Path
    record: SourceRecord
    dropped: tuple[str, ...] = ()
    """The place of each row that made no problem, and why."""
    unread: tuple[str, ...] = ()
    """Columns that hold something and were not read."""
    doubtful: tuple[str, ...] = ()
    """Rows whose solutions have several different boxes."""
    new: bool = True
    """False where the file was there already, made in the same way."""


def prepare(order: Order) -> Prepared:
    """The record of the source is written first: a command stopped between the two can be repeated."""
    if order.output.exists() and not order.force:
        raise UserError(
            "the output is there already", value=str(order.output), advice="name another, or replace it with --force"
        )
    source = open_source(order.source, order.selection)
    if order.output.exists() and any(order.output.samefile(file.path) for file in source.files):
        raise UserError("the output would replace the source", value=str(order.output), advice="name another output")
    columns, unread = _find_columns(source, order)
    rows = _Rows(order, source, columns)
    problems = list(rows.problems()) if order.sample is None else order.sample.of(rows.problems())
    _refuse_wrong(order, rows, len(problems))
    text = problem_lines(problems)
    record = _record(order, rows, text, len(problems))
    order.output.parent.mkdir(parents=True, exist_ok=True)
    record.write(record_file(order.output))
    write_text(order.output, text)
    return Prepared(order.output, record, tuple(rows.bad), tuple(unread), tuple(rows.doubtful))


def _find_columns(source: DataSource, order: Order) -> tuple[Columns, list[str]]:
    """And those that are not read: all rows are looked at, as a column may be missing in the first ones."""
    if isinstance(order.columns, Columns):
        return order.columns, []
    filled: dict[str, bool] = {}
    for _, row in chain.from_iterable(read_rows(file, order.selection) for file in source.files):
        for name, value in row.items() if isinstance(row, dict) else ():
            filled[name] = filled.get(name, False) or _holds_anything(value)
    if not filled:
        raise UserError("the source holds no rows with columns", where=order.source, advice="name another source")
    try:
        columns = find_columns(list(filled), order.columns)
    except UserError as error:
        raise error.reword(error.what, where=order.source) from error
    return columns, require_read([name for name in filled if filled[name]], columns, order.columns.ignored)


def _holds_anything(value: object) -> bool:
    """NaN marks an empty cell of a table."""
    return value is not None and value is not False and value not in ("", [], {}) and value == value


@dataclass
class _Rows:
    """The rows of a source, and what was found while they became problems. One row at a time is held, as large sources
    do not fit the memory of a login node.
    """

    order: Order
    source: DataSource
    columns: Columns
    count: int = 0
    good: int = 0
    bad: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def problems(self) -> Iterator[Problem]:
        needed = self.columns.read + ([self.order.keep.column] if self.order.keep else [])
        known = needed if isinstance(self.order.columns, Columns) else None
        files = self.source.files
        for where, row in chain.from_iterable(read_rows(file, self.order.selection, known) for file in files):
            self.count += 1
            try:
                problem = self._problem(where, row)
            except BadRowError as error:
                self.bad.append(f"{where}: {error}")
                continue
            if problem is not None:
                self.good += 1
                yield problem

    def _problem(self, where: str, row: object) -> Problem | None:
        """None for a row that is not taken. A new id counts the rows of the source, so that a row left out changes no
        other id.
        """
        if not isinstance(row, dict):
            raise BadRowError(f"the row is of type {type(row).__name__}: it takes an object with columns")
        if self.order.keep is not None and not self.order.keep.keeps(row):
            return None
        problem, gold = self.columns.problem_and_gold(row)
        name = f"{self.order.stem or self.order.output.stem}-{self.count - 1}"
        if self.columns.id is not None:
            name = self._id(value_of(row, self.columns.id), self.columns.id)
        if isinstance(self.order.columns, Asked) and self.columns.boxes_differ(row):
            self.doubtful.append(where)
        return Problem(name, problem, gold)

    def _id(self, value: object, column: str) -> str:
        try:
            name = plain_text(value, column)
            if name in self.ids:
                raise BadRowError(f"{column} repeats the value {name!r} of an earlier row")
        except BadRowError as error:
            raise BadRowError(f"{error}: --new-ids gives every row a new one") from error
        self.ids.add(name)
        return name


def _refuse_wrong(order: Order, rows: _Rows, problems: int) -> None:
    """A row that makes no problem, or another number of problems than was ordered."""
    if rows.bad and not order.drop_bad:
        others = f"; {len(rows.bad) - 1} more rows make none" if len(rows.bad) > 1 else ""
        raise UserError(
            f"a row makes no problem: {rows.bad[0]}{others}",
            where=order.source,
            advice="correct the source, or leave such rows out with --drop-bad",
        )
    if not problems:
        raise UserError(
            f"no row makes a problem: {rows.bad[0] if rows.bad else 'none is taken'}",
            where=order.source,
            advice="name the columns: --problem, --answer",
        )
    if order.problems not in (None, problems):
        raise UserError(
            "the source does not hold what its name promises",
            value=f"{problems} problems of {rows.count} rows",
            where=order.source,
            expected=f"{order.problems} problems",
            advice="look whether HF_ENDPOINT names a mirror with other files; or take the part that you mean: "
            "mrt-hpc data prepare SOURCE OUT",
        )


def _record(order: Order, rows: _Rows, text: str, problems: int) -> SourceRecord:
    source = rows.source
    sums = checksums([file.path for file in source.files])
    return SourceRecord(
        source=source.name,
        revision=source.commit,
        config=source.config,
        split=source.split,
        files=[FileChecksum(name=file.name, sha256=sha) for file, sha in zip(source.files, sums, strict=True)],
        columns=rows.columns,
        rows=rows.count,
        problems=problems,
        dropped=len(rows.bad),
        kept=str(order.keep) if order.keep else None,
        sample_seed=order.sample.seed if order.sample else None,
        sampled_of=rows.good if order.sample else None,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        mrt_hpc_version=mrt_hpc.__version__,
    )
