"""The tables of a run that a program reads: records that have a file each, and the samples of evaluations."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from math import fsum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pyarrow as pa

from mrt_hpc.analysis.measures import Record
from mrt_hpc.run.groups import StoredSample, read_samples
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.parquet import arrow_schema

_SCALARS = {int: pa.int64(), float: pa.float64(), str: pa.string()}


def read_table(paths: Iterable[Path], kind: type[Record]) -> pa.Table:
    """The records in these files, one a row; a file that is not there is left out.

    A field that holds numbers by name is a column ``field.name`` for each name. Numbers of each problem are left out,
    but for those of each budget, whose mean over the problems stands for them.

    Raises:
        UnreadableError: a file is damaged.
    """
    records = []
    for path in paths:
        with suppress(FileNotFoundError):
            records.append(kind.read(path))
    columns: dict[str, pa.Array] = {}
    for name, field in kind.model_fields.items():
        cells = [getattr(record, name) for record in records]
        arrow_type = _arrow_type(field.annotation)
        if arrow_type is not None:
            columns[name] = pa.array(cells, arrow_type)
        elif "problem" not in name:
            for key in dict.fromkeys([*_fixed_names(field.annotation), *(key for cell in cells for key in cell)]):
                columns[f"{name}.{key}"] = pa.array([_number(cell.get(key)) for cell in cells], pa.float64())
    return pa.table(columns)


def _arrow_type(annotation: Any) -> pa.DataType | None:
    """The type of the column of a field; None for a field that holds numbers by name."""
    origin, inner = get_origin(annotation), [part for part in get_args(annotation) if part not in (NoneType, ...)]
    if origin is dict:
        return None
    if origin is tuple:
        return pa.list_(_SCALARS[inner[0]])
    return pa.string() if origin is Literal else _SCALARS[inner[0] if inner else annotation]


def _fixed_names(annotation: Any) -> list[str]:
    """The names that a field always has: those of an enumeration."""
    kind = get_args(annotation)[0]
    return list(kind) if issubclass(kind, StrEnum) else []


def _number(cell: float | Mapping[str, float] | None) -> float | None:
    return fsum(cell.values()) / len(cell) if isinstance(cell, Mapping) else cell


def samples_table(layout: RunLayout, places: Sequence[tuple[int, str]], shards: int) -> pa.Table:
    """The samples of complete shards.

    Args:
        places: the version and the benchmark of each evaluation.
        shards: the number of shards of each.
    """
    about = pa.schema([("version", pa.int64()), ("benchmark", pa.string())])
    stored = arrow_schema(StoredSample).append(pa.field("settings", pa.string()))
    tables = [pa.schema([*about, *stored]).empty_table()]
    for version, benchmark in places:
        for shard in filter(Path.exists, layout.evaluation_shards(version, benchmark, shards)):
            table = read_samples(shard)
            place = [pa.array([version] * len(table), pa.int64()), pa.array([benchmark] * len(table), pa.string())]
            tables.append(pa.Table.from_arrays([*place, *table.columns], schema=tables[0].schema))
    return pa.concat_tables(tables)
