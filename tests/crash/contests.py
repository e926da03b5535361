"""What several processes do at once to the same files of a run, and what must hold whatever the order."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from interleaving import Process
from invariants import Audit
from protocols import Groups, Training, Versions, group_is_whole, is_whole
from protocols_of_runs import FINGERPRINT, JOB, Making, Stored, recipe_and_plan
from samples import rollout, sampled
from tiny_training import TinyRun

from mrt_hpc.attempt.ledger import claim_run, record_submission, submissions
from mrt_hpc.attempt.sole_attempt import sole_attempt
from mrt_hpc.errors import UserError
from mrt_hpc.roles.stored_parts import StoredSamples
from mrt_hpc.run import leases
from mrt_hpc.run.archive import archive_groups, read_sampled, sampled_positions
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.leases import Heart, Holder, Leases, Observer, group_leases
from mrt_hpc.run.manifest import DamagedError, verify
from mrt_hpc.run.turns import Turn, remove_abandoned
from mrt_hpc.run.weights import published_versions
from mrt_hpc.submit.create import create_or_open

LIMIT_S = 20.0


def now() -> float:
    """The time, which is simulated."""
    return leases.time.monotonic()


def pause(seconds: float = 1.0) -> None:
    leases.time.sleep(seconds)


class Contest:
    """One of them."""

    name: str
    interleavings: int
    """How many the tests try."""
    kept: tuple[str, ...] = ()
    """The seeds of orders that once found a fault: the tests try them always."""
    allowed: tuple[type[Exception], ...] = ()
    """The errors with which a process that lives may end."""

    def make(self, layout: RunLayout) -> None:
        """What is there before."""
        layout.root.mkdir()
        layout.identity.write_text("run")

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        """What each process does."""
        raise NotImplementedError

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        """What does not hold afterwards."""
        raise NotImplementedError


class Sampling(Contest):
    """Tasks share the groups of an iteration out among them."""

    name = "sampling"
    interleavings = 300
    positions = range(3)

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        return [partial(self._sample, layout, number) for number in range(2)]

    def _sample(self, layout: RunLayout, number: int) -> tuple[list[int], list[int]]:
        me = Holder(layout.root, "segment-000.inference", number, f"a{number}")
        leases = group_leases(layout, 0, me, Observer(LIMIT_S, now))
        claims, won = [], []
        with Heart(leases.heart(me), me.attempt, LIMIT_S):
            while missing := [p for p in self.positions if p not in sampled_positions(layout, 0)]:
                for position in missing:
                    if leases.claim(position):
                        claims.append(position)
                        pause(0.5)
                        if commit_group(layout.group(0, position), sampled(rollout(f"by {number}", 0))):
                            won.append(position)
                pause()
        return claims, won

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        for position in self.positions:
            winners = [p.number for p in processes if p.outcome is not None and position in p.outcome[1]]
            if len(winners) > 1:
                yield f"{winners} have both committed group {position}"
            if not layout.group(0, position).exists():
                yield f"group {position} was not sampled by those who live"
            elif winners and read_sampled(layout, 0, position).rollouts[0].problem_id != f"by {winners[0]}":
                yield f"group {position} is not that of its winner"
        if not any(p.was_killed or p.stood_still for p in processes):
            claims = [position for p in processes for position in p.outcome[0]]
            if sorted(claims) != list(self.positions):
                yield f"undisturbed tasks have sampled {claims}"


@dataclass
class Inside:
    """From when to when a process was inside a block that one process at a time may be in."""

    entered: float
    left: float = float("inf")


class OneAtATime(Contest):
    """Blocks that one process at a time may be in: at most one is. Of several at once, all may be refused."""

    count = 3

    def block(self, layout: RunLayout, number: int) -> AbstractContextManager[None]:
        raise NotImplementedError

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        self.inside: dict[int, Inside] = {}
        return [partial(self._enter, layout, number) for number in range(self.count)]

    def _enter(self, layout: RunLayout, number: int) -> str:
        try:
            with self.block(layout, number):
                self.inside[number] = Inside(now())
                for _ in range(4):
                    (layout.root / f"{number}").touch()  # may be killed here, or stand still
                    pause(0.7)
                self.inside[number].left = now()
        except UserError as error:
            return error.what
        return "was inside"

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        for first, one in self.inside.items():
            for second, other in self.inside.items():
                if first != second and one.entered <= other.entered < self._until(one, processes[first]):
                    yield f"{second} entered at {other.entered}, where {first} was from {one.entered} to {one.left}"

    def _until(self, inside: Inside, process: Process) -> float:
        """A process that was killed, or stands still for longer than its heart may, holds nothing any more."""
        lost = [start for start, end in process.stood_still if end - start >= LIMIT_S / 2 and end > inside.entered]
        return min([inside.left, *lost])


class Claiming(OneAtATime):
    """Three submissions of one run, on three hosts."""

    name = "claiming"
    interleavings = 3800
    kept = ("1 957", "91002 1553")

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        layout.jobs.mkdir()

    def block(self, layout: RunLayout, number: int) -> AbstractContextManager[None]:
        return claim_run(layout, LIMIT_S)


class Attempts(OneAtATime):
    """Jobs of one task."""

    name = "attempts"
    interleavings = 300

    def make(self, layout: RunLayout) -> None:
        create_or_open(layout.root, *recipe_and_plan(f"resilience.heartbeat_limit_s={LIMIT_S}"))
        TinyRun.of(layout)

    def block(self, layout: RunLayout, number: int) -> AbstractContextManager[None]:
        return sole_attempt(replace(TinyRun.of(layout).trainer, attempt=f"{number + 1}.0"))


class Turns(OneAtATime):
    """The two processes of a colocated task, and one that removes the turns of attempts that were killed."""

    name = "turns"
    interleavings = 300

    @contextmanager
    def block(self, layout: RunLayout, number: int) -> Iterator[None]:
        turn = Turn(layout.root / "task.turn")
        try:
            while not turn.take():
                pause()
            yield
            turn.pass_on()
        finally:  # the kernel closes the files of a process that ends
            if turn._descriptor is not None:
                os.close(turn._descriptor)

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        return [*super().acts(layout)[:2], partial(self._remove, layout)]

    def _remove(self, layout: RunLayout) -> None:
        remove_abandoned([layout.root / "other.turn"])

    def _until(self, inside: Inside, process: Process) -> float:
        """A process that stands still has its turn; one that was killed has none."""
        return min([inside.left, *(start for start, end in process.stood_still if end == float("inf"))])

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        (layout.root / "other.turn").touch()

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        yield from super().wrong(layout, processes)
        if (layout.root / "other.turn").exists() and not processes[2].was_killed:
            yield "the file of an attempt that was killed is left"
        for process in processes[:2]:
            if process.outcome != "was inside" and not process.was_killed:
                yield f"{process.number} had no turn"


class Submissions(Contest):
    """Several processes record jobs."""

    name = "submissions"
    interleavings = 4000

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        layout.jobs.mkdir()

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        return [partial(self._record, layout, number) for number in range(3)]

    def _record(self, layout: RunLayout, number: int) -> list[str]:
        ids = [f"{number}{i}" for i in range(2)]
        for name in ids:
            record_submission(layout, f"job{number}", name, "site")
        return ids

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        there = [entry.job_id for entry in submissions(layout)]
        for process in processes:
            if process.outcome and (lost := {*process.outcome} - {*there}):
                yield f"jobs {lost} are not recorded"
            mine = [name for name in there if name.startswith(str(process.number))]
            if mine != sorted(mine):
                yield f"the jobs of {process.number} stand in the order {mine}"


class Pruning(Contest):
    """A reader of weights versions beside a trainer that publishes and removes them."""

    name = "pruning"
    interleavings = 3300

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        return [partial(Versions().act, layout, lambda _: None), partial(self._read, layout)]

    def _read(self, layout: RunLayout) -> list[str]:
        damaged = []
        for _ in range(6):
            for version in published_versions(layout):
                try:
                    verify(layout.weights_version(version))
                except DamagedError as damage:
                    if layout.weights_version(version).exists():
                        damaged.append(str(damage))
            pause(0.01)
        return damaged

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        if processes[1].outcome:
            yield f"a version that stays looks damaged: {processes[1].outcome}"
        if not processes[0].was_killed and published_versions(layout) != [Versions.last]:
            yield f"versions {published_versions(layout)} are left"


class Archiving(Contest):
    """A reader of groups beside a trainer that archives them."""

    name = "archiving"
    allowed = (FileNotFoundError,)
    interleavings = 150
    kept = ("11 13",)
    positions = range(2)

    def make(self, layout: RunLayout) -> None:
        super().make(layout)
        for position in self.positions:
            commit_group(layout.group(0, position), sampled(rollout(f"p{position}", 0)))

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        archiving = partial(archive_groups, layout, 0, len(self.positions))
        return [archiving, archiving, partial(self._read, layout)]

    def _read(self, layout: RunLayout) -> None:
        for _ in range(3):
            for position in sampled_positions(layout, 0):
                read_sampled(layout, 0, position)
            assert sampled_positions(layout, 0) == {*self.positions}

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        if (error := processes[2].error) is not None and not processes[2].was_killed:
            yield f"the reader: {error!r}"
        if not all(group_is_whole(layout, 0, position) for position in self.positions):
            yield "a group is not whole"


class Makings(Contest):
    """Two submissions make the same run directory."""

    name = "makings"
    interleavings = 100

    def make(self, layout: RunLayout) -> None:
        layout.root.mkdir()

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        return [partial(Making().act, layout, lambda _: None) for _ in range(2)]

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        if not all(p.was_killed for p in processes) and not Making().kept(layout, "a run"):
            yield "the run is not whole"


class Evaluations(Contest):
    """Evaluations of two runs share stored samples."""

    name = "evaluations"
    interleavings = 400

    def make(self, layout: RunLayout) -> None:
        Stored().make(layout)

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        return [partial(self._evaluate, layout, number) for number in range(2)]

    def _evaluate(self, layout: RunLayout, number: int) -> int:
        store, drawn = StoredSamples.of(layout.root / "results", FINGERPRINT), 0
        me, observer = Holder(layout.root / f"run{number}", JOB, 0, f"a{number}"), Observer(LIMIT_S, now)
        with Heart(store.heart(me), me.attempt, LIMIT_S):
            while missing := [problem for problem in range(2) if store.lacking_numbers(problem, 1)]:
                for problem in missing:
                    leases = Leases(store.leases, me, observer, lambda p: not store.lacking_numbers(p, 1), store.heart)
                    if leases.claim(problem) and (lacking := store.lacking_numbers(problem, 1)):
                        store.commit(problem, lacking, sampled(rollout(f"p{problem}", 0)), "a" * 12)
                        drawn += 1
                        leases.release(problem)
                pause()
        return drawn

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        store = StoredSamples(layout.root / "results" / FINGERPRINT.digest[:24])
        if not all(p.was_killed for p in processes):
            for problem in range(2):
                if not all(is_whole(batch.path) for batch in store.batches(problem)) or store.lacking_numbers(
                    problem, 1
                ):
                    yield f"problem {problem} is not there as a whole"


class Moving(Contest):
    """A run directory is moved away while a task writes to it: nothing is made again at its old place."""

    name = "moving"
    allowed = (UserError, FileNotFoundError)
    interleavings = 400

    def make(self, layout: RunLayout) -> None:
        layout.root.mkdir()
        super().make(self._run(layout))

    def _run(self, layout: RunLayout) -> RunLayout:
        return RunLayout(layout.root / "run")

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        writing = partial(Groups().act, self._run(layout), lambda _: None)
        return [writing, partial(self._run(layout).root.rename, layout.root / "moved")]

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        if not processes[1].was_killed and self._run(layout).root.exists():
            yield f"at the old place: {[path.name for path in self._run(layout).root.iterdir()]}"


class Trainings(Contest):
    """Two attempts at a trainer, of which the second takes the first for lost, and which do not compute the same: what
    is left is the work of one.
    """

    name = "trainings"
    allowed = (UserError,)
    interleavings = 120
    kept = ("92006 52",)

    def make(self, layout: RunLayout) -> None:
        Training().make(layout)

    def acts(self, layout: RunLayout) -> list[Callable[[], Any]]:
        return [partial(Training().act, layout, lambda _: None) for _ in range(2)]

    def wrong(self, layout: RunLayout, processes: list[Process]) -> Iterator[str]:
        training, found = Training(), Audit()
        training.act(layout, lambda _: None)
        training.check(found, layout)
        yield from found.violations


CONTESTS = (
    Moving, Trainings, Sampling, Claiming, Attempts, Turns, Submissions, Pruning, Archiving, Makings,
    Evaluations,
)  # fmt: skip
