"""Groups: the rollouts of one problem with their branches, written whole, committed once, verified when read.

A shard of an evaluation has the same form, and holds several problems. It is a directory, so that all parts appear in
one step; its manifest holds their checksums, what they cost and which weights sampled them.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, fields
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from mrt_hpc.errors import UserError
from mrt_hpc.run.manifest import DamagedError, Manifest, commit_whole, verify
from mrt_hpc.run.parquet import LENGTH_OF, MEAN_OF, read_part, read_records, write_records
from mrt_hpc.run.records import (
    SLIGHTLY_ABOVE_ONE,
    AnswerProbability,
    Branch,
    FinishReason,
    GroupStatistics,
    PrefixValue,
    Rollout,
)
from mrt_hpc.run.retries import list_directory

_Record = Rollout | Branch | AnswerProbability | PrefixValue
PARTS = {
    "rollouts": Rollout, "branches": Branch, "answers": AnswerProbability, "values": PrefixValue,
}  # fmt: skip
"""What a group holds, a parquet file each."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """What was sampled for one problem of one iteration."""

    rollouts: list[Rollout]
    branches: list[Branch] = field(default_factory=list)
    answers: list[AnswerProbability] = field(default_factory=list)
    """Known before the branches, with their exact probabilities."""
    values: list[PrefixValue] = field(default_factory=list)
    statistics: GroupStatistics
    troubles: int = 0
    """The number of answers that hung or could not be read when they were graded; not written to the files."""


@dataclass(frozen=True, kw_only=True)
class Group(Sampled):
    """A group that was committed."""

    digest: str
    """Identity of its content, see ``Manifest.digest``."""


def merged(parts: Sequence[Sampled], seconds: dict[str, float] | None = None) -> Sampled:
    """Return all parts as one; rollouts are in the order of problem and number.

    Args:
        parts: traces, groups or problems.
        seconds: the wall time of each phase; None takes the longest of the parts, whose times overlap.
    """
    costs = [part.statistics for part in parts]
    counted = [f.name for f in fields(GroupStatistics) if f.name != "seconds"]
    counts = {name: sum(getattr(cost, name) for cost in costs) for name in counted}
    if seconds is None:
        phases = {phase for cost in costs for phase in cost.seconds}
        seconds = {phase: max(cost.seconds.get(phase, 0.0) for cost in costs) for phase in phases}
    return Sampled(
        rollouts=sorted(chain(*(p.rollouts for p in parts)), key=lambda r: (r.problem_id, r.sample)),
        branches=list(chain(*(p.branches for p in parts))),
        answers=list(chain(*(p.answers for p in parts))),
        values=list(chain(*(p.values for p in parts))),
        statistics=GroupStatistics(**counts, seconds=seconds),
        troubles=sum(part.troubles for part in parts),
    )


def wrong_number(sampled: Sampled) -> str | None:
    """What is wrong with the numbers of a group, in words: one that is not finite, no log-probability or no reward, or
    statistics that are no counts; None where all can be learnt from. A value may lie outside of 0 to 1, as some
    unbiased estimates do; a variance may be NaN.
    """
    try:
        msgspec.convert(asdict(sampled.statistics), GroupStatistics)
    except msgspec.ValidationError as error:
        return f"its statistics are wrong: {error}"
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
        low, high = (0.0, 1.0) if name == "reward" else (-sys.float_info.max, sys.float_info.max)
        if bad := [record for record in records if not low <= getattr(record, name) <= high]:
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
        UserError: a number of it is not finite, or no reward, so that nothing can be learnt from it.
    """
    if (wrong := wrong_number(sampled)) is not None:
        raise UserError(
            f"what was sampled is not kept: {wrong}",
            where=path,
            expected="rewards of 0 to 1, finite values, and log-probabilities of at most 0",
            advice="look at the verifier and the prover of the recipe, and for a log-probability at the weights and "
            "serving.dtype; then mrt-hpc submit RUN",
        )

    def write(directory: Path) -> None:
        for name, record_type in PARTS.items():
            write_records(directory / _file_name(name), getattr(sampled, name), record_type)

    return commit_whole(path, write, statistics=asdict(sampled.statistics), **about)


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
    manifest: Manifest, file: Callable[[str], Path | BytesIO], where: Path, problems: Collection[str] | None = None
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


SampledT = TypeVar("SampledT", bound=Sampled)


def refuse_other_samples(sampled: SampledT, problem: str, samples: range, where: Path, stages: int = 1) -> SampledT:
    """Refuse what was sampled unless it is these samples of one problem, each stage of each of them once. A path and a
    seal say where a group belongs; only its records say what it is.

    Args:
        sampled: as it was read, or before it is written.
        problem: the id of the problem that is drawn for its position.
        samples: the numbers that the samples must have.
        where: the group is, for messages.
        stages: the rollouts of one sample.

    Raises:
        DamagedError: it is of another problem, or of other samples.
    """
    records: list[_Record] = list(chain(*(getattr(sampled, part) for part in PARTS)))
    if others := {record.problem_id for record in records} - {problem}:
        raise DamagedError(f"the group is of problem {min(others)}", where=where, expected=f"problem {problem}")
    wanted = [(sample * stages + stage, stage, stages) for sample in samples for stage in range(stages)]
    there = {record.sample for record in records}
    if sorted((r.sample, r.stage, r.stages) for r in sampled.rollouts) != wanted or there != {n for n, *_ in wanted}:
        raise DamagedError(
            f"the group has {len(sampled.rollouts)} rollout(s), and records of the number(s) {sorted(there)[:8]}",
            where=where,
            expected=f"one rollout of each of the {len(wanted)} number(s) from {samples.start * stages}",
        )
    return sampled


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


# The part of an evaluation's shard that analyses need. Tokens and their probabilities are nearly all of a shard, and
# making Python objects of them takes nearly all of the time of reading it: here their numbers alone are read.


@dataclass(frozen=True)
class RolloutOutcome:
    """The columns of a :class:`Rollout` that are read where its tokens are not needed."""

    problem_id: str
    sample: int
    answer: str | None
    reward: float
    finish_reason: FinishReason
    boundaries: list[int]
    tokens: int = field(metadata={LENGTH_OF: "token_ids"})
    """T, the number of tokens, those that a mode inserts included."""
    stage: int = 0
    stages: int = 1

    @property
    def counts(self) -> bool:
        """Whether it is the result of its sample: the last of its stages."""
        return self.stage == self.stages - 1


@dataclass(frozen=True)
class BranchOutcome:
    """The columns of a :class:`Branch` that are read where its tokens are not needed."""

    problem_id: str
    sample: int
    boundary: int
    branch: int
    answer: str | None
    reward: float
    prompt_tokens: int
    tokens: int = field(metadata={LENGTH_OF: "token_ids"})
    """The number of tokens that mu sampled."""


@dataclass(frozen=True)
class LikelyBranchOutcome(BranchOutcome):
    """The same, with how likely the answer is; its tokens' probabilities have to be read for this."""

    mean_logprob: float = field(metadata={MEAN_OF: "logprobs"})
    """The mean log-probability of its tokens; 0 without a token."""


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of one shard, or of several."""

    rollouts: list[RolloutOutcome]
    branches: Sequence[BranchOutcome]
    values: list[PrefixValue]


def read_outcomes(shard: Path, *, likelihoods: bool = False) -> Outcomes:
    """The outcomes of one complete shard or group.

    Args:
        shard: its directory.
        likelihoods: whether the likelihoods of the branches are read too.

    Raises:
        DamagedError: a part of it is not what was written.
        UserError: it was written by another version of this package.
    """
    verify(shard)
    return Outcomes(
        read_part(part_file(shard, "rollouts"), RolloutOutcome),
        read_part(part_file(shard, "branches"), LikelyBranchOutcome if likelihoods else BranchOutcome),
        read_records(part_file(shard, "values"), PrefixValue),
    )
