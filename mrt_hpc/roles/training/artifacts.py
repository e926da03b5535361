"""Training's state as files: checkpoints, weights versions and metrics that belong together.

Work after the checkpoint resumed from is set aside and computed again, never mixed in. An attempt taken for lost can
commit nothing after a later one; where both commit at once, the names of their states tell.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.errors import Advice, UserError, retryable_error
from mrt_hpc.roles.task.context import STATE, Task
from mrt_hpc.run.archive import archive_groups
from mrt_hpc.run.atomic import is_temporary, remove_leftovers, write_json
from mrt_hpc.run.events import EventKind, Use
from mrt_hpc.run.layout import collection_of
from mrt_hpc.run.manifest import DamagedError, Manifest, read_manifest
from mrt_hpc.run.problems import read_problems
from mrt_hpc.run.quarantine import foreign_evaluations, younger_than
from mrt_hpc.run.retries import RetryPolicy, list_directory, retry_action
from mrt_hpc.run.task_state import read_task
from mrt_hpc.run.weights import prune_weights, publish, published_versions
from mrt_hpc.training import checkpoint, export, rank_messages
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.export import GatheredWeights
from mrt_hpc.training.update_statistics import SkippedStep

log = logging.getLogger(__name__)


@dataclass
class Publisher:
    task: Task
    refuse_if_superseded: Callable[[], None]
    """Called between writing and committing a version; raises where another attempt runs."""
    state: str | None = None
    """Names the engine's state: computing attempt and iteration; None before the first update. A checkpoint and its
    weights version bear the same name, or two attempts made them.
    """

    def publish(self, version: int, weights: GatheredWeights) -> bool:
        """False when the version was there already."""

        def write_unless_superseded(directory: Path) -> None:
            weights.write(directory)
            self.refuse_if_superseded()  # checked at the last moment: the writing may have waited for room

        about = {"iteration": version, "attempt": self.task.attempt, STATE: self.state, "time": time.time()}
        committing = partial(publish, self.task.layout, version, write_unless_superseded, **about)
        return self.task.retry(committing, f"weights version {version}")

    def manifest(self, version: int) -> Manifest:
        path = self.task.layout.weights_version(version)
        return self.task.retry(lambda: read_manifest(path), f"reading {path}")


PROBLEMS_NAMED = 16
"""Problems in a skipped step's event; its file has all."""


@dataclass
class TrainingArtifacts:
    """Writes the engine's state after some updates. Methods are collective unless they say otherwise."""

    task: Task
    engine: TrainerEngine
    saved: int
    """Iteration of the newest checkpoint; initial weights count as one."""
    longest_save_s: float = 0.0
    archived: int = 0
    """Earlier iterations are archived by this attempt."""
    state: InitVar[str | None] = None
    """See :class:`Publisher`."""
    publisher: Publisher = field(init=False)

    def __post_init__(self, state: str | None) -> None:
        self.publisher = Publisher(self.task, self._refuse_if_superseded, state)

    def reconcile(self, iteration: int) -> None:
        """Make files agree with the state after ``iteration`` updates: set aside younger ones and another attempt's
        weights version, and publish the missing version.
        """

        def set_aside() -> None:
            layout, state = self.task.layout, self.publisher.state
            reason = f"younger than the state after {iteration} iterations, from which training resumed"
            younger = younger_than(layout, iteration)
            self._refuse_if_superseded()  # what is younger is then the work of the attempt that runs
            self.task.set_aside(younger, reason)
            path = layout.weights_version(iteration)
            try:
                if self.is_published(iteration) and self.publisher.manifest(iteration).about.get(STATE) != state:
                    self.task.set_aside([path], "it was computed by another attempt than the checkpoint of its number")
            except DamagedError as damage:
                self.task.set_aside([path], f"the version from which training resumed: {damage.what}")

        rank_messages.run_on_rank_zero(set_aside)
        for directory in (self.task.layout.weights, self.task.layout.checkpoints):  # unfinished files may be large
            self._keep_house(partial(remove_leftovers, directory))
        if rank_messages.run_on_rank_zero(lambda: self.is_published(iteration)):
            rank_messages.run_on_rank_zero(lambda: self.set_aside_evaluations_of_another(iteration))
        else:
            self.publish(iteration)

    def is_published(self, version: int) -> bool:
        """Whether the directory lists a version: a network filesystem may cache that a name was missing. Any rank may
        call it.
        """
        return version in published_versions(self.task.layout)

    def save(self, iteration: int) -> None:
        """Write a checkpoint after ``iteration`` updates unless it exists, and remove the oldest."""
        if self.saved == iteration:
            return
        self.task.spend(Use.SAVING)
        layout, started = self.task.layout, time.monotonic()
        rank_messages.run_on_rank_zero(self._refuse_if_superseded)
        path = layout.checkpoint(iteration)
        cursor = {"iteration": iteration, "skipped_in_a_row": self.engine.skipped_in_a_row, STATE: self.publisher.state}
        saving = partial(checkpoint.save, self.engine, path, cursor, **{STATE: self.publisher.state})
        mine = self.task.retry(saving, f"the checkpoint after {iteration} iterations")
        self._refuse_anothers(path, mine)
        self._keep_house(lambda: checkpoint.retain(layout.checkpoints, self.task.recipe.training.keep_checkpoints))
        self._keep_house(self._archive)
        self.saved = iteration
        self.longest_save_s = max(self.longest_save_s, time.monotonic() - started)
        self.emit(EventKind.CHECKPOINT, iteration=iteration, seconds=time.monotonic() - started)

    def publish(self, version: int) -> None:
        """Publish the engine's weights, and remove versions no longer needed."""
        self.task.spend(Use.SAVING)
        recipe, layout = self.task.recipe, self.task.layout
        weights = export.gather_weights(self.engine, recipe.training.weights_dtype)
        mine = rank_messages.run_on_rank_zero(lambda: self.publisher.publish(version, weights))
        self._refuse_anothers(layout.weights_version(version), mine)
        self.emit(EventKind.PUBLISHED, version=version)
        rank_messages.run_on_rank_zero(lambda: self.set_aside_evaluations_of_another(version))
        self._keep_house(lambda: prune_weights(layout, recipe, version))
        self._keep_house(lambda: remove_leftovers(layout.weights))

    def set_aside_evaluations_of_another(self, version: int) -> None:
        layout, plan = self.task.layout, self.task.plan
        if stale := foreign_evaluations(layout, version, self.publisher.manifest(version).digest):
            reason = f"weights version {version} has been computed again, and is not what was evaluated"
            self.task.set_aside(stale, reason)
            units = [(job.name, index, unit) for job in plan.jobs for index, unit in enumerate(job.evaluations)]
            self.task.reopen([(job, index) for job, index, unit in units if unit.version == version], reason)

    def write_metrics(self, metrics: IterationMetrics) -> None:
        """An attempt taken for lost does not replace a later one's metrics."""
        path = self.task.layout.metrics(metrics.iteration)

        def write() -> None:
            if not metrics.create(path):
                self._refuse_if_superseded()
                metrics.write(path)

        rank_messages.run_on_rank_zero(lambda: self.task.retry(write, "the metrics"))

    def keep_skipped(self, iteration: int, skipped: SkippedStep) -> None:
        """Record a skipped optimiser step with its sequences, on rank 0.

        Raises:
            UserError: too many were skipped in a row.
        """
        path = self.task.layout.skipped_step(iteration, skipped.mini_batch)
        if self.task.rank == 0:
            log.warning("iteration %d: %s", iteration, skipped)
            content = {"iteration": iteration, **skipped.as_dict()}
            self.task.retry(lambda: write_json(path, content), "the sequences of a skipped step")
            self.task.events.emit(
                EventKind.STEP_SKIPPED,
                iteration=iteration,
                mini_batch=skipped.mini_batch,
                not_finite=skipped.found_in,
                sequences=len(skipped.sequences),
                problems=skipped.problems[:PROBLEMS_NAMED],
                file=str(path),
            )
        most = self.task.recipe.resilience.skipped_steps
        if self.engine.skipped_in_a_row < most:
            return
        raise UserError(
            f"{self.engine.skipped_in_a_row} optimiser steps in a row were skipped, the last one in iteration "
            f"{iteration}: {skipped}",
            where=path,
            expected="a loss and a gradient norm that are finite; this file holds the sequences",
            advice=Advice(
                "mrt-hpc fork {run} --at last --set training.learning_rate=RATE, with a lower rate (or "
                "with training.precision=bf16_autocast); or, to go on as it is, mrt-hpc submit RUN "
                "--set resilience.skipped_steps={skipped_steps}",
                run=self.task.layout.word,
                skipped_steps=2 * most,
            ),
        )

    def emit(self, kind: EventKind, **fields: object) -> None:
        if self.task.rank == 0:
            self.task.events.emit(kind, **fields)

    def _refuse_if_superseded(self) -> None:
        now = read_task(self.task.layout, self.task.job.name, self.task.index)
        if now.attempt != self.task.attempt:
            raise self._superseded_error("has started", value=now.attempt, expected=self.task.attempt)

    def _refuse_anothers(self, path: Path, mine: bool) -> None:
        """Refuse to go on where another attempt committed the same step, perhaps with other content."""
        if not mine:
            raise self._superseded_error("has written this", where=path)

    def _superseded_error(self, what: str, **facts: Any) -> UserError:
        return retryable_error(
            f"another attempt of this task {what}, because this attempt seemed to be lost",
            advice=Advice(
                "nothing: the other attempt continues; mrt-hpc status {run} shows it", run=self.task.layout.root
            ),
            **facts,
        )

    def _archive(self) -> None:
        layout, recipe = self.task.layout, self.task.recipe
        kept = [layout.step_of(path) or 0 for path in list_directory(layout.checkpoints) if not is_temporary(path)]
        passed = range(self.archived, min(kept, default=0))
        for version in recipe.algorithm.traces_versions(recipe.schedule.iterations):
            if version in passed:
                archive_groups(layout, collection_of(version), len(read_problems(layout.train_data)))
        if recipe.algorithm.samples_rollouts:
            for iteration in passed:
                archive_groups(layout, iteration, recipe.sampling.problems_per_iteration or 0)
        self.archived = max(self.archived, passed.stop)

    def _keep_house(self, remove: Callable[[], object]) -> None:
        """Remove what is no longer needed, on rank 0; failures are tried again after the next iteration."""
        rank_messages.run_on_rank_zero(self._refuse_if_superseded)
        if self.task.rank == 0:
            try:
                retry_action(remove, "removing old files", RetryPolicy(full_limit_s=0.0))
            except (OSError, UserError) as error:
                log.warning("old files could not be removed: %s", error)


def newest_good_checkpoint(task: Task) -> Path | None:
    """Damaged checkpoints are set aside."""

    def set_aside(path: Path, damage: UserError) -> None:
        task.set_aside([path], f"a damaged checkpoint: {damage.what} ({damage.where})")

    return checkpoint.good(task.layout.checkpoints, set_aside)
