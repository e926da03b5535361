"""Reads the rows of a data file: JSON lines, JSON, parquet or CSV, by the ending of its name."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from mrt_hpc.datasets.columns import is_part
from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

ONE_KIND = "a file of JSON lines (.jsonl), JSON (.json), parquet (.parquet) or CSV (.csv); texts also as .gz or .zst"
COMPRESSED = (".gz", ".zst")
"""Endings behind that of a text."""
LARGEST_CSV_FIELD = 2**30
"""Bytes; Python's limit of 128 KiB is shorter than some solutions."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a source."""

    name: str
    """The name in messages and in the record of the source: the path as it was typed, or the place in a repository."""
    path: Path
    """The place on this machine."""


@dataclass(frozen=True)
class Row:
    """A row of a source, before its columns are read."""

    where: str
    """The file, and the line, item or row in it, counted from 1."""
    value: object


def read_rows(file: SourceFile, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of one file, in order.

    Args:
        file: to read.
        columns: the columns that are needed, which saves time and memory where a file has others; None reads all.

    Raises:
        UserError: the ending of the name is unknown, there is no such file, or it is damaged.
    """
    reader = READERS.get(kind_of(file.path.name))
    if reader is None:
        raise UserError("not a kind of data file that can be read", value=file.name, expected=ONE_KIND)
    if not file.path.is_file():
        raise UserError("no such data file", value=file.name, expected=ONE_KIND)
    return reader(file) if columns is None or reader is not _parquet else _parquet(file, columns)


def kind_of(name: str) -> str:
    """The ending that names the kind of a data file, as in ``.jsonl`` of ``rows.jsonl.gz``; a parquet file has no other
    ending behind its own.
    """
    path = PurePath(name.lower())
    inner = PurePath(path.stem).suffix
    return inner if path.suffix in COMPRESSED and inner != ".parquet" else path.suffix


def columns_of(file: SourceFile) -> dict[str, bool]:
    """All columns of one file, in the order in which its rows name them, and whether each holds any text or list.

    Raises:
        UserError: as :func:`read_rows`.
    """
    if READERS.get(kind_of(file.path.name)) is _parquet and file.path.is_file():
        with _reading_parquet(file):
            names = [str(name) for name in pq.read_schema(file.path).names]
        return {name: _holds_text(file, name) for name in names}
    found: dict[str, bool] = {}
    for row in read_rows(file):
        for name, value in row.value.items() if isinstance(row.value, dict) else ():
            found[str(name)] = found.get(str(name), False) or _counts(str(name), value)
    return found


def _holds_text(file: SourceFile, column: str) -> bool:
    """Whether any row of a parquet file has a text or list in a column; its rows are read up to the first."""
    return any(
        isinstance(row.value, dict) and _counts(column, row.value.get(column)) for row in _parquet(file, [column])
    )


def _counts(column: str, value: object) -> bool:
    """Whether a value may belong to the problem: a text or a list; of a column that is named like a part, any."""
    missing = value is None or value == "" or value != value  # NaN, by which a table tells an empty cell
    return _is_text(value) or (is_part(column) and not missing and value is not False)


def _is_text(value: object) -> bool:
    """Whether a value is a list or an object with content, or a text that is no number."""
    if not isinstance(value, str):
        return isinstance(value, (list, dict)) and bool(value)
    try:
        float(value)
    except ValueError:
        return bool(value.strip())
    return False


@contextmanager
def _opened(file: SourceFile) -> Iterator[BinaryIO]:
    """The bytes of a text file, decompressed.

    Raises:
        UserError: it cannot be decompressed whole.
    """
    try:
        ending = file.path.suffix.lower()
        if ending == ".gz":
            with gzip.open(file.path) as unzipped:
                yield cast("BinaryIO", unzipped)
        elif ending == ".zst":
            with pa.input_stream(str(file.path), compression="zstd") as stream:
                yield BufferedReader(stream)
        else:
            with file.path.open("rb") as plain:
                yield plain
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"the file cannot be read whole: {error}", where=file.name, advice="fetch or write the file once more"
        ) from error


def _json_lines(file: SourceFile) -> Iterator[Row]:
    with _opened(file) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                where = f"{file.name}, line {number}"
                yield Row(where, _parsed(line, where))


def _json(file: SourceFile) -> Iterator[Row]:
    """The items of a list, or of the one list in an object. Some tools write JSON lines under this ending, too."""
    with _opened(file) as stream:
        content = stream.read()
    if _is_lines(content):
        yield from _json_lines(file)
        return
    for number, item in enumerate(_items(_parsed(content, file.name), file.name), start=1):
        yield Row(f"{file.name}, item {number}", item)


def _is_lines(content: bytes) -> bool:
    """Whether the first line is an object of its own and more follows."""
    first, _, rest = content.lstrip().partition(b"\n")
    if not (first.startswith(b"{") and rest.strip()):
        return False
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return False
    return True


def _items(value: object, where: str) -> list[object]:
    if isinstance(value, list):
        return value
    lists = {name: part for name, part in value.items() if isinstance(part, list)} if isinstance(value, dict) else {}
    if len(lists) != 1:
        raise UserError(
            "the file has no single list of rows",
            where=where,
            value=sorted(lists) or type(value).__name__,
            expected="a list of objects, or an object with one list of objects",
            advice="write the rows as JSON lines, one object a line, into a file that ends in .jsonl",
        )
    return next(iter(lists.values()))


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"not JSON: {error}", where=where, value=text[:80], advice="fetch or write the file once more"
        ) from error


def _csv(file: SourceFile) -> Iterator[Row]:
    """The rows below the line with the names of the columns."""
    number = 0
    usual = csv.field_size_limit(LARGEST_CSV_FIELD)
    try:
        with _opened(file) as stream:
            text = TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            for number, value in enumerate(csv.DictReader(text, strict=True), start=1):
                if None in value:
                    raise csv.Error("a row has more cells than there are columns")
                yield Row(f"{file.name}, row {number}", value)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(
            f"not a CSV file that can be read: {error}",
            where=f"{file.name}, after row {number}",
            expected="UTF-8 text whose first line names the columns",
            advice="fetch or write the file once more",
        ) from error
    finally:
        csv.field_size_limit(usual)


def _parquet(file: SourceFile, columns: Sequence[str] | None = None) -> Iterator[Row]:
    number = 0
    with _reading_parquet(file), pq.ParquetFile(file.path) as table:
        for batch in table.iter_batches(columns=None if columns is None else list(columns)):
            for value in batch.to_pylist():
                number += 1
                yield Row(f"{file.name}, row {number}", value)


@contextmanager
def _reading_parquet(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise UserError(
            f"not a parquet file that can be read: {error}", where=file.name, advice="fetch or write the file once more"
        ) from error


READERS: dict[str, Callable[[SourceFile], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": _csv,
}
"""The reader of each ending."""
