"""Parquet shards of records: written whole, committed once, read back strictly.

A shard of an iteration is a directory of rollouts, their branches and their cost, so that all three appear in one step;
a shard of an evaluation is one file.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import types
import typing
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from mrt_hpc.recipe.errors import ExitCode, UserError
from mrt_hpc.run.atomic import commit_directory, creating, is_temporary, temporary_sibling
from mrt_hpc.run.records import Branch, Rollout, ShardStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Record = TypeVar("Record")

ROLLOUTS, BRANCHES, STATISTICS = "rollouts.parquet", "branches.parquet", "statistics.json"


@dataclasses.dataclass(frozen=True)
class IterationShard:
    """What one inference task sampled for one iteration."""

    rollouts: list[Rollout]
    branches: list[Branch]
    statistics: ShardStatistics


_ARROW_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string()}


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


def commit_iteration_shard(
    path: Path, rollouts: Sequence[Rollout], branches: Sequence[Branch], statistics: ShardStatistics
) -> bool:
    """Write one shard of an iteration unless it is there already.

    Returns:
        True when this shard is now the one; False when another was committed first (this one is dropped).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    temporary.mkdir()
    try:
        write_records(temporary / ROLLOUTS, rollouts, Rollout)
        write_records(temporary / BRANCHES, branches, Branch)
        (temporary / STATISTICS).write_text(json.dumps(dataclasses.asdict(statistics), indent=2))
        return commit_directory(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_iteration_shard(path: Path) -> IterationShard:
    """One complete shard of an iteration.

    Raises:
        UserError: a part of it is damaged.
    """
    return IterationShard(
        rollouts=read_shard(path / ROLLOUTS, Rollout),
        branches=read_shard(path / BRANCHES, Branch),
        statistics=ShardStatistics(**json.loads((path / STATISTICS).read_text())),
    )


def commit_shard(path: Path, records: Sequence[Any], record_type: type) -> bool:
    """Write ``records`` to ``path`` unless a shard is there already; True when this one is now the shard."""
    with creating(path) as commit:
        write_records(commit.temporary, records, record_type)
    return commit.won


def write_records(path: Path, records: Sequence[Any], record_type: type) -> None:
    """Write a parquet file; the caller makes its appearance atomic."""
    schema = arrow_schema(record_type)
    columns = [pa.array([getattr(r, f.name) for r in records], type=f.type) for f in schema]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, compression="zstd")


def read_shard(path: Path, record_type: type[Record]) -> list[Record]:
    """All records of one shard.

    Raises:
        UserError: the file is damaged, or its columns are not those of ``record_type``.
    """
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"cannot read shard: {error}",
            where=path,
            advice="move the file away and run the same submit command again: the shard is sampled anew",
            exit_code=ExitCode.FATAL,
        ) from error
    expected = arrow_schema(record_type)
    if table.schema.names != expected.names:
        raise UserError(
            "shard has other columns than this version writes",
            where=path,
            value=table.schema.names,
            expected=str(expected.names),
        )
    return [record_type(**_with_enums(row, record_type)) for row in table.to_pylist()]


def read_shards(paths: Iterable[Path], record_type: type[Record]) -> list[Record]:
    """All records of several shards, in the order of the paths."""
    return [record for path in paths for record in read_shard(path, record_type)]


def _with_enums(row: dict[str, Any], record_type: type[Any]) -> dict[str, Any]:
    for name, enum in _enum_fields(record_type).items():
        row[name] = enum(row[name])
    return row


def _enum_fields(record_type: type[Any]) -> dict[str, type[StrEnum]]:
    hints = typing.get_type_hints(record_type)
    return {n: h for n, h in hints.items() if isinstance(h, type) and issubclass(h, StrEnum)}


def complete_shards(directory: Path) -> list[Path]:
    """The complete shards of an iteration, in order; none when there is no such iteration yet."""
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if not is_temporary(p))
