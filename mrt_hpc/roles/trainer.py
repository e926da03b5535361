"""The trainer role: for each iteration of a segment wait for the rollouts, update, checkpoint, publish.

The order within an iteration makes every instant safe to be killed at: metrics, then the checkpoint, then the weights
version. What lies after the checkpoint resumed from can only be younger work that is computed again; it is set aside,
never mixed in. A trainer that is told to leave does so between two iterations, and saves first what no checkpoint has.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from mrt_hpc.plan.compile import evaluated_versions
from mrt_hpc.plan.model import Role
from mrt_hpc.recipe.errors import ExitCode, UserError
from mrt_hpc.roles.advantages import Batch, batch_of, training_sequences
from mrt_hpc.roles.metrics import Timeline, iteration_metrics
from mrt_hpc.roles.notice import GaveBack, Stopped
from mrt_hpc.roles.peers import Life
from mrt_hpc.roles.quality import trace_quality
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.run.atomic import remove_leftovers
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import Group, complete_groups, read_group
from mrt_hpc.run.lineage import evaluated_with_others, younger_than
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.patience import Patience, patiently
from mrt_hpc.run.tasks import read_task
from mrt_hpc.run.weights import prune, published_versions
from mrt_hpc.run.weights import publish as publish_version
from mrt_hpc.training import checkpoint, export, rendezvous
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.rendezvous import Ranks
from mrt_hpc.training.settings import TrainerSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mrt_hpc.analysis.model import IterationMetrics
    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.roles.peers import Peers, Vigil
    from mrt_hpc.roles.task import Task
    from mrt_hpc.training.statistics import UpdateStats

log = logging.getLogger(__name__)

ROUND_S = 30.0
"""Of waiting on rank 0, between two words to the other ranks: short beside the limit on their exchanges."""
LONGEST_EXCHANGE_S = 1800.0
"""Between ranks; a rank that waits for room on a full disk has its time on top."""
SPARE_S = 60.0
"""Before the time limit nothing is begun that would end later than this."""


class Next(Enum):
    """What a trainer does next."""

    WAIT = "wait"
    TRAIN = "train"
    PUBLISH = "publish"
    """The weights version that inference waits for is not there: it was damaged, and set aside."""
    LEAVE = "leave"


def run(task: Task) -> None:
    """Train the segment's iterations; every rank of the task calls this.

    Raises:
        UserError: inference failed, or does not run and the nodes are given back.
        Stopped: the task was told to leave, and has saved its state.
    """
    ranks = Ranks(task.rank, task.world_size, task.local_rank)
    limit_s = LONGEST_EXCHANGE_S + task.recipe.resilience.full_disk_minutes * 60
    rendezvous.join(ranks, task.layout.rendezvous / f"{task.log_stem}.json", limit_s)
    try:
        if rendezvous.on_rank_zero(task.layout.weights_version(task.job.end_iteration).exists):
            log.info("all weights versions of the segment are published already")
            return
        with Tracker.of(task) as tracker:
            trainer = Trainer.resumed(task, ranks, tracker)
            with task.notice.at_safe_points():
                while trainer.iteration < task.job.end_iteration:
                    trainer.go_on()
    finally:
        rendezvous.leave()


def trainer_settings(recipe: Recipe) -> TrainerSettings:
    """The engine's settings: the recipe's training section and what it needs of the others."""
    role_only = {"checkpoint_every", "keep_checkpoints", "keep_weights", "weights_dtype"}
    fields = recipe.training.model_dump(exclude=role_only)
    return TrainerSettings(
        **fields,
        total_steps=recipe.schedule.iterations * recipe.training.optimizer_steps_per_iteration,
        temperature=recipe.sampling.temperature,
        seed=recipe.seed,
    )


@dataclass
class Trainer:
    """The trained policy and the iteration it is at. Every method is called by all ranks together, unless it says
    otherwise.
    """

    task: Task
    engine: TrainerEngine
    tracker: Tracker
    iteration: int
    """Updates done since the start of the run, which is the number of the weights version it holds."""
    statements: dict[str, str]
    """Texts of the training problems by id."""
    saved: int
    """The iteration of the newest checkpoint; the initial weights are as good as one."""
    _groups: dict[int, Group] = field(default_factory=dict)
    """Of the iteration under way, as far as this rank has read them."""
    _longest_step_s: float = 0.0
    _longest_save_s: float = 0.0

    @staticmethod
    def resumed(task: Task, ranks: Ranks, tracker: Tracker) -> Trainer:
        """The trainer as of the newest good checkpoint, or of weights version 0."""
        layout, recipe = task.layout, task.recipe
        newest = rendezvous.on_rank_zero(lambda: newest_good_checkpoint(task))
        reference = layout.weights_version(0) if recipe.training.kl_coefficient > 0 else None
        engine = build(trainer_settings(recipe), layout.weights_version(0), ranks, reference)
        statements = {p.id: p.problem for p in read_problems(layout.train_data)}
        iteration = 0
        if newest is not None:
            iteration = int(checkpoint.load(engine, newest)["iteration"])
            task.events.emit(EventKind.RESUMED, iteration=iteration, checkpoint=newest.name, rank=task.rank)
        trainer = Trainer(task, engine, tracker, iteration, statements, saved=iteration)
        trainer.mend()
        return trainer

    def mend(self) -> None:
        """Make the files agree with the checkpoint: set aside what is younger, publish what was about to be."""

        def set_aside() -> None:
            reason = f"younger than the state after {self.iteration} iterations, from which training resumed"
            self.task.set_aside(younger_than(self.task.layout, self.iteration), reason)

        rendezvous.on_rank_zero(set_aside)
        self._keep_house(self._remove_leftovers)
        if not rendezvous.on_rank_zero(self._version_is_there):
            self.publish()

    def _remove_leftovers(self) -> None:
        """What earlier attempts were writing when they were lost: whole models, where a disk is short."""
        for directory in (self.task.layout.weights, self.task.layout.checkpoints):
            remove_leftovers(directory)

    def go_on(self) -> None:
        """Wait for what can be done next, and do it.

        Raises:
            Stopped: the task was told to leave.
        """
        timeline = Timeline()
        with timeline.phase("waiting"):
            what = self._await_next_or_save()
        if what is Next.LEAVE:
            self._leave()
        elif what is Next.PUBLISH:
            self.publish()
        else:
            self._iterate(timeline)

    def _await_next_or_save(self) -> Next:
        """What to do next; before a wait is given up, what no checkpoint has is saved."""
        try:
            return self._await_next()
        except UserError:
            if self.saved < self.iteration:
                self.save()
            if self.task.rank == 0:
                self._reopen_inference()
            raise

    def _await_next(self) -> Next:
        """What to do next, the same on every rank."""
        vigil = self.task.vigil(f"rollouts of iteration {self.iteration}", self._samplers())
        while (what := rendezvous.on_rank_zero(lambda: self._look_for_a_round(vigil))) is Next.WAIT:
            continue  # no rank waits longer for word from the first than a round
        return what

    def _look_for_a_round(self, vigil: Vigil) -> Next:
        """On rank 0: what to do next, or WAIT after a round of looking."""
        end = time.monotonic() + ROUND_S

        def look() -> Next | None:
            return self._next() or (Next.WAIT if time.monotonic() > end else None)

        return self.task.keep(vigil, look)

    def _next(self) -> Next | None:
        """On rank 0: what can be done now."""
        self._refuse_to_be_late()
        if self.task.notice.given:
            return Next.LEAVE
        if not self._version_is_there():
            return Next.PUBLISH
        return Next.TRAIN if self._read_new_groups() else None

    def _refuse_to_be_late(self) -> None:
        """Give notice to itself where the next step and its checkpoint would not end before the time limit."""
        needed = self._longest_step_s + self._longest_save_s
        if needed and self.task.seconds_left < needed + SPARE_S and not self.task.notice.given:
            left = f"{self.task.seconds_left:.0f} s are left, and a step with its checkpoint takes {needed:.0f} s"
            self.task.notice.tell(GaveBack(f"gave the nodes back: {left}"))

    def _read_new_groups(self) -> bool:
        """Read the groups that have come; whether all are there. A damaged one is set aside, to be sampled again."""
        layout = self.task.layout
        for position in sorted(complete_groups(layout.groups(self.iteration)) - self._groups.keys()):
            path = layout.group(self.iteration, position)
            try:
                self._groups[position] = self.task.patiently(partial(read_group, path), f"reading {path}")
            except DamagedError as damage:
                self.task.set_aside([path], f"a damaged group: {damage.what} ({damage.where})")
        return len(self._groups) == self.task.recipe.sampling.problems_per_iteration

    def _samplers(self) -> Peers:
        """Who samples this iteration: not this segment's inference, where a damaged checkpoint has sent it back."""
        return self.task.peers(Role.INFERENCE, range(self.iteration, self.iteration + 1))

    def _reopen_inference(self) -> None:
        """On rank 0: where groups are missing, and no task of inference is left to sample them."""
        lives = self._samplers().lives()
        there = complete_groups(self.task.layout.groups(self.iteration))
        missing = len(there) < self.task.recipe.sampling.problems_per_iteration
        if missing and set(lives.values()) <= {Life.DONE, Life.FAILED}:
            self.task.reopen(lives, f"groups of iteration {self.iteration} were found damaged, or gone, after its end")

    def _version_is_there(self) -> bool:
        """By the listing: a network filesystem may remember for a while that a name was not there."""
        return self.iteration in published_versions(self.task.layout)

    def _leave(self) -> None:
        """Save what no checkpoint has, and leave.

        Raises:
            Stopped: always.
        """
        if self.saved < self.iteration:
            self.save()
        self.task.notice.leave_if_given()
        raise Stopped(128 + 15)  # the first rank was told, this one not yet

    def _iterate(self, timeline: Timeline) -> None:
        """One iteration: update, checkpoint, publish."""
        with timeline.phase("loading"):
            batch = self._batch()
        with timeline.phase("advantages"):
            sequences = training_sequences(batch, self.task.recipe)
        with timeline.phase("optimisation"):
            stats = self.engine.update(sequences)
        self._longest_step_s = max(self._longest_step_s, timeline.working)
        done, self.iteration = self.iteration, self.iteration + 1
        self._emit(EventKind.STEP, iteration=done)
        if self._checkpoint_due():
            # The metrics come first: a checkpoint says that its iteration is wholly accounted for.
            self._write_metrics(self._metrics(done, batch, stats, timeline))
            with timeline.phase("checkpoint"):
                self.save()
        with timeline.phase("publishing"):
            self.publish()
        metrics = self._metrics(done, batch, stats, timeline)
        self._write_metrics(metrics)
        self.tracker.log(metrics)
        log.info("iteration %d: reward %.3f, loss %.4f, %.1f s", done, batch.reward_mean, stats.loss, timeline.total)

    def _batch(self) -> Batch:
        """All groups of the iteration, which the first rank has found complete."""
        if not self._read_new_groups():
            raise UserError(
                f"the groups of iteration {self.iteration} are not what the first rank saw",
                where=self.task.layout.groups(self.iteration),
                exit_code=ExitCode.RETRYABLE,
            )
        groups, self._groups = self._groups, {}
        return batch_of([groups[position] for position in sorted(groups)])

    def _checkpoint_due(self) -> bool:
        """At the recipe's interval, and at the end of a segment, where another job takes over."""
        return (
            self.iteration % self.task.recipe.training.checkpoint_every == 0
            or self.iteration == self.task.job.end_iteration
        )

    def save(self) -> None:
        """Write a checkpoint and drop the oldest."""
        layout, started = self.task.layout, time.monotonic()
        rendezvous.on_rank_zero(self._refuse_if_superseded)
        path = layout.checkpoint(self.iteration)
        mine = self.task.patiently(
            lambda: checkpoint.save(self.engine, path, {"iteration": self.iteration}),
            f"the checkpoint after {self.iteration} iterations",
        )
        _refuse_anothers(path, mine)
        self._keep_house(lambda: checkpoint.retain(layout.checkpoints, self.task.recipe.training.keep_checkpoints))
        self.saved = self.iteration
        self._longest_save_s = max(self._longest_save_s, time.monotonic() - started)
        self._emit(EventKind.CHECKPOINT, iteration=self.iteration, seconds=time.monotonic() - started)

    def publish(self) -> None:
        """Publish the weights version of this iteration and drop versions that nobody needs any more."""
        recipe, layout, version = self.task.recipe, self.task.layout, self.iteration

        def commit(write: Callable[[Path], None]) -> bool:
            def write_unless_superseded(directory: Path) -> None:
                write(directory)
                self._refuse_if_superseded()  # at the last moment: writing may have had to wait for room

            return self.task.patiently(
                lambda: publish_version(
                    layout,
                    version,
                    write_unless_superseded,
                    iteration=version,
                    attempt=self.task.attempt,
                    time=time.time(),
                ),
                f"weights version {version}",
            )

        _refuse_anothers(
            layout.weights_version(version), export.publish(self.engine, commit, recipe.training.weights_dtype)
        )
        self._emit(EventKind.PUBLISHED, version=version)
        rendezvous.on_rank_zero(self._set_aside_evaluations_of_others)
        self._keep_house(lambda: prune(layout, kept_versions(recipe, version)))
        self._keep_house(lambda: remove_leftovers(layout.weights))

    def _set_aside_evaluations_of_others(self) -> None:
        """On rank 0: where this version was another before, and has been evaluated."""
        layout, version = self.task.layout, self.iteration
        digest = read_manifest(layout.weights_version(version)).digest
        if stale := evaluated_with_others(layout, version, digest):
            reason = f"weights version {version} has been computed again, and is not what was evaluated"
            self.task.set_aside(stale, reason)
            jobs = [job for job in self.task.plan.jobs if any(unit.version == version for unit in job.evaluations)]
            units = [(j.name, n) for j in jobs for n, unit in enumerate(j.evaluations) if unit.version == version]
            self.task.reopen(units, reason)

    def _refuse_if_superseded(self) -> None:
        """On rank 0, before a commit.

        Raises:
            UserError: the task runs in another attempt by now; this one was taken for lost.
        """
        now = read_task(self.task.layout, self.task.job.name, self.task.index)
        if now.attempt != self.task.attempt:
            raise UserError(
                "another attempt has taken over: this one was taken for lost",
                value=now.attempt,
                expected=self.task.attempt,
                exit_code=ExitCode.RETRYABLE,
            )

    def _metrics(self, iteration: int, batch: Batch, stats: UpdateStats, timeline: Timeline) -> IterationMetrics:
        traces = [(self.statements[r.problem_id], r.text) for r in batch.rollouts]
        quality = trace_quality(self.task.recipe.data, traces)
        return iteration_metrics(iteration, batch, stats, timeline, quality)

    def _write_metrics(self, metrics: IterationMetrics) -> None:
        if self.task.rank == 0:
            path = self.task.layout.metrics(metrics.iteration)
            self.task.patiently(lambda: metrics.write(path), "the metrics")

    def _emit(self, kind: EventKind, **fields: object) -> None:
        if self.task.rank == 0:
            self.task.events.emit(kind, **fields)

    def _keep_house(self, remove: Callable[[], object]) -> None:
        """Remove what nobody needs, on rank 0; what cannot be removed now is tried again after the next iteration."""
        if self.task.rank == 0:
            self._refuse_if_superseded()
            try:
                patiently(remove, "removing old files", Patience(full_limit_s=0.0))
            except (OSError, UserError) as error:
                log.warning("old files could not be removed: %s", error)


def _refuse_anothers(path: Path, mine: bool) -> None:
    """What another attempt has committed in the meantime need not be what this one holds.

    Raises:
        UserError: it was there already.
    """
    if not mine:
        raise UserError(
            "another attempt has committed this: this one was taken for lost",
            where=path,
            exit_code=ExitCode.RETRYABLE,
        )


def newest_good_checkpoint(task: Task) -> Path | None:
    """The newest checkpoint that is as it was written; damaged ones are set aside. None where there is none."""

    def set_aside(path: Path, damage: UserError) -> None:
        task.set_aside([path], f"a damaged checkpoint: {damage.what} ({damage.where})")

    return checkpoint.good(task.layout.checkpoints, set_aside)


def kept_versions(recipe: Recipe, version: int) -> set[int]:
    """Weights versions that must stay: the newest few, the first, and all that the schedule evaluates."""
    newest = range(version - recipe.training.keep_weights + 1, version + 1)
    return {0, *newest, *evaluated_versions(recipe)}
