"""Stored samples of evaluations, in the results folder that evaluations of all runs share, or in one inside the run;
and those of a shard among them.
"""

import errno
import logging
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import TypeVar

from mrt_hpc.domains.base import grader_digest
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import EvaluationUnit
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark
from mrt_hpc.roles.evaluation_summary import Regrader, changed_verdicts
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.shutdown import run_until_asked_to_leave
from mrt_hpc.run.atomic import make_folder, moved, sync_directory, write_json, write_text
from mrt_hpc.run.evaluation_settings import Fingerprint, fingerprint_of
from mrt_hpc.run.events import Use
from mrt_hpc.run.groups import Sampled, commit_group, merged, read_group, refuse_other_samples
from mrt_hpc.run.layout import IDENTITY
from mrt_hpc.run.leases import Heart, Holder, Leases
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.retries import list_directory, wait_until
from mrt_hpc.run.weights import Weights

# The results folder: samples of evaluations, kept under the fingerprint of all that decides them, for all runs to use.
#
# Below the folder of a fingerprint each problem has its batches of samples. A batch is committed whole, names the
# numbers of its samples and the grader that judged them, and is never changed: more samples are a further batch, and
# verdicts of another grader are another batch of the same samples.


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
    def of(results: Path, fingerprint: Fingerprint) -> "StoredSamples":
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

    def read(self, batch: JudgedSamples, numbers: Collection[int], problem: str, stages: int = 1) -> Sampled:
        """Read some samples of a batch. All who use the folder may write there, so that the name of a batch proves
        nothing of what it holds.

        Args:
            batch: of the problem.
            numbers: of the wanted samples.
            problem: its id.
            stages: the rollouts of each sample.

        Raises:
            DamagedError: the batch is not what was written, or not what its name says.
        """
        whole = refuse_other_samples(read_group(batch.path), problem, batch.samples, batch.path, stages)
        return samples_of(whole, numbers)

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
    """The samples of the problems of one shard, where the results folder keeps them. Positions of problems are those
    in the whole benchmark.
    """

    task: Task
    store: StoredSamples
    benchmark: Benchmark
    version: int

    @staticmethod
    def of(task: Task, unit: EvaluationUnit, benchmark: Benchmark, weights: Weights) -> "StoredParts":
        """The samples of one unit of an evaluation: in the results folder that the recipe names, or in the run."""
        fingerprint = fingerprint_of(task.layout, task.experiment, benchmark, weights.digest)
        if (named := task.experiment.evaluation.results) is not None:
            results = Path(named)
        else:
            results = task.layout.evaluation_samples(unit.version, unit.benchmark)
            task.retrying(lambda: make_folder(results), f"the folder {results}")
        store = writing(task, results, lambda: StoredSamples.of(results, fingerprint))
        return StoredParts(task, store, benchmark, unit.version)

    def lacking(self, positions: Iterable[int]) -> dict[range, list[int]]:
        """The positions of problems, by the numbers of the samples that have to be drawn."""
        positions_by_samples: dict[range, list[int]] = defaultdict(list)
        for position in positions:
            if missing := self.store.lacking(position, self.benchmark.samples):
                positions_by_samples[missing].append(position)
        return dict(positions_by_samples)

    def alive(self) -> Heart:
        """Show the holders of other leases in the results folder that this task lives, during the block."""
        limit_s = self.task.experiment.resilience.heartbeat_limit_s
        return Heart(self.store.heart(self.task.holder), self.task.attempt, limit_s)

    def claimed(self, lacking: Mapping[range, list[int]]) -> dict[range, list[int]]:
        """Those of the problems that no other task samples at this moment; this task then holds a lease on each,
        as long as it is ``alive``.
        """
        taken = [
            p for positions in lacking.values() for p in positions if self._writing(partial(self._leases.claim, p))
        ]
        # Another task may have added samples, and released its lease, since these were found to be lacking.
        mine = self.lacking(taken)
        for position in set(taken).difference(*mine.values()):
            self._leases.release(position)
        return mine

    def wait(self, lacking: Mapping[range, list[int]]) -> None:
        """Wait until other tasks have sampled one of these problems, or have ended without it."""
        waiting = sorted(position for positions in lacking.values() for position in positions)
        log.info("another evaluation samples %d problem(s) that this one needs", len(waiting))

        def changed() -> bool:
            free = self._leases.free(waiting)
            return bool(free) or any(not self.store.lacking(p, self.benchmark.samples) for p in waiting)

        self.task.spend(Use.WAITING)
        with self.task.shutdown.while_waiting():
            wait_until(changed, reason="samples of another evaluation", deadline_s=inf, longest_pause_s=LONGEST_LOOK_S)

    def commit(self, position: int, samples: range, sampled: Sampled) -> bool:
        """Write a batch of a problem's samples, and let other tasks have the problem.

        Raises:
            DamagedError: the way of evaluating has made other samples than these.
        """
        refuse_other_samples(sampled, self._ids[position], samples, self.store.problem(position), self._stages)
        won = self._writing(lambda: self.store.commit(position, samples, sampled, self.grader))
        self._leases.release(position)
        return won

    def sampled(self, positions: Iterable[int]) -> dict[int, Sampled]:
        """The samples of the problems that have all of theirs, by position. What another grader has judged is judged
        again, and kept; what is damaged is set aside.
        """
        stored = {position: self._batches(position) for position in positions}
        self._regrade([batch for batches in stored.values() for batch, _ in batches])
        return {p: sampled for p in stored if stored[p] and (sampled := self._merged(p)) is not None}

    def _batches(self, position: int) -> list[tuple[JudgedSamples, list[int]]]:
        """The batches of a problem; none where samples are missing."""
        chosen = self.store.chosen(position, self.benchmark.samples, self.grader)
        return chosen if sum(len(numbers) for _, numbers in chosen) == self.benchmark.samples else []

    def _merged(self, position: int) -> Sampled | None:
        """The samples of a problem; None where some are missing, or were damaged."""
        parts = [self._readable(batch, numbers) for batch, numbers in self._batches(position)]
        whole = [sampled for sampled in parts if sampled is not None]
        return as_of(merged(whole), self.version) if parts and len(whole) == len(parts) else None

    def _readable(self, batch: JudgedSamples, numbers: list[int]) -> Sampled | None:
        try:
            problem, stages = self._ids[batch.position], self._stages
            return self.task.retrying(lambda: self.store.read(batch, numbers, problem, stages), f"reading {batch.path}")
        except DamagedError as damage:
            self._set_aside(batch, f"samples that cannot be used: {damage.what} ({damage.where})")
            return None

    def _set_aside(self, batch: JudgedSamples, reason: str) -> None:
        """Move a damaged batch away: in a run like all that is damaged there, else within the results folder."""
        if batch.path.is_relative_to(self.task.layout.root):
            self.task.set_aside([batch.path], reason)
        else:
            place = self._writing(lambda: self.store.set_aside(batch))
            log.warning("moved to %s: %s", place or "set_aside", reason)

    def _regrade(self, batches: list[JudgedSamples]) -> None:
        """Judge batches of other graders again, and keep the verdicts as further batches."""
        others = [batch for batch in batches if batch.grader != self.grader[:DIGITS]]
        if not others:
            return
        read = [(batch, self._readable(batch, list(batch.samples))) for batch in others]
        there = [(batch, sampled) for batch, sampled in read if sampled is not None]
        log.info("another grader has judged %d batch(es) of samples: they are judged again", len(there))
        layout, before = self.task.layout, [sampled for _, sampled in there]
        regrader = Regrader(layout, self.task.experiment, self.benchmark, layout.weights_version(self.version))
        judged = run_until_asked_to_leave(self.task.shutdown, regrader.all(before))
        for (batch, _), sampled in zip(there, judged, strict=True):
            self._writing(partial(self.store.commit, batch.position, batch.samples, sampled, self.grader))
        for old, new in changed_verdicts(before, judged):
            log.info(
                "problem %s, sample %d: reward %g with answer %r, and %g with answer %r before",
                new.problem_id, new.sample, new.reward, new.answer, old.reward, old.answer,
            )  # fmt: skip

    def _writing(self, action: Callable[[], T]) -> T:
        return writing(self.task, self.store.directory, action)

    @cached_property
    def grader(self) -> str:
        """The digest of the grader of the benchmark."""
        return grader_of(self.task.experiment, self.benchmark)

    @cached_property
    def _ids(self) -> list[str]:
        """The ids of the problems, by position."""
        return [p.id for p in read_problems(self.task.layout.benchmark_data(self.benchmark.name))]

    @property
    def _stages(self) -> int:
        return 1 if self.benchmark.mode is None else len(self.benchmark.mode.stages)

    @property
    def _leases(self) -> Leases:
        samples = self.benchmark.samples
        return Leases(
            self.store.leases,
            self.task.holder,
            self.task.observer,
            lambda position: not self.store.lacking(position, samples),
            self.store.heart,
        )


def as_of(sampled: Sampled, version: int) -> Sampled:
    """The samples with the number that their weights version has in this run."""
    rollouts = [replace(r, weights_version=version) for r in sampled.rollouts]
    return replace(sampled, rollouts=rollouts, branches=[replace(b, weights_version=version) for b in sampled.branches])
