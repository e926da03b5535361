"""The samples of a shard in the results folder, which evaluations of all runs share."""

from __future__ import annotations

import errno
import logging
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, TypeVar

from mrt_hpc.domains.base import grader_digest
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import UserError
from mrt_hpc.roles.benchmarks.regrading import Regrader
from mrt_hpc.roles.task.shutdown import run_until_told
from mrt_hpc.run.data import read_problems, share
from mrt_hpc.run.evaluation_settings import fingerprint_of
from mrt_hpc.run.events import Use
from mrt_hpc.run.groups import merged
from mrt_hpc.run.heartbeats import Heart
from mrt_hpc.run.leases import Leases
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.results import DIGITS, JudgedSamples, StoredSamples
from mrt_hpc.run.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from mrt_hpc.plan.jobs import EvaluationUnit
    from mrt_hpc.recipe.schema import Experiment
    from mrt_hpc.recipe.sections import Benchmark
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.groups import Sampled
    from mrt_hpc.run.weights import Weights

T = TypeVar("T")

log = logging.getLogger(__name__)

NO_PLACE = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS})
"""The errors of a folder that is gone, or that this user may not write to."""
LONGEST_LOOK_S = 5.0
"""The longest pause between two looks at samples that another evaluation draws, seconds."""


def writing(task: Task, directory: Path, action: Callable[[], T]) -> T:
    """Write to a results folder; a full disk is waited for, as in the run directory.

    Raises:
        UserError: it is gone, this user may not write there, or the disk stayed full.
    """
    try:
        return task.retrying(action, f"samples of {directory}")
    except OSError as error:
        if error.errno not in NO_PLACE:
            raise
        raise UserError(
            "the results folder cannot be written",
            where=directory,
            value=str(error),
            expected="a folder that is there and takes your files, as it lacks samples or verdicts of this evaluation",
            advice="the same command with --set evaluation.results=DIR, a folder of your own",
        ) from error


def grader_of(experiment: Experiment, benchmark: Benchmark) -> str:
    """The digest of the grader of a benchmark."""
    grading = experiment.grading
    verifier = verifier_of(benchmark.problems, grading)
    return grader_digest(verifier, grading.time_limit_s, grading.memory_limit_gib)


@dataclass(frozen=True)
class StoredParts:
    """The samples of the problems of one shard, where the results folder keeps them."""

    task: Task
    store: StoredSamples
    benchmark: Benchmark
    directory: Path
    """The folder of the fingerprint, for messages."""
    weights: str
    version: int
    shard: int

    @staticmethod
    def of(task: Task, unit: EvaluationUnit, benchmark: Benchmark, weights: Weights, results: Path) -> StoredParts:
        """The samples of one unit of an evaluation."""
        fingerprint = fingerprint_of(task.layout, task.experiment, benchmark, weights.digest)
        store = writing(task, results, lambda: StoredSamples.of(results, fingerprint))
        return StoredParts(task, store, benchmark, store.directory, weights.digest, unit.version, unit.shard)

    def lacking(self, positions: Iterable[int]) -> dict[range, list[int]]:
        """By the numbers of the samples that have to be drawn, the positions of the problems within the shard."""
        found: dict[range, list[int]] = defaultdict(list)
        for position in positions:
            if missing := self.store.lacking(self._place(position), self.benchmark.samples):
                found[missing].append(position)
        return dict(found)

    def alive(self) -> Heart:
        """Show the holders of other leases in the results folder that this task lives, during the block."""
        limit_s = self.task.experiment.resilience.heartbeat_limit_s
        return Heart(self.store.heart(self.task.holder), self.task.attempt, limit_s)

    def claimed(self, lacking: Mapping[range, list[int]]) -> dict[range, list[int]]:
        """Those of the problems that no other task samples at this moment; this task then holds a lease on each,
        as long as it is ``alive``.
        """
        taken = [p for positions in lacking.values() for p in positions if self._claim(p)]
        # Another task may have added samples, and released its lease, since these were found to be lacking.
        mine = self.lacking(taken)
        for position in set(taken).difference(*mine.values()):
            self._leases.release(self._place(position))
        return mine

    def _claim(self, position: int) -> bool:
        return self._writing(lambda: self._leases.claim(self._place(position)))

    def wait(self, lacking: Mapping[range, list[int]]) -> None:
        """Wait until other tasks have sampled one of these problems, or have ended without it."""
        waiting = [position for positions in lacking.values() for position in positions]
        places = {self._place(position) for position in waiting}
        log.info("another evaluation samples %d problem(s) that this one needs", len(places))

        def changed() -> bool:
            free = self._leases.free(sorted(places))
            return bool(free) or any(not self.store.lacking(p, self.benchmark.samples) for p in places)

        self.task.spend(Use.WAITING)
        with self.task.shutdown.while_waiting():
            wait_until(changed, reason="samples of another evaluation", deadline_s=inf, longest_pause_s=LONGEST_LOOK_S)

    def commit(self, position: int, samples: range, sampled: Sampled) -> bool:
        """Write a batch of a problem's samples, and let other tasks have the problem."""
        place = self._place(position)
        won = self._writing(lambda: self.store.commit(place, samples, sampled, self._grader))
        self._leases.release(place)
        return won

    def sampled(self, positions: range) -> dict[int, Sampled]:
        """The samples of the problems that have all of theirs, by position. What another grader has judged is judged
        again, and kept; what is damaged is set aside.
        """
        found = {position: self._batches(position) for position in positions}
        self._regrade([one for batches in found.values() for one, _ in batches or []], positions)
        whole = {position: self._merged(position) for position in positions if found[position] is not None}
        return {position: sampled for position, sampled in whole.items() if sampled is not None}

    def remove(self) -> None:
        """Nothing: what is in the results folder stays for other evaluations."""

    def _batches(self, position: int) -> list[tuple[JudgedSamples, list[int]]] | None:
        """The batches of a problem; None where samples are missing."""
        chosen = self.store.chosen(self._place(position), self.benchmark.samples, self._grader)
        return chosen if sum(len(numbers) for _, numbers in chosen) == self.benchmark.samples else None

    def _merged(self, position: int) -> Sampled | None:
        """The samples of a problem; None where some are missing, or were damaged."""
        parts = [(batch, self._readable(batch, numbers)) for batch, numbers in self._batches(position) or []]
        whole = [sampled for _, sampled in parts if sampled is not None]
        return as_of(merged(whole), self.version) if parts and len(whole) == len(parts) else None

    def _readable(self, batch: JudgedSamples, numbers: list[int]) -> Sampled | None:
        try:
            return self.task.retrying(lambda: self.store.read(batch, numbers), f"reading {batch.path}")
        except DamagedError as damage:
            place = self._writing(lambda: self.store.set_aside(batch))
            log.warning("samples that cannot be used were moved to %s: %s", place or "set_aside", damage.what)
            return None

    def _regrade(self, batches: list[JudgedSamples], positions: range) -> None:
        """Judge batches of other graders again, and keep the verdicts as further batches."""
        others = [batch for batch in batches if batch.grader != self._grader[:DIGITS]]
        if not others:
            return
        problems = share(read_problems(self.task.layout.benchmark_data(self.benchmark.name)), self.shard, self._shards)
        golds = {problems[position].id: problems[position].answer for position in positions}
        read = [(batch, self._readable(batch, list(batch.samples))) for batch in others]
        there = [(batch, sampled) for batch, sampled in read if sampled is not None]
        log.info("another grader has judged %d batch(es) of samples: they are judged again", len(there))
        regrader = Regrader.of(self.task.experiment, self.benchmark, self.task.layout.weights_version(self.version))
        work = regrader.all([sampled for _, sampled in there], golds)
        for (batch, before), sampled in zip(there, run_until_told(self.task.shutdown, work), strict=True):
            self._keep(batch, sampled)
            _tell_changes(before, sampled)

    def _keep(self, batch: JudgedSamples, judged: Sampled) -> None:
        """Keep the verdicts of this task's grader on a batch of another one."""
        position = int(batch.path.parent.name)
        self._writing(lambda: self.store.commit(position, batch.samples, judged, self._grader))

    def _writing(self, action: Callable[[], T]) -> T:
        return writing(self.task, self.store.directory, action)

    def _place(self, position: int) -> int:
        """The position of a problem in the whole benchmark."""
        return self.shard + position * self._shards

    @property
    def _shards(self) -> int:
        return self.task.experiment.evaluation.problem_shards

    @cached_property
    def _grader(self) -> str:
        return grader_of(self.task.experiment, self.benchmark)

    @property
    def _leases(self) -> Leases:
        samples = self.benchmark.samples
        return Leases(
            self.store.leases,
            self.task.holder,
            self.task.observer,
            lambda place: not self.store.lacking(place, samples),
            self.store.heart,
        )


def _tell_changes(before: Sampled, now: Sampled) -> None:
    """Log each verdict that is another one than before."""
    for old, new in zip(before.rollouts, now.rollouts, strict=True):
        if old.reward != new.reward:
            log.info(
                "problem %s, sample %d: reward %g with answer %r, and %g with answer %r before",
                new.problem_id, new.sample, new.reward, new.answer, old.reward, old.answer,
            )  # fmt: skip


def as_of(sampled: Sampled, version: int) -> Sampled:
    """The samples with the number that their weights version has in this run."""
    return type(sampled)(
        rollouts=[replace(r, weights_version=version) for r in sampled.rollouts],
        branches=[replace(b, weights_version=version) for b in sampled.branches],
        answers=sampled.answers,
        values=sampled.values,
        statistics=sampled.statistics,
    )
