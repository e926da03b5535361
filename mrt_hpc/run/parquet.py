"""Parquet files of records: a dataclass a row, its fields the columns.

A field with a default is a column only where a row differs from the default. So a field that is added to a record
leaves the files of all rows without it as they were, and older files are read as if they had it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from mrt_hpc.errors import UserError
from mrt_hpc.run.manifest import DamagedError, is_of_the_filesystem

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import BytesIO
    from pathlib import Path

Record = TypeVar("Record")

_ARROW_TYPES: dict[type, pa.DataType] = {
    int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_(),
}  # fmt: skip


def arrow_schema(record_type: type) -> pa.Schema:
    """The columns of a record dataclass; optional fields may hold nulls, all others may not."""
    hints = typing.get_type_hints(record_type)
    return pa.schema([_arrow_field(f.name, hints[f.name]) for f in dataclasses.fields(record_type)])


def _arrow_field(name: str, hint: Any) -> pa.Field:
    if typing.get_origin(hint) is types.UnionType:
        (inner,) = [t for t in typing.get_args(hint) if t is not types.NoneType]
        return pa.field(name, _arrow_type(inner), nullable=True)
    return pa.field(name, _arrow_type(hint), nullable=False)


def _arrow_type(hint: Any) -> pa.DataType:
    if typing.get_origin(hint) is list:
        return pa.list_(_arrow_type(typing.get_args(hint)[0]))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return pa.string()
    return _ARROW_TYPES[hint]


def write_records(path: Path, records: Sequence[Any], record_type: type) -> None:
    """Write a parquet file; the caller makes its appearance atomic."""
    whole, defaults = arrow_schema(record_type), _defaults(record_type)
    usual = {name for name, value in defaults.items() if all(getattr(r, name) == value for r in records)}
    schema = pa.schema([f for f in whole if f.name not in usual])
    columns = [pa.array([getattr(r, f.name) for r in records], type=f.type) for f in schema]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, compression="zstd")


def read_records(source: Path | BytesIO, record_type: type[Record], where: Path | None = None) -> list[Record]:
    """All records of one parquet file.

    Args:
        source: the file, or its content.
        record_type: the dataclass of a row.
        where: the content is from, for messages; a file speaks for itself.

    Raises:
        DamagedError: the file is none of records.
        OSError: it cannot be read just now.
        UserError: its columns are not those of ``record_type``.
    """
    try:
        table = pq.read_table(source)
    except (pa.ArrowException, OSError, ValueError) as error:
        if is_of_the_filesystem(error):
            raise
        raise DamagedError(f"cannot read records: {error}", where=where or source) from error
    expected, defaults = arrow_schema(record_type), _defaults(record_type)
    there = set(table.schema.names)
    if table.schema.names != [name for name in expected.names if name in there or name not in defaults]:
        raise UserError(
            "these records have other columns than this version writes",
            where=where or source,
            value=table.schema.names,
            expected=str(expected.names),
            advice="continue with the version of mrt-hpc that began the run",
        )
    return [record_type(**_with_enums(row, record_type)) for row in table.to_pylist()]


def _defaults(record_type: type) -> dict[str, Any]:
    """The defaults of the fields that have one."""
    fields = dataclasses.fields(record_type)
    made = {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    return made | {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


def _with_enums(row: dict[str, Any], record_type: type[Any]) -> dict[str, Any]:
    for name, enum in _enum_fields(record_type).items():
        row[name] = enum(row[name])
    return row


def _enum_fields(record_type: type[Any]) -> dict[str, type[StrEnum]]:
    hints = typing.get_type_hints(record_type)
    return {n: h for n, h in hints.items() if isinstance(h, type) and issubclass(h, StrEnum)}
