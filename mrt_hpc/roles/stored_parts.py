"""Stored samples of evaluations, in the results folder that all runs share or one inside the run; and a shard's part of
them.
"""

import errno
import logging
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import TypeVar

from mrt_hpc.domains.base import grader_digest
from mrt_hpc.domains.verifiers import verifier_of
from mrt_hpc.errors import UserError
from mrt_hpc.plan.jobs import EvaluationUnit
from mrt_hpc.recipe.schema import Experiment
from mrt_hpc.recipe.sections import Benchmark
from mrt_hpc.roles.regrading import Regrader, changed_verdicts
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.task.shutdown import run_until_asked_to_leave
from mrt_hpc.run.atomic import make_folder, move_path, sync_directory, write_json, write_text
from mrt_hpc.run.evaluation_settings import Fingerprint, fingerprint_of
from mrt_hpc.run.events import Use
from mrt_hpc.run.groups import Sampled, commit_group, merge_samples, read_group, refuse_other_samples
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
"""Hex digits of a grader's digest in a batch's name."""


@dataclass(frozen=True)
class JudgedSamples:
    path: Path
    position: int
    samples: range
    grader: str
    """First digits of its digest."""


@dataclass(frozen=True)
class StoredSamples:
    directory: Path

    @staticmethod
    def of(results: Path, fingerprint: Fingerprint) -> "StoredSamples":
        """The folder also keeps the fingerprint in readable form."""
        store = StoredSamples(results / fingerprint.digest[:24])
        if not store.readable_fingerprint.exists():
            store.directory.mkdir(exist_ok=True)
            sync_directory(results)  # before the fingerprint, which is what others look for
            write_text(store.directory / IDENTITY, f"{store.directory.name}\n")
            write_json(store.readable_fingerprint, fingerprint.model_dump(mode="json"))
        return store

    @property
    def readable_fingerprint(self) -> Path:
        return self.directory / "fingerprint.json"

    @property
    def leases(self) -> Path:
        return self.directory / "leases"

    def heart(self, holder: Holder) -> Path:
        """It lies beside the leases: another user's run directory may be closed, and a container holds only its own."""
        return self.directory / "hearts" / f"{holder.task_digest}.json"

    def problem(self, position: int) -> Path:
        """One problem's batches, by position in the benchmark."""
        return self.directory / "problems" / f"{position:05d}"

    def batches(self, position: int) -> list[JudgedSamples]:
        batches = [(path, _BATCH.fullmatch(path.name)) for path in list_directory(self.problem(position))]
        return sorted(
            (JudgedSamples(path, position, range(int(m[1]), int(m[2])), m[3]) for path, m in batches if m),
            key=lambda batch: (batch.samples.start, batch.path.name),
        )

    def choose_batches(self, position: int, count: int, grader: str) -> list[tuple[JudgedSamples, list[int]]]:
        """Batches that give a problem's first ``count`` samples, each with the numbers taken from it; verdicts of
        ``grader`` are preferred.
        """
        wanted, taken = set(range(count)), []
        for batch in sorted(self.batches(position), key=lambda batch: batch.grader != grader[:DIGITS]):
            if here := sorted(wanted.intersection(batch.samples)):
                taken.append((batch, here))
                wanted.difference_update(here)
        return taken

    def lacking_numbers(self, position: int, count: int) -> range:
        """Sample numbers to draw: from the first missing to the last wanted; empty if all are there."""
        there = {number for batch in self.batches(position) for number in batch.samples}
        missing = [number for number in range(count) if number not in there]
        return range(missing[0], missing[-1] + 1) if missing else range(0)

    def commit(self, position: int, samples: range, sampled: Sampled, grader: str) -> bool:
        name = f"{samples.start:05d}-{samples.stop:05d}.{grader[:DIGITS]}"
        return commit_group(self.problem(position) / name, sampled, grader=grader)

    def read(self, batch: JudgedSamples, numbers: Collection[int], problem: str, stages: int = 1) -> Sampled:
        """Read samples of a batch; each has rollouts of so many ``stages``. All users of the folder may write there, so
        a batch's name proves nothing.

        Raises:
            DamagedError: the batch is not what was written, or not what its name says.
        """
        whole = refuse_other_samples(read_group(batch.path), problem, batch.samples, batch.path, stages)
        return samples_of(whole, numbers)

    def set_aside(self, batch: JudgedSamples) -> Path | None:
        """It returns None if another task did it."""
        place = self.directory / "set_aside" / f"{batch.path.parent.name}.{batch.path.name}.{uuid.uuid4().hex[:8]}"
        place.parent.mkdir(exist_ok=True)
        return move_path(batch.path, place)


def samples_of(sampled: Sampled, numbers: Collection[int]) -> Sampled:
    """Records of some samples with all stages; costs count only these."""
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
"""The folder is gone, or not writable for this user."""
LONGEST_LOOK_S = 5.0
"""Between looks at samples that another evaluation draws."""


def write_results(task: Task, directory: Path, action: Callable[[], T]) -> T:
    """Write to a results folder, waiting on a full disk."""
    try:
        return task.retry(action, f"samples of {directory}")
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
    grading = experiment.grading
    verifier = verifier_of(benchmark.problems, grading)
    return grader_digest(verifier, grading.time_limit_s, grading.memory_limit_gib)


@dataclass(frozen=True)
class StoredParts:
    """One shard's samples in the results folder. Positions are those in the whole benchmark."""

    task: Task
    store: StoredSamples
    benchmark: Benchmark
    version: int

    @staticmethod
    def of(task: Task, unit: EvaluationUnit, benchmark: Benchmark, weights: Weights) -> "StoredParts":
        """The samples are in the recipe's results folder, or in the run."""
        fingerprint = fingerprint_of(task.layout, task.experiment, benchmark, weights.digest)
        if (named := task.experiment.evaluation.results) is not None:
            results = Path(named)
        else:
            results = task.layout.evaluation_samples(unit.version, unit.benchmark)
            task.retry(lambda: make_folder(results), f"the folder {results}")
        store = write_results(task, results, lambda: StoredSamples.of(results, fingerprint))
        return StoredParts(task, store, benchmark, unit.version)

    def lacking_positions(self, positions: Iterable[int]) -> dict[range, list[int]]:
        """Sample numbers to draw, with the positions that lack them."""
        positions_by_samples: dict[range, list[int]] = defaultdict(list)
        for position in positions:
            if missing := self.store.lacking_numbers(position, self.benchmark.samples):
                positions_by_samples[missing].append(position)
        return dict(positions_by_samples)

    def alive(self) -> Heart:
        limit_s = self.task.experiment.resilience.heartbeat_limit_s
        return Heart(self.store.heart(self.task.holder), self.task.attempt, limit_s)

    def claim_lacking(self, lacking: Mapping[range, list[int]]) -> dict[range, list[int]]:
        """Problems that no other task samples; this task then holds their leases while ``alive``."""
        every = chain.from_iterable(lacking.values())
        taken = [p for p in every if self._write_to_store(partial(self._leases.claim, p))]
        # Another task may have added samples, and released its lease, since these were found to be lacking.
        mine = self.lacking_positions(taken)
        for position in set(taken).difference(*mine.values()):
            self._leases.release(position)
        return mine

    def wait(self, lacking: Mapping[range, list[int]]) -> None:
        """Wait until other tasks have sampled one of these, or ended without it."""
        waiting = sorted(chain.from_iterable(lacking.values()))
        log.info("another evaluation samples %d problem(s) that this one needs", len(waiting))

        def has_changed() -> bool:
            free = self._leases.free(waiting)
            return bool(free) or any(map(self._is_sampled, waiting))

        self.task.spend(Use.WAITING)
        with self.task.shutdown.while_waiting():
            wait_until(
                has_changed, reason="samples of another evaluation", deadline_s=inf, longest_pause_s=LONGEST_LOOK_S
            )

    def commit(self, position: int, samples: range, sampled: Sampled) -> bool:
        """Write a batch, and release its problem.

        Raises:
            DamagedError: the mode made other samples.
        """
        refuse_other_samples(sampled, self._ids[position], samples, self.store.problem(position), self._stages)
        won = self._write_to_store(lambda: self.store.commit(position, samples, sampled, self.grader))
        self._leases.release(position)
        return won

    def whole_samples(self, positions: Iterable[int]) -> dict[int, Sampled]:
        """Complete problems' samples, by position. Other graders' verdicts are judged again and kept; damage is set
        aside.
        """
        stored = {position: self._batches(position) for position in positions}
        self._regrade([batch for batches in stored.values() for batch, _ in batches])
        return {p: sampled for p in stored if stored[p] and (sampled := self._merge_position(p)) is not None}

    def _batches(self, position: int) -> list[tuple[JudgedSamples, list[int]]]:
        chosen = self.store.choose_batches(position, self.benchmark.samples, self.grader)
        return chosen if sum(len(numbers) for _, numbers in chosen) == self.benchmark.samples else []

    def _merge_position(self, position: int) -> Sampled | None:
        parts = [self._readable(batch, numbers) for batch, numbers in self._batches(position)]
        whole = [sampled for sampled in parts if sampled is not None]
        return set_version(merge_samples(whole), self.version) if parts and len(whole) == len(parts) else None

    def _readable(self, batch: JudgedSamples, numbers: list[int]) -> Sampled | None:
        try:
            problem, stages = self._ids[batch.position], self._stages
            return self.task.retry(lambda: self.store.read(batch, numbers, problem, stages), f"reading {batch.path}")
        except DamagedError as damage:
            self._set_aside(batch, f"samples that cannot be used: {damage.what} ({damage.where})")
            return None

    def _set_aside(self, batch: JudgedSamples, reason: str) -> None:
        """The batch is moved within the run or the results folder, wherever it is."""
        if batch.path.is_relative_to(self.task.layout.root):
            self.task.set_aside([batch.path], reason)
        else:
            place = self._write_to_store(lambda: self.store.set_aside(batch))
            log.warning("moved to %s: %s", place or "set_aside", reason)

    def _regrade(self, batches: list[JudgedSamples]) -> None:
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
            self._write_to_store(partial(self.store.commit, batch.position, batch.samples, sampled, self.grader))
        for old, new in changed_verdicts(before, judged):
            log.info(
                "problem %s, sample %d: reward %g with answer %r, and %g with answer %r before",
                new.problem_id, new.sample, new.reward, new.answer, old.reward, old.answer,
            )  # fmt: skip

    def _write_to_store(self, action: Callable[[], T]) -> T:
        return write_results(self.task, self.store.directory, action)

    @cached_property
    def grader(self) -> str:
        return grader_of(self.task.experiment, self.benchmark)

    @cached_property
    def _ids(self) -> list[str]:
        return [p.id for p in read_problems(self.task.layout.benchmark_data(self.benchmark.name))]

    @property
    def _stages(self) -> int:
        return 1 if self.benchmark.mode is None else len(self.benchmark.mode.stages)

    @property
    def _leases(self) -> Leases:
        return Leases(self.store.leases, self.task.holder, self.task.observer, self._is_sampled, self.store.heart)

    def _is_sampled(self, position: int) -> bool:
        return not self.store.lacking_numbers(position, self.benchmark.samples)


def set_version(sampled: Sampled, version: int) -> Sampled:
    rollouts = [replace(r, weights_version=version) for r in sampled.rollouts]
    return replace(sampled, rollouts=rollouts, branches=[replace(b, weights_version=version) for b in sampled.branches])
