"""The trainer role: for each iteration of a segment wait for the rollouts, update, checkpoint, publish.

The order within an iteration makes every instant safe to be killed at: metrics, then the checkpoint, then the weights
version. What lies after the checkpoint resumed from can only be younger work that is computed again; it is set aside,
never mixed in.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.plan.compile import evaluated_versions
from mrt_hpc.plan.model import Role
from mrt_hpc.roles.advantages import Batch, batch_of, training_sequences
from mrt_hpc.roles.metrics import Timeline, iteration_metrics
from mrt_hpc.roles.quality import trace_quality
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.run.data import read_problems
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.lineage import set_aside_after
from mrt_hpc.run.shards import complete_shards, read_iteration_shard
from mrt_hpc.run.weights import prune
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
    from mrt_hpc.roles.task import Task
    from mrt_hpc.training.statistics import UpdateStats

log = logging.getLogger(__name__)


def run(task: Task) -> None:
    """Train the segment's iterations; every rank of the task calls this.

    Raises:
        UserError: inference failed, or a file that training needs is damaged.
    """
    if task.layout.weights_version(task.job.end_iteration).exists():
        log.info("all weights versions of the segment are published already")
        return
    ranks = Ranks(task.rank, task.world_size, task.local_rank)
    rendezvous.join(ranks, task.layout.rendezvous / f"{task.log_stem}.json")
    try:
        with Tracker.of(task) as tracker:
            trainer = Trainer.resumed(task, ranks, tracker)
            while trainer.iteration < task.job.end_iteration:
                trainer.iterate()
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
    """The trained policy and the iteration it is at. Every method is called by all ranks together."""

    task: Task
    engine: TrainerEngine
    tracker: Tracker
    iteration: int
    """Updates done since the start of the run, which is the number of the weights version it holds."""
    statements: dict[str, str]
    """Texts of the training problems by id."""

    @staticmethod
    def resumed(task: Task, ranks: Ranks, tracker: Tracker) -> Trainer:
        """The trainer as of the newest checkpoint, or of weights version 0."""
        layout, recipe = task.layout, task.recipe
        newest = checkpoint.newest(layout.checkpoints)
        reference = layout.weights_version(0) if recipe.training.kl_coefficient > 0 else None
        engine = build(trainer_settings(recipe), layout.weights_version(0), ranks, reference)
        statements = {p.id: p.problem for p in read_problems(layout.train_data)}
        trainer = Trainer(task, engine, tracker, 0, statements)
        if newest is not None:
            trainer.iteration = int(checkpoint.load(engine, newest)["iteration"])
            task.events.emit(EventKind.RESUMED, iteration=trainer.iteration, checkpoint=newest.name, rank=task.rank)
        trainer.mend()
        return trainer

    def mend(self) -> None:
        """Make the files agree with the checkpoint: set aside what is younger, publish what was about to be."""

        def set_aside() -> None:
            reason = f"younger than the checkpoint of iteration {self.iteration} that training resumed from"
            for path in set_aside_after(self.task.layout, self.iteration, reason):
                self.task.events.emit(EventKind.SET_ASIDE, path=str(path), reason=reason)

        rendezvous.on_rank_zero(set_aside)
        if not self.task.layout.weights_version(self.iteration).exists():
            self.publish()

    def iterate(self) -> None:
        """One iteration: wait, update, checkpoint, publish."""
        timeline = Timeline()
        batch = self._read_batch(timeline)
        with timeline.phase("advantages"):
            sequences = training_sequences(batch, self.task.recipe)
        with timeline.phase("optimisation"):
            stats = self.engine.update(sequences)
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

    def _read_batch(self, timeline: Timeline) -> Batch:
        """All shards of the iteration, once they are complete."""
        layout, wanted = self.task.layout, self.task.recipe.resources.inference.tasks

        def all_shards() -> list[Path] | None:
            shards = complete_shards(layout.shards(self.iteration))
            return shards if len(shards) == wanted else None

        with timeline.phase("waiting"):
            reason = f"the rollouts of iteration {self.iteration}"
            shards = self.task.wait(all_shards, reason=reason, producers=Role.INFERENCE)
        with timeline.phase("loading"):
            return batch_of([read_iteration_shard(path) for path in shards])

    def _checkpoint_due(self) -> bool:
        """At the recipe's interval, and at the end of a segment, where another job takes over."""
        return (
            self.iteration % self.task.recipe.training.checkpoint_every == 0
            or self.iteration == self.task.job.end_iteration
        )

    def save(self) -> None:
        """Write a checkpoint and drop the oldest."""
        layout = self.task.layout
        checkpoint.save(self.engine, layout.checkpoint(self.iteration), {"iteration": self.iteration})
        self._on_rank_zero(lambda: checkpoint.retain(layout.checkpoints, self.task.recipe.training.keep_checkpoints))
        self._emit(EventKind.CHECKPOINT, iteration=self.iteration)

    def publish(self) -> None:
        """Publish the weights version of this iteration and drop versions that nobody needs any more."""
        recipe, layout, version = self.task.recipe, self.task.layout, self.iteration

        def commit(write: Callable[[Path], None]) -> bool:
            return publish_version(
                layout, version, write, iteration=version, attempt=self.task.attempt, time=time.time()
            )

        export.publish(self.engine, commit, recipe.training.weights_dtype)
        self._emit(EventKind.PUBLISHED, version=version)
        self._on_rank_zero(lambda: prune(layout, kept_versions(recipe, version)))

    def _metrics(self, iteration: int, batch: Batch, stats: UpdateStats, timeline: Timeline) -> IterationMetrics:
        traces = [(self.statements[r.problem_id], r.text) for r in batch.rollouts]
        quality = trace_quality(self.task.recipe.data, traces)
        return iteration_metrics(iteration, batch, stats, timeline, quality)

    def _write_metrics(self, metrics: IterationMetrics) -> None:
        if self.task.rank == 0:
            metrics.write(self.task.layout.metrics(metrics.iteration))

    def _emit(self, kind: EventKind, **fields: object) -> None:
        if self.task.rank == 0:
            self.task.events.emit(kind, **fields)

    def _on_rank_zero(self, action: Callable[[], object]) -> None:
        if self.task.rank == 0:
            action()


def kept_versions(recipe: Recipe, version: int) -> set[int]:
    """Weights versions that must stay: the newest few, the first, and all that the schedule evaluates."""
    newest = range(version - recipe.training.keep_weights + 1, version + 1)
    return {0, *newest, *evaluated_versions(recipe)}
