"""Parquet files of records: one dataclass a row, fields as columns.

A field with a default is a column only where a row differs. So a new field leaves files without it unchanged, and older
files are read as if they had it.
"""

import dataclasses
import types
import typing
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mrt_hpc.errors import UserError
from mrt_hpc.run.manifest import DamagedError, is_of_the_filesystem

Record = TypeVar("Record")

LENGTH_OF = "length_of"
"""Metadata: the field is the length of the list in the named column."""
MEAN_OF = "mean_of"
"""Metadata: the field is the mean of the list in the named column."""
ROWS_AT_A_TIME = 256
"""Rows in memory together where only some columns are kept."""

_ARROW_TYPES: dict[type, pa.DataType] = {
    int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(),
}  # fmt: skip


@cache
def arrow_schema(record_type: type) -> pa.Schema:
    """The columns of a record; only optional fields may be null."""
    hints = typing.get_type_hints(record_type)
    names = [f.name for f in dataclasses.fields(record_type)]
    return pa.schema(
        [pa.field(n, _arrow_type(hints[n]), typing.get_origin(hints[n]) is types.UnionType) for n in names]
    )


def _arrow_type(hint: Any) -> pa.DataType:
    if typing.get_origin(hint) is types.UnionType:
        (hint,) = [t for t in typing.get_args(hint) if t is not types.NoneType]
    if typing.get_origin(hint) is list:
        return pa.list_(_arrow_type(typing.get_args(hint)[0]))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return pa.string()
    return _ARROW_TYPES[hint]


def write_records(path: Path, records: Sequence[Any], record_type: type) -> None:
    """The caller makes it appear atomically."""
    if records:
        write_table(_table(records, record_type), path)
    else:
        path.write_bytes(_empty_file(record_type))


@cache
def _empty_file(record_type: type) -> bytes:
    """Made once: most groups have empty parts."""
    stream = pa.BufferOutputStream()
    write_table(_table([], record_type), stream)
    content: bytes = stream.getvalue().to_pybytes()
    return content


def _table(records: Sequence[Any], record_type: type) -> pa.Table:
    whole, defaults = arrow_schema(record_type), _defaults(record_type)
    usual = {name for name, value in defaults.items() if all(getattr(r, name) == value for r in records)}
    schema = pa.schema([f for f in whole if f.name not in usual])
    columns = [pa.array([getattr(r, f.name) for r in records], type=f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def write_table(table: pa.Table, to: Path | pa.BufferOutputStream) -> None:
    """Numbers such as log-probabilities hardly repeat, so a dictionary only costs; byte streams make bytes that are
    zero in all numbers vanish.
    """
    leaves = dict(map(_leaf, table.schema))
    split = [name for name, kind in leaves.items() if pa.types.is_floating(kind)]
    pq.write_table(
        table,
        to,
        compression="zstd",
        compression_level=3,
        use_dictionary=[name for name in leaves if name not in split],
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
    )


def _leaf(column: pa.Field) -> tuple[str, pa.DataType]:
    """Parquet's name for a column's values, and the type of the innermost ones."""
    name, kind = column.name, column.type
    while pa.types.is_list(kind):
        name, kind = f"{name}.list.element", kind.value_type
    return name, kind


def read_records(
    source: Path | BytesIO,
    record_type: type[Record],
    where: Path | None = None,
    problems: Collection[str] | None = None,
) -> list[Record]:
    """All records of a parquet file or its content.

    Args:
        where: the content's origin, for messages.
        problems: ids of the wanted problems; None reads all.

    Raises:
        DamagedError: no file of records.
    """
    wanted = None if problems is None else pc.field("problem_id").isin(list(problems))
    table = _read_table(source, where, wanted)
    expected = arrow_schema(record_type)  # type: ignore[arg-type]  # mypy takes no class for hashable
    there = set(table.schema.names)
    defaults = _defaults(record_type)
    if table.schema.names != [name for name in expected.names if name in there or name not in defaults]:
        raise _other_columns(where or source, table.schema.names, str(expected.names))
    enums = _enum_fields(record_type).items()  # type: ignore[arg-type]
    return [record_type(**(row | {name: enum(row[name]) for name, enum in enums})) for row in table.to_pylist()]


def _read_table(source: Path | BytesIO, where: Path | None, filters: pc.Expression | None) -> pa.Table:
    with _tell_damage(where or source):
        if filters is not None:
            return pq.read_table(source, filters=filters)
        with pq.ParquetFile(source) as file:  # of small files it takes half the time
            # most files are small, and threads that wait for each other take longer than one
            return file.read(use_threads=False) if file.metadata.num_rows else file.schema_arrow.empty_table()


@contextmanager
def _tell_damage(where: Path | BytesIO) -> Iterator[None]:
    """Tell a damaged file from one that cannot be read now."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if is_of_the_filesystem(error):
            raise
        raise DamagedError(f"cannot read records: {error}", where=where) from error


def _other_columns(where: object, columns: list[str], expected: str) -> UserError:
    """The error for records of another version of the package."""
    return UserError(
        "these records have other columns than this version writes",
        where=where,
        value=columns,
        expected=expected,
        advice="continue with the version of mrt-hpc that began the run",
    )


def read_part(path: Path, record_type: type[Record]) -> list[Record]:
    """All rows with some columns: a trace of thousands of tokens is not kept for its length."""
    table = read_columns(path, record_type)
    return [record_type(**row) for row in table.to_pylist()]


def read_columns(source: Path | BytesIO, record_type: type[Any], where: Path | None = None) -> pa.Table:
    """A column for each field of a record; one that the file lacks has the default.

    Args:
        record_type: fields are columns, or their lengths (``LENGTH_OF``) or means (``MEAN_OF``).
        where: the content's origin, for messages.
    """
    fields = dataclasses.fields(record_type)
    columns = [_Column(f.name, f.metadata.get(LENGTH_OF), f.metadata.get(MEAN_OF)) for f in fields]
    schema, defaults = arrow_schema(record_type), _defaults(record_type)  # type: ignore[arg-type]
    with _tell_damage(where or source):
        file = pq.ParquetFile(source)
        there = set(file.schema_arrow.names)
        if absent := {c.source for c in columns if c.name not in defaults} - there:
            raise _other_columns(where or source, file.schema_arrow.names, f"also {', '.join(sorted(absent))}")
        wanted = sorted({column.source for column in columns} & there)
        lacking = [kind for column, kind in zip(columns, schema, strict=True) if column.source not in there]
        batches = []
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=wanted):
            usual = {kind.name: pa.array([defaults[kind.name]] * len(batch), kind.type) for kind in lacking}
            arrays = [usual[c.name] if c.name in usual else c.values(batch) for c in columns]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema)


@dataclasses.dataclass(frozen=True)
class _Column:
    """The source of a field."""

    name: str
    counted: str | None
    """The column whose lists' lengths it takes."""
    averaged: str | None
    """The column whose lists' means it takes."""

    @property
    def source(self) -> str:
        return self.counted or self.averaged or self.name

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch[self.source]
        if self.counted is not None:
            return pc.list_value_length(values).cast(pa.int64())
        return values if self.averaged is None else _means(values)


def _means(lists: pa.ListArray) -> pa.Array:
    """The mean of each list; 0 of an empty one."""
    of = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    sums = np.bincount(of, weights=pc.list_flatten(lists).to_numpy(zero_copy_only=False), minlength=len(lists))
    return pa.array(sums / np.maximum(np.bincount(of, minlength=len(lists)), 1))


def _defaults(record_type: type) -> dict[str, Any]:
    fields = dataclasses.fields(record_type)
    made = {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    return made | {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


@cache
def _enum_fields(record_type: type[Any]) -> dict[str, type[StrEnum]]:
    hints = typing.get_type_hints(record_type)
    return {n: h for n, h in hints.items() if isinstance(h, type) and issubclass(h, StrEnum)}
