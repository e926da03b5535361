"""Groups: the rollouts of one problem with their branches, written whole, committed once, verified when read.

A group is a directory, so that all its parts appear in one step; its manifest holds their checksums, what they cost and
which weights sampled them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from mrt_hpc.run.manifest import DamagedError, commit_whole, verify
from mrt_hpc.run.patience import children
from mrt_hpc.run.records import Branch, GroupStatistics, Rollout
from mrt_hpc.run.shards import read_records, write_records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROLLOUTS, BRANCHES = "rollouts.parquet", "branches.parquet"


@dataclasses.dataclass(frozen=True)
class Group:
    """What was sampled for one problem of one iteration."""

    rollouts: list[Rollout]
    branches: list[Branch]
    statistics: GroupStatistics
    digest: str
    """Identity of its content, see ``Manifest.digest``."""


def commit_group(
    path: Path, rollouts: Sequence[Rollout], branches: Sequence[Branch], statistics: GroupStatistics, **about: Any
) -> bool:
    """Write one group unless it is there already.

    Args:
        path: of ``RunLayout.group``.
        rollouts: of one problem.
        branches: of these rollouts.
        statistics: what they cost.
        about: more for the manifest: who sampled them, with which weights.

    Returns:
        True when this group is now the one; False when another was committed first (this one is dropped).
    """

    def write(directory: Path) -> None:
        write_records(directory / ROLLOUTS, rollouts, Rollout)
        write_records(directory / BRANCHES, branches, Branch)

    return commit_whole(path, write, statistics=dataclasses.asdict(statistics), **about)


def read_group(path: Path) -> Group:
    """One complete group.

    Raises:
        DamagedError: a part of it is not what was written.
        UserError: it was written by another version of this package.
    """
    manifest = verify(path)
    return Group(
        rollouts=read_records(path / ROLLOUTS, Rollout),
        branches=read_records(path / BRANCHES, Branch),
        statistics=_statistics(manifest.about, path),
        digest=manifest.digest,
    )


def _statistics(about: dict[str, Any], path: Path) -> GroupStatistics:
    try:
        return GroupStatistics(**about["statistics"])
    except (KeyError, TypeError) as error:
        raise DamagedError(f"the manifest of a group holds no statistics: {error!r}", where=path) from error


def complete_groups(directory: Path) -> set[int]:
    """Positions of the complete groups of an iteration; none when there is no such iteration yet."""
    return {int(p.name) for p in children(directory) if p.name.isdecimal()}
