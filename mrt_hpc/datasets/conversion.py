"""Makes a data file of the schema of runs from a source with columns of its own."""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from pydantic import ConfigDict

import mrt_hpc
from mrt_hpc.analysis.measures import Record
from mrt_hpc.datasets.columns import (
    Asked,
    BadIdError,
    BadRowError,
    Choices,
    Columns,
    boxes_differ,
    find_columns,
    gold_answer,
    id_text,
    problem_text,
    unread_columns,
    value_of,
)
from mrt_hpc.datasets.sources import DataSource, Row, Selection, columns_of, open_source, read_rows
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
        heap: list[tuple[int, int, Problem]] = []
        taken: set[int] = set()
        for number, problem in enumerate(problems):
            key = self._key(problem)
            if key in taken or (len(heap) == self.problems and -heap[0][0] <= key):
                continue
            taken.add(key)
            heapq.heappush(heap, (-key, number, problem))
            if len(heap) > self.problems:
                taken.remove(-heapq.heappop(heap)[0])
        return [problem for _, _, problem in sorted(heap, key=lambda entry: entry[1])]

    def _key(self, problem: Problem) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed}\n{problem.problem}".encode()).digest())


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
    columns: Asked = field(default_factory=Asked)
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
    known: bool = False
    """Whether the columns are known to hold all that problems need, as those of the paper's data sets."""


@dataclass(frozen=True)
class BadRow:
    where: str
    reason: str
    of_id: bool = False
    """Whether a new id would mend it."""


@dataclass(frozen=True)
class Prepared:
    """A data file that was written."""

    output: Path
    record: SourceRecord
    dropped: tuple[BadRow, ...]
    unread: tuple[str, ...] = ()
    """Columns with texts or lists that were not read."""
    doubtful: tuple[str, ...] = ()
    """Rows whose solutions have several different boxes."""
    new: bool = True
    """False where the file was there already, made in the same way."""


@dataclass(frozen=True)
class _Parsed:
    problems: tuple[Problem, ...]
    """Of the sample, where there is one."""
    bad: tuple[BadRow, ...]
    rows: int
    good: int
    """Problems before a sample was drawn."""


def prepare(order: Order) -> Prepared:
    """The record of the source is written first: a command stopped between the two can be repeated."""
    _refuse_existing(order)
    source = open_source(order.source, order.selection)
    _refuse_itself(order.output, source)
    filled = _filled_columns(source, order)
    try:
        columns = find_columns(list(filled), order.columns)
    except UserError as error:
        raise error.reword(error.what, where=order.source, advice=error.advice) from error
    unread = [] if order.known else unread_columns(filled, columns, order.columns)
    doubtful: list[str] = []
    parsed = _collect_problems(_outcomes(order, source, columns, doubtful), order.sample)
    _refuse_bad(order, parsed)
    _refuse_other_number(order, parsed)
    text = problem_lines(parsed.problems)
    record = _record(order, source, columns, parsed, text)
    order.output.parent.mkdir(parents=True, exist_ok=True)
    record.write(record_file(order.output))
    write_text(order.output, text)
    return Prepared(order.output, record, parsed.bad, tuple(unread), tuple(doubtful))


def _refuse_existing(order: Order) -> None:
    if order.output.exists() and not order.force:
        raise UserError(
            "the output is there already", value=str(order.output), advice="name another, or replace it with --force"
        )


def _refuse_itself(output: Path, source: DataSource) -> None:
    if output.exists() and any(output.samefile(file.path) for file in source.files):
        raise UserError("the output would replace the source", value=str(output), advice="name another output")


def _filled_columns(source: DataSource, order: Order) -> dict[str, bool]:
    """In the order in which the files name them, and whether each holds any text or list."""
    columns: dict[str, bool] = {}
    for file in source.files:
        for name, filled in columns_of(file).items():
            columns[name] = columns.get(name, False) or filled
    if not columns:
        raise UserError("the source holds no rows with columns", where=order.source, advice="name another source")
    return columns


def _outcomes(
    order: Order, source: DataSource, columns: Columns, doubtful: list[str]
) -> Iterator[Problem | BadRow | None]:
    """A problem, a bad row, or None for a row that is not taken. One row at a time is held, as large sources do not fit
    the memory of a login node. The places of doubtful rows are appended.
    """
    ids: set[str] = set()
    rows = (row for file in source.files for row in read_rows(file, _needed_columns(order, columns)))
    for number, row in enumerate(rows):
        try:
            problem = _problem(row, columns, f"{order.stem or order.output.stem}-{number}", order.keep)
            if columns.id is not None and problem is not None:
                _refuse_repeated(problem, ids, columns.id)
            if problem is not None and not order.known and boxes_differ(_value(row, columns.answer)):
                doubtful.append(row.where)
            yield problem
        except BadRowError as error:
            yield BadRow(row.where, str(error), isinstance(error, BadIdError))


def _value(row: Row, column: str) -> object:
    """None where the row has no such column; BadRowError where it is no object."""
    if not isinstance(row.value, dict):
        raise BadRowError(f"the row is of type {type(row.value).__name__}: it takes an object with columns")
    return value_of(row.value, column)


def _needed_columns(order: Order, columns: Columns) -> list[str] | None:
    """None reads all columns, as a name with a point may reach into one."""
    named = list(dict.fromkeys([*columns.read, *([order.keep.column] if order.keep else [])]))
    return None if any("." in name for name in named) else named


def _refuse_repeated(problem: Problem, ids: set[str], column: str) -> None:
    if problem.id in ids:
        raise BadIdError(f"{column} repeats the value {problem.id!r} of an earlier row")
    ids.add(problem.id)


def _collect_problems(outcomes: Iterable[Problem | BadRow | None], sample: Sample | None) -> _Parsed:
    bad: list[BadRow] = []
    rows = good = 0

    def problems() -> Iterator[Problem]:
        nonlocal rows, good
        for outcome in outcomes:
            rows += 1
            if isinstance(outcome, BadRow):
                bad.append(outcome)
            elif outcome is not None:
                good += 1
                yield outcome

    parsed = tuple(problems()) if sample is None else tuple(sample.of(problems()))
    return _Parsed(parsed, tuple(bad), rows, good)


def _problem(row: Row, columns: Columns, new_id: str, keep: AtMost | None) -> Problem | None:
    """A new id counts the rows of the source, so that a row left out changes no other id."""
    answer = _value(row, columns.answer)
    if keep is not None and not keep.keeps(cast("dict[str, Any]", row.value)):
        return None
    problem = _join_parts(row, columns.problem_columns)
    choices = None if columns.choices is None else Choices.of(_value(row, columns.choices), columns.choices)
    return Problem(
        id=new_id if columns.id is None else id_text(_value(row, columns.id), columns.id),
        problem=problem if choices is None else choices.append_to(problem),
        answer=gold_answer(answer, columns, choices),
    )


def _join_parts(row: Row, names: Sequence[str]) -> str:
    """The parts of a problem below each other; those before the last one may be empty, as a context that few have."""
    before = [(_value(row, name), name) for name in names[:-1]]
    given = [(value, name) for value, name in before if value is not None and str(value).strip()]
    return "\n\n".join(problem_text(value, name) for value, name in [*given, (_value(row, names[-1]), names[-1])])


def _refuse_bad(order: Order, parsed: _Parsed) -> None:
    if parsed.bad and not order.drop_bad:
        first = parsed.bad[0]
        others = f"; {len(parsed.bad) - 1} more rows make none" if len(parsed.bad) > 1 else ""
        of_id = any(row.of_id for row in parsed.bad)
        raise UserError(
            f"a row makes no problem: {first.reason}{others}",
            where=first.where,
            advice="give every row a new id with --new-ids, or leave such rows out with --drop-bad"
            if of_id
            else "correct the source, or leave such rows out with --drop-bad",
        )
    if not parsed.problems:
        raise UserError("no row makes a problem", where=order.source, advice="name the columns: --problem, --answer")


def _refuse_other_number(order: Order, parsed: _Parsed) -> None:
    if order.problems is not None and len(parsed.problems) != order.problems:
        raise UserError(
            "the source does not hold what its name promises",
            value=f"{len(parsed.problems)} problems of {parsed.rows} rows",
            where=order.source,
            expected=f"{order.problems} problems",
            advice="look whether HF_ENDPOINT names a mirror with other files; or take the part that you mean: "
            "mrt-hpc data prepare SOURCE OUT",
        )


def _record(order: Order, source: DataSource, columns: Columns, parsed: _Parsed, text: str) -> SourceRecord:
    sums = checksums([file.path for file in source.files])
    return SourceRecord(
        source=source.name,
        revision=source.commit,
        config=source.config,
        split=source.split,
        files=[FileChecksum(name=file.name, sha256=sha) for file, sha in zip(source.files, sums, strict=True)],
        columns=columns,
        rows=parsed.rows,
        problems=len(parsed.problems),
        dropped=len(parsed.bad),
        kept=str(order.keep) if order.keep else None,
        sample_seed=order.sample.seed if order.sample else None,
        sampled_of=parsed.good if order.sample else None,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        mrt_hpc_version=mrt_hpc.__version__,
    )
