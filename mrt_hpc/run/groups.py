"""Groups: the rollouts of one problem with their branches, written whole, committed once, verified when read.

A shard of an evaluation has the same form, and holds several problems. It is a directory, so that all parts appear in
one step; its manifest holds their checksums, what they cost and which weights sampled them.
"""

from __future__ import annotations

import dataclasses
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mrt_hpc.errors import UserError
from mrt_hpc.run.manifest import DamagedError, commit_whole, verify
from mrt_hpc.run.parquet import read_records, write_records
from mrt_hpc.run.records import (
    SLIGHTLY_ABOVE_ONE,
    AnswerProbability,
    Branch,
    GroupStatistics,
    PrefixValue,
    Rollout,
)
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from io import BytesIO
    from pathlib import Path

    from mrt_hpc.run.manifest import Manifest

_Record = Rollout | Branch | AnswerProbability | PrefixValue
PARTS = {
    "rollouts": Rollout, "branches": Branch, "answers": AnswerProbability, "values": PrefixValue,
}  # fmt: skip
"""What a group holds, a parquet file each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """What was sampled for one problem of one iteration."""

    rollouts: list[Rollout]
    branches: list[Branch] = dataclasses.field(default_factory=list)
    answers: list[AnswerProbability] = dataclasses.field(default_factory=list)
    """Known before the branches, with their exact probabilities."""
    values: list[PrefixValue] = dataclasses.field(default_factory=list)
    statistics: GroupStatistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group(Sampled):
    """A group that was committed."""

    digest: str
    """Identity of its content, see ``Manifest.digest``."""


def wrong_number(sampled: Sampled) -> str | None:
    """What is wrong with the numbers of a group, in words: one that is not finite, or no log-probability; None where
    all can be learnt from. A value may lie outside of 0 to 1, as some unbiased estimates do; a variance may be NaN.
    """
    traces: list[Rollout | Branch] = [*sampled.rollouts, *sampled.branches]
    for r in traces:
        logprobs = np.asarray(r.logprobs, dtype=np.float64)
        if not np.all(np.isfinite(logprobs) & (logprobs <= SLIGHTLY_ABOVE_ONE)):
            return f"a log-probability of a trace of {_place(r)} is above 0 or not finite"
    numbers: dict[str, Sequence[_Record]] = {
        "reward": [*traces, *sampled.answers],
        "look_ahead": sampled.branches,
        "probability": sampled.answers,
        "value": sampled.values,
        "baseline": sampled.values,
    }
    for name, records in numbers.items():
        if bad := [record for record in records if not isfinite(getattr(record, name))]:
            return f"the {name} of {_place(bad[0])} is {getattr(bad[0], name)}"
    return None


def _place(record: _Record) -> str:
    return f"iteration {record.iteration}, problem {record.problem_id}, sample {record.sample}"


def commit_group(path: Path, sampled: Sampled, **about: Any) -> bool:
    """Write one group unless it is there already.

    Args:
        path: of ``RunLayout.group``.
        sampled: the group.
        about: more for the manifest: who sampled it, with which weights.

    Returns:
        True when this group is now the one; False when another was committed first (this one is dropped).

    Raises:
        UserError: a number of it is not finite, so that nothing can be learnt from it.
    """
    if (wrong := wrong_number(sampled)) is not None:
        raise UserError(
            f"what was sampled is not kept: {wrong}",
            where=path,
            expected="finite rewards and values, and log-probabilities of at most 0",
            advice="look at the verifier and the prover of the recipe, and for a log-probability at the weights and "
            "serving.dtype; then the same submit command",
        )

    def write(directory: Path) -> None:
        for name, record_type in PARTS.items():
            write_records(directory / _file_name(name), getattr(sampled, name), record_type)

    return commit_whole(path, write, statistics=dataclasses.asdict(sampled.statistics), **about)


def read_group(path: Path, problems: Collection[str] | None = None) -> Group:
    """One complete group.

    Args:
        path: of the group.
        problems: the ids of those problems whose records are wanted; None reads all.

    Raises:
        DamagedError: a part of it is not what was written.
        UserError: it was written by another version of this package.
    """
    return group_of(verify(path), lambda name: path / name, path, problems)


def group_of(
    manifest: Manifest,
    file: Callable[[str], Path | BytesIO],
    where: Path,
    problems: Collection[str] | None = None,
) -> Group:
    """A group from its verified files.

    Args:
        manifest: of the group.
        file: gives one of its files by name.
        where: the files are, for messages.
        problems: as in :func:`read_group`.

    Raises:
        DamagedError: a part of it is not what was written.
        UserError: it was written by another version of this package.
    """
    if missing := [name for name in PARTS if _file_name(name) not in manifest.files]:
        raise UserError(
            f"no {', '.join(missing)} in it: another version of mrt-hpc wrote it",
            where=where,
            advice="continue with the version of mrt-hpc that began the run",
        )
    parts: dict[str, Any] = {
        name: read_records(file(_file_name(name)), record, where, problems) for name, record in PARTS.items()
    }
    group = Group(**parts, statistics=_statistics(manifest.about, where), digest=manifest.digest)
    if (wrong := wrong_number(group)) is not None:
        raise DamagedError(wrong, where=where)
    return group


def refuse_another_problem(group: Group, problem: str, where: Path) -> Group:
    """Refuse a group of another problem than the one that is drawn for its position.

    Args:
        group: as it was read.
        problem: the id of the drawn one.
        where: the group is, for messages.

    Raises:
        DamagedError: it is of another one.
    """
    if others := {rollout.problem_id for rollout in group.rollouts} - {problem}:
        raise DamagedError(f"the group is of problem {min(others)}", where=where, expected=f"problem {problem}")
    return group


def part_file(directory: Path, part: str) -> Path:
    """The parquet file of one of ``PARTS`` in the directory of a group."""
    return directory / _file_name(part)


def _file_name(part: str) -> str:
    return f"{part}.parquet"


def _statistics(about: dict[str, Any], path: Path) -> GroupStatistics:
    try:
        return GroupStatistics(**about["statistics"])
    except (KeyError, TypeError) as error:
        raise DamagedError(f"the manifest of a group holds no statistics: {error!r}", where=path) from error


def complete_groups(directory: Path) -> set[int]:
    """Positions of the complete groups of an iteration; none when there is no such iteration yet."""
    return {int(p.name) for p in list_directory(directory) if p.name.isdecimal()}
