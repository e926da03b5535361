"""The part of an evaluation's shard that analyses need. Tokens and their probabilities are nearly all of a shard, and
making Python objects of them takes nearly all of the time of reading it: here their numbers alone are read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.run.groups import part_file
from mrt_hpc.run.manifest import verify
from mrt_hpc.run.parquet import LENGTH_OF, read_part, read_records
from mrt_hpc.run.records import PrefixValue

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.groups import Sampled
    from mrt_hpc.run.records import Branch, Rollout


@dataclass(frozen=True)
class RolloutOutcome:
    """A rollout without its tokens; the fields are those of :class:`Rollout`."""

    problem_id: str
    sample: int
    answer: str | None
    reward: float
    boundaries: list[int]
    tokens: int = field(metadata={LENGTH_OF: "token_ids"})
    """The number of sampled tokens."""
    stage: int = 0
    stages: int = 1

    @property
    def counts(self) -> bool:
        """Whether it is the result of its sample: the last of its stages."""
        return self.stage == self.stages - 1

    @classmethod
    def of(cls, rollout: Rollout) -> RolloutOutcome:
        """The outcome of a rollout."""
        return cls(
            rollout.problem_id,
            rollout.sample,
            rollout.answer,
            rollout.reward,
            rollout.boundaries,
            len(rollout.token_ids),
            rollout.stage,
            rollout.stages,
        )


@dataclass(frozen=True)
class BranchOutcome:
    """A branch without its tokens; the fields are those of :class:`Branch`."""

    problem_id: str
    sample: int
    boundary: int
    branch: int
    answer: str | None
    reward: float
    prompt_tokens: int
    tokens: int = field(metadata={LENGTH_OF: "token_ids"})
    """The number of tokens that mu sampled."""

    @classmethod
    def of(cls, branch: Branch) -> BranchOutcome:
        """The outcome of a branch."""
        return cls(
            branch.problem_id,
            branch.sample,
            branch.boundary,
            branch.branch,
            branch.answer,
            branch.reward,
            branch.prompt_tokens,
            len(branch.token_ids),
        )


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of one shard, or of several."""

    rollouts: list[RolloutOutcome]
    branches: list[BranchOutcome]
    values: list[PrefixValue]

    @classmethod
    def of(cls, sampled: Sampled) -> Outcomes:
        """The outcomes of records that have been read."""
        rollouts = [RolloutOutcome.of(rollout) for rollout in sampled.rollouts]
        return cls(rollouts, [BranchOutcome.of(branch) for branch in sampled.branches], sampled.values)


def read_outcomes(shard: Path) -> Outcomes:
    """The outcomes of one complete shard or group.

    Raises:
        DamagedError: a part of it is not what was written.
        UserError: it was written by another version of this package.
    """
    verify(shard)
    return Outcomes(
        read_part(part_file(shard, "rollouts"), RolloutOutcome),
        read_part(part_file(shard, "branches"), BranchOutcome),
        read_records(part_file(shard, "values"), PrefixValue),
    )
