"""Groups: the rollouts of one problem with their branches, committed once and whole, verified when read.

A shard of an evaluation has the same form with several problems. A group is a directory, whose manifest holds
checksums, costs and the sampling weights.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from mrt_hpc.errors import UserError
from mrt_hpc.run.manifest import DamagedError, Manifest, commit_whole, verify
from mrt_hpc.run.parquet import LENGTH_OF, MEAN_OF, read_columns, read_part, read_records, write_records
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
"""One parquet file each."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    rollouts: list[Rollout]
    branches: list[Branch] = field(default_factory=list)
    answers: list[AnswerProbability] = field(default_factory=list)
    """Known before the branches, with exact probabilities."""
    values: list[PrefixValue] = field(default_factory=list)
    statistics: GroupStatistics
    troubles: int = 0
    """Answers that hung or could not be read when graded; not stored."""


@dataclass(frozen=True, kw_only=True)
class Group(Sampled):
    """A committed group."""

    digest: str
    """See ``Manifest.digest``."""


def merge_samples(parts: Sequence[Sampled], seconds: dict[str, float] | None = None) -> Sampled:
    """All parts as one, rollouts in order of problem and number.

    Args:
        seconds: wall time by phase; None takes the longest part's, as times overlap.
    """
    costs = [part.statistics for part in parts]
    if seconds is None:
        phases = {phase for cost in costs for phase in cost.seconds}
        seconds = {phase: max(cost.seconds.get(phase, 0.0) for cost in costs) for phase in phases}
    return Sampled(
        rollouts=sorted(chain(*(p.rollouts for p in parts)), key=lambda r: (r.problem_id, r.sample)),
        branches=list(chain(*(p.branches for p in parts))),
        answers=list(chain(*(p.answers for p in parts))),
        values=list(chain(*(p.values for p in parts))),
        statistics=_sum_costs(costs, seconds),
        troubles=sum(part.troubles for part in parts),
    )


def _sum_costs(costs: Sequence[GroupStatistics], seconds: dict[str, float]) -> GroupStatistics:
    counted = [f.name for f in fields(GroupStatistics) if f.name != "seconds"]
    return GroupStatistics(**{name: sum(getattr(cost, name) for cost in costs) for name in counted}, seconds=seconds)


def include_thrown(group: Sampled, thrown: Sequence[GroupStatistics]) -> Sampled:
    """The group with the costs of those that were thrown away in its place."""
    whole = _sum_costs([group.statistics, *thrown], group.statistics.seconds)
    tokens = sum(cost.tokens for cost in thrown)
    return replace(group, statistics=replace(whole, thrown_groups=len(thrown), thrown_tokens=tokens))


def wrong_number(sampled: Sampled) -> str | None:
    """What makes a group useless for learning, in words: a number that is not finite, no log-probability or reward, or
    wrong counts; else None. Unbiased values may lie outside of 0 to 1, and a variance may be NaN.
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
    """Write one group unless it is there; refuses numbers that nothing can be learnt from.

    ``about`` is for the manifest. False when another was committed first.
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
    return group_of(verify(path), lambda name: path / name, path, problems)


def group_of(
    manifest: Manifest, file: Callable[[str], Path | BytesIO], where: Path, problems: Collection[str] | None = None
) -> Group:
    _require_parts(manifest, where)
    parts: dict[str, Any] = {
        name: read_records(file(_file_name(name)), record, where, problems) for name, record in PARTS.items()
    }
    try:
        statistics = GroupStatistics(**manifest.about["statistics"])
    except (KeyError, TypeError) as error:
        raise DamagedError(f"the manifest of a group holds no statistics: {error!r}", where=where) from error
    group = Group(**parts, statistics=statistics, digest=manifest.digest)
    if (wrong := wrong_number(group)) is not None:
        raise DamagedError(wrong, where=where)
    return group


def table_of_group(manifest: Manifest, file: Callable[[str], Path | BytesIO], where: Path, part: str) -> pa.Table:
    """The records of one of ``PARTS`` of a group, as a table; other arguments and errors as in :func:`group_of`."""
    _require_parts(manifest, where)
    return read_columns(file(_file_name(part)), PARTS[part], where)


def _require_parts(manifest: Manifest, where: Path) -> None:
    if missing := [name for name in PARTS if _file_name(name) not in manifest.files]:
        raise UserError(
            f"no {', '.join(missing)} in it: another version of mrt-hpc wrote it",
            where=where,
            advice="continue with the version of mrt-hpc that began the run",
        )


SampledT = TypeVar("SampledT", bound=Sampled)


def refuse_other_samples(sampled: SampledT, problem: str, samples: range, where: Path, stages: int = 1) -> SampledT:
    """Refuse all but exactly these samples of one problem, each stage once. Path and seal say where a group belongs;
    only its records say what it is. ``stages`` are the rollouts of one sample.
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
    return directory / _file_name(part)


def _file_name(part: str) -> str:
    return f"{part}.parquet"


def complete_groups(directory: Path) -> set[int]:
    """Positions of an iteration's complete groups; none before it begins."""
    return {int(p.name) for p in list_directory(directory) if p.name.isdecimal()}


# The part of an evaluation's shard that analyses need. Tokens and their probabilities are nearly all of a shard, and
# making Python objects of them takes nearly all of the time of reading it: here their numbers alone are read.


@dataclass(frozen=True)
class RolloutOutcome:
    """The columns of :class:`Rollout` for readers that need no tokens."""

    problem_id: str
    sample: int
    answer: str | None
    reward: float
    finish_reason: FinishReason
    boundaries: list[int]
    tokens: int = field(metadata={LENGTH_OF: "token_ids"})
    """T, inserted tokens included."""
    stage: int = 0
    stages: int = 1

    @property
    def counts(self) -> bool:
        """See ``Rollout.counts``."""
        return self.stage == self.stages - 1


@dataclass(frozen=True)
class StoredSample(RolloutOutcome):
    """An evaluated sample with its text, without its tokens."""

    text: str = field(kw_only=True)


@dataclass(frozen=True)
class BranchOutcome:
    """The columns of :class:`Branch` for readers that need no tokens."""

    problem_id: str
    sample: int
    boundary: int
    branch: int
    answer: str | None
    reward: float
    prompt_tokens: int
    tokens: int = field(metadata={LENGTH_OF: "token_ids"})
    """Sampled by mu."""


@dataclass(frozen=True)
class LikelyBranchOutcome(BranchOutcome):
    """A branch with its answer's likelihood, for which the tokens' probabilities must be read."""

    mean_logprob: float = field(metadata={MEAN_OF: "logprobs"})
    """0 without a token."""


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of one shard, or several."""

    rollouts: list[RolloutOutcome]
    branches: Sequence[BranchOutcome]
    values: list[PrefixValue]


def read_outcomes(shard: Path, *, likelihoods: bool = False) -> Outcomes:
    """The outcomes of one complete shard or group; ``likelihoods`` reads those of the branches too."""
    verify(shard)
    return Outcomes(
        read_part(part_file(shard, "rollouts"), RolloutOutcome),
        read_part(part_file(shard, "branches"), LikelyBranchOutcome if likelihoods else BranchOutcome),
        read_records(part_file(shard, "values"), PrefixValue),
    )


def read_samples(shard: Path) -> pa.Table:
    """The samples of one complete shard, a :class:`StoredSample` a row; errors as in :func:`read_outcomes`.

    The column ``settings`` has the digest of the settings that they were sampled and judged with.
    """
    settings = verify(shard).about.get("settings")
    table = read_columns(part_file(shard, "rollouts"), StoredSample)
    return table.append_column("settings", pa.array([settings] * len(table), pa.string()))
