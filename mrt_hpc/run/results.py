"""The results folder: samples of evaluations, kept under the fingerprint of all that decides them, for all runs to use.

Below the folder of a fingerprint each problem has its batches of samples. A batch is committed whole, names the numbers
of its samples and the grader that judged them, and is never changed: more samples are a further batch, and verdicts of
another grader are another batch of the same samples.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from mrt_hpc.run.atomic import moved, sync_directory, write_json, write_text
from mrt_hpc.run.evaluation_settings import Fingerprint
from mrt_hpc.run.groups import Sampled, commit_group, read_group
from mrt_hpc.run.layout import IDENTITY
from mrt_hpc.run.leases import Holder
from mrt_hpc.run.retries import list_directory

_BATCH = re.compile(r"(\d{5,})-(\d{5,})\.([0-9a-f]{12})")
DIGITS = 12
"""The number of hexadecimal digits of a grader's digest in the name of a batch."""


@dataclass(frozen=True)
class JudgedSamples:
    """Some samples of one problem that one grader has judged."""

    path: Path
    position: int
    """The position of the problem in the benchmark."""
    samples: range
    """The numbers of the samples."""
    grader: str
    """The first digits of the grader's digest."""


@dataclass(frozen=True)
class StoredSamples:
    """The samples of one fingerprint."""

    directory: Path

    @staticmethod
    def of(results: Path, fingerprint: Fingerprint) -> StoredSamples:
        """The samples of a fingerprint in a results folder; the folder keeps the fingerprint in readable form, too."""
        store = StoredSamples(results / fingerprint.digest[:24])
        if not store.readable_fingerprint.exists():
            store.directory.mkdir(exist_ok=True)
            sync_directory(results)  # before the fingerprint, which is what others look for
            write_text(store.directory / IDENTITY, f"{store.directory.name}\n")
            write_json(store.readable_fingerprint, fingerprint.model_dump(mode="json"))
        return store

    @property
    def readable_fingerprint(self) -> Path:
        """The fields of the fingerprint."""
        return self.directory / "fingerprint.json"

    @property
    def leases(self) -> Path:
        """The leases on problems that a task samples at this moment."""
        return self.directory / "leases"

    def heart(self, holder: Holder) -> Path:
        """The heartbeat of a task that holds leases here. It lies beside them and not in the run directory: another
        user's may be closed to this one, and a container holds only that of its own task.
        """
        return self.directory / "hearts" / f"{holder.task_digest}.json"

    def problem(self, position: int) -> Path:
        """The folder of one problem's batches, by its position in the benchmark."""
        return self.directory / "problems" / f"{position:05d}"

    def batches(self, position: int) -> list[JudgedSamples]:
        """All batches of a problem."""
        batches = [(path, _BATCH.fullmatch(path.name)) for path in list_directory(self.problem(position))]
        return sorted(
            (JudgedSamples(path, position, range(int(m[1]), int(m[2])), m[3]) for path, m in batches if m),
            key=lambda batch: (batch.samples.start, batch.path.name),
        )

    def chosen(self, position: int, count: int, grader: str) -> list[tuple[JudgedSamples, list[int]]]:
        """Return the batches from which the first samples of a problem are taken, each with the numbers taken from it.

        Args:
            position: of the problem.
            count: the number of samples wanted.
            grader: the digest of the grader whose verdicts are preferred.
        """
        wanted, taken = set(range(count)), []
        mine = grader[:DIGITS]
        for batch in sorted(self.batches(position), key=lambda batch: batch.grader != mine):
            if here := sorted(wanted.intersection(batch.samples)):
                taken.append((batch, here))
                wanted.difference_update(here)
        return taken

    def lacking(self, position: int, count: int) -> range:
        """Return the numbers of the samples to draw for a problem: from the first that is not there to the last one
        wanted; an empty range if all are there.
        """
        there = {number for batch in self.batches(position) for number in batch.samples}
        missing = [number for number in range(count) if number not in there]
        if not missing:
            return range(0)
        return range(missing[0], missing[-1] + 1)

    def commit(self, position: int, samples: range, sampled: Sampled, grader: str) -> bool:
        """Write a batch whole, unless it is there already."""
        name = f"{samples.start:05d}-{samples.stop:05d}.{grader[:DIGITS]}"
        return commit_group(self.problem(position) / name, sampled, grader=grader)

    def read(self, batch: JudgedSamples, numbers: Collection[int]) -> Sampled:
        """Read some samples of a batch.

        Raises:
            DamagedError: the batch is not what was written.
        """
        return samples_of(read_group(batch.path), numbers)

    def set_aside(self, batch: JudgedSamples) -> Path | None:
        """Move a damaged batch out of the way, and return its new place; None if another task has moved it already."""
        place = self.directory / "set_aside" / f"{batch.path.parent.name}.{batch.path.name}.{uuid.uuid4().hex[:8]}"
        place.parent.mkdir(exist_ok=True)
        return moved(batch.path, place)


def samples_of(sampled: Sampled, numbers: Collection[int]) -> Sampled:
    """The records of some samples, each with all of its stages. The counts of their cost are those of the records that
    stay.
    """
    stages = max((r.stages for r in sampled.rollouts), default=1)
    wanted = {number * stages + stage for number in numbers for stage in range(stages)}
    rollouts = [r for r in sampled.rollouts if r.sample in wanted]
    branches = [b for b in sampled.branches if b.sample in wanted]
    if len(rollouts) == len(sampled.rollouts):
        return sampled
    statistics = replace(
        sampled.statistics,
        rollouts=len(rollouts),
        branches=len(branches),
        rollout_tokens=sum(len(r.token_ids) for r in rollouts),
        branch_tokens=sum(len(b.token_ids) for b in branches),
        prompt_tokens=sum(b.prompt_tokens for b in branches),
        cached_tokens=sum(b.cached_tokens or 0 for b in branches),
    )
    return Sampled(
        rollouts=rollouts,
        branches=branches,
        answers=[a for a in sampled.answers if a.sample in wanted],
        values=[v for v in sampled.values if v.sample in wanted],
        statistics=statistics,
    )
