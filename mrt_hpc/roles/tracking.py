"""Metrics for W&B and TensorBoard. W&B is offline: all attempts of a run share one run id, which the first of them
makes.

The trainer logs its iterations, and the report, which runs when no trainer does, logs the evaluations. Nothing that
fails here stops a run: all that W&B and TensorBoard get stands in the files of the run as well.
"""

import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run import atomic
from mrt_hpc.run.access import private_folder
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import read_typed
from mrt_hpc.run.wandb_runs import OFFLINE

# TensorBoard event files: the metrics of a run in ``tensorboard/``, where the recipe asks for them.
#
# They are made of the run's own files: an attempt of the trainer writes them again from the metrics that are there when
# it begins, and then adds its iterations; the report writes all of them again. So they hold each iteration once, also
# where training went back to a checkpoint. Nothing that fails here stops a run.


@dataclass(frozen=True)
class Points:
    """The values of one step."""

    step: int
    values: Mapping[str, float]
    """The values by their names in TensorBoard."""
    time: float | None = None
    """When they were measured, seconds since the epoch; None for now."""


class IterationEvents:
    """Adds the iterations of a trainer to the event files, where the recipe asks for it, and does nothing elsewhere."""

    def __init__(self, layout: RunLayout | None = None) -> None:
        self._layout = layout
        self._writer: Any = None
        self._file: Path | None = None
        """What the writer writes; TensorBoard opens it by its name each time."""

    @staticmethod
    def of(task: Task) -> "IterationEvents":
        """The event files of a task: rank 0 writes them, the other ranks do not."""
        return IterationEvents(task.layout if task.recipe.tracking.tensorboard and task.rank == 0 else None)

    def resume(self, iteration: int) -> None:
        """Make the files hold the iterations before this one, as their metrics say, and no other."""
        if self._layout is not None:
            with _without_failing(self._stop):
                atomic.remove_leftovers(self._layout.event_files_in_work)
                write_iterations(self._layout, iteration)
                self._writer = _writer(self._layout.training_events)
                self._file = max(self._layout.training_events.iterdir())

    def log(self, metrics: IterationMetrics) -> None:
        """Add one iteration, unless a later attempt has written the files again."""
        if self._writer is not None and self._file is not None:
            with _without_failing(self._stop):
                if self._file.exists():
                    _add(self._writer, Points(metrics.iteration, iteration_values(metrics)))
                    self._writer.flush()

    def close(self) -> None:
        """Write what is not written yet."""
        if self._writer is not None and self._file is not None:
            with _without_failing(self._stop):
                if self._file.exists():
                    self._writer.close()

    def _stop(self, error: Exception) -> None:
        """Add nothing more in this attempt, after an error."""
        self._layout = self._writer = None
        warn(error)


@contextmanager
def _without_failing(warn: Callable[[Exception], None]) -> Iterator[None]:
    """An error ends the block, and no more: it is passed to ``warn``."""
    try:
        yield
    except Exception as error:
        warn(error)


def warn(error: Exception) -> None:
    """Log an error of TensorBoard."""
    log.warning(
        "TensorBoard failed, and this attempt adds nothing more to its event files; the run's own files have all "
        "metrics, and the report writes the event files again: %s",
        error,
    )


def write_iterations(layout: RunLayout, iterations: int) -> None:
    """Write the event files of the training again, from the metrics of so many iterations.

    Raises:
        Exception: TensorBoard failed, or metrics cannot be read.
    """
    write_events(layout, layout.training_events, _measured(layout, iterations))


def _measured(layout: RunLayout, iterations: int) -> Iterator[Points]:
    for number in range(iterations):
        path = layout.metrics(number)
        if path.is_file():
            metrics = IterationMetrics.read(path)
            yield Points(metrics.iteration, iteration_values(metrics), path.stat().st_mtime)


def iteration_values(metrics: IterationMetrics) -> dict[str, float]:
    """The numbers of an iteration by their names in TensorBoard, as ``seconds/generation``; what was not measured is
    left out.
    """
    return dict(_numbers(metrics.model_dump(mode="json", exclude={"iteration"})))


def _numbers(content: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for key, value in content.items():
        if isinstance(value, list):
            value = {str(place): number for place, number in enumerate(value)}
        if isinstance(value, dict):
            yield from _numbers(value, f"{above}{key}/")
        elif isinstance(value, int | float):
            yield f"{above}{key}", value


def write_events(layout: RunLayout, directory: Path, points: Iterable[Points]) -> None:
    """Write a directory of event files again, and put it in the place of the old one.

    Raises:
        Exception: TensorBoard failed.
    """
    # Not beside the directory, where TensorBoard would show it.
    atomic.make_folder(layout.event_files_in_work)
    new, old = (atomic.temporary_sibling(layout.event_files_in_work / directory.name) for _ in range(2))
    try:
        with _writer(new) as writer:
            for point in points:
                _add(writer, point)
            writer.flush()  # raises what its thread could not write
        _sort_first(new)
        atomic.make_folder(directory.parent)
        if directory.exists():
            directory.rename(old)
        new.rename(directory)
    finally:
        for path in (new, old):
            shutil.rmtree(path, ignore_errors=True)


def _sort_first(directory: Path) -> None:
    """Give the only file of a directory a name that comes before all that this process writes there later: a name ends
    with a number, and readers take names in the order of their letters.
    """
    (written,) = directory.iterdir()
    written.rename(written.with_name(f"{written.name.rpartition('.')[0]}.0"))


def _writer(directory: Path) -> Any:
    """A writer of a new event file in a directory, which is made if it is not there."""
    from torch.utils.tensorboard import SummaryWriter  # takes seconds to import, and most recipes do not ask for it

    return SummaryWriter(str(directory))


def _add(writer: Any, points: Points) -> None:
    for name, value in points.values.items():
        writer.add_scalar(name, value, points.step, walltime=points.time)


log = logging.getLogger(__name__)

EVALUATION = "evaluation"
"""The first part of the names of what evaluations measured."""
VERSION = f"{EVALUATION}/version"
"""W&B draws evaluations over this, the weights version, instead of the step."""
LONGEST_FOLDER = 34
"""Characters of the folder for temporary files. W&B's sockets lie up to 73 characters below it, and the path of a
socket has at most 107.
"""


class Tracker:
    """Logs metrics where the recipe asks for it, and does nothing elsewhere. Use as a context manager."""

    def __init__(self, run: Any = None, events: IterationEvents | None = None) -> None:
        self._run, self._events = run, events or IterationEvents()

    @staticmethod
    def of(task: Task) -> "Tracker":
        """The tracker of a task: rank 0 logs, the other ranks do not."""
        return Tracker(_run_of(task), IterationEvents.of(task))

    def resume(self, iteration: int) -> None:
        """Called once, before the first iteration of this attempt, when the metrics of later ones are set aside."""
        self._events.resume(iteration)

    def log(self, metrics: IterationMetrics) -> None:
        """Log one iteration, under its number."""
        self._events.log(metrics)
        if self._run is not None:
            content = metrics.model_dump(mode="json", exclude={"iteration"})
            content["progress_by_episode"] = dict(enumerate(metrics.progress_by_episode))
            with _without_failing(self._stop):
                self._run.log(content, step=metrics.iteration)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._events.close()
        if self._run is not None:
            with _without_failing(self._stop):
                self._run.finish(exit_code=0 if error is None else 1)

    def _stop(self, error: Exception) -> None:
        """After an error of W&B this attempt logs nothing more."""
        _warn(error)
        self._run = None


def _run_of(task: Task) -> Any:
    """The W&B run of an attempt; None where the recipe asks for none, on other ranks, and where W&B fails."""
    if not task.recipe.tracking.wandb or task.rank != 0:
        return None
    with _without_failing(_warn):
        atomic.make_folder(task.layout.wandb)
        return _offline_run(task.recipe, run_id(task), task.layout.wandb)
    return None


def _warn(error: Exception) -> None:
    log.warning(
        "W&B failed, and this attempt logs nothing more for it; the run's own files have all metrics: %s", error
    )


def run_id(task: Task) -> str:
    """The W&B id of the run; the first attempt writes it down."""
    path = task.layout.wandb / "run_id"
    task.retrying(lambda: atomic.create_text(path, uuid.uuid4().hex[:8]), "the W&B id of the run")
    return path.read_text()


def _offline_run(recipe: Recipe, identity: str, directory: Path, **settings: Any) -> Any:
    """Begin an offline W&B directory below ``directory``, which exists, with these settings of W&B."""
    import wandb  # takes a second to import, and most recipes do not ask for it

    with _private_sockets():
        return wandb.init(
            project=recipe.tracking.project,
            name=recipe.name,
            id=identity,
            resume="allow",
            mode="offline",
            dir=str(directory),
            config=recipe.model_dump(mode="json"),
            settings=settings,
        )


@contextmanager
def _private_sockets() -> Iterator[None]:
    """W&B's processes that are started in the block put their sockets into a folder that no other user may enter. They
    would put them into the folder for temporary files, with the rights that the umask leaves.
    """
    before, parent = os.environ.get("TMPDIR"), tempfile.gettempdir()
    place = private_folder(Path(parent if len(parent) <= LONGEST_FOLDER else "/tmp"), f"mrt-hpc-wandb-{os.geteuid()}")
    os.environ["TMPDIR"] = str(place)
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        os.environ |= {} if before is None else {"TMPDIR": before}


def log_evaluations(task: Task, evaluations: Sequence[EvaluationSummary]) -> None:
    """Log the evaluations that are not logged yet, if the recipe asks for it; each is logged once, whenever an attempt
    is killed.

    A kill leaves either an unfinished directory, which is removed, or a finished one that the record names, which the
    next attempt puts in its place.
    """
    if not task.recipe.tracking.wandb:
        return
    with _without_failing(_warn):
        task.retrying(lambda: _Evaluations(task).log(evaluations), "the evaluations for W&B")


def write_event_files(task: Task, evaluations: Sequence[EvaluationSummary]) -> None:
    """Write all TensorBoard event files again, if the recipe asks for them."""
    if not task.recipe.tracking.tensorboard:
        return
    rows = [evaluation_row(summary) for summary in evaluations]
    points = [Points(int(row.pop(VERSION)), row) for row in rows]
    with _without_failing(warn):
        write_iterations(task.layout, task.plan.iterations)
        if points or task.layout.evaluation_events.exists():
            write_events(task.layout, task.layout.evaluation_events, points)


def evaluation_row(summary: EvaluationSummary) -> dict[str, float]:
    """The row of one weights version on one benchmark; what was not measured is left out."""
    measured = {
        "accuracy": summary.accuracy,
        "accuracy_low": summary.low,
        "accuracy_high": summary.high,
        "tokens_per_rollout": summary.tokens_per_rollout,
        "truncated_share": summary.truncated_share,
        "answered_share": summary.answered_share,
        **{f"regret/{budget}": float(np.mean(list(r.values()))) for budget, r in summary.regret.items() if r},
    }
    named = {f"{EVALUATION}/{summary.benchmark}/{name}": x for name, x in measured.items() if x is not None}
    return {VERSION: summary.version, **named}


@dataclass(frozen=True)
class LoggedRows:
    """What was logged of the evaluations of a run."""

    logged: tuple[dict[str, float], ...] = ()
    """All rows that are logged."""
    staged: str | None = None
    """The last finished directory, relative to the file of this record."""


@dataclass(frozen=True)
class _Evaluations:
    """The evaluations of a run in W&B: offline directories, and the record of what they hold."""

    task: Task

    @property
    def record(self) -> Path:
        """Holds :class:`LoggedRows`."""
        return self.task.layout.wandb / "evaluations.json"

    def log(self, evaluations: Sequence[EvaluationSummary]) -> None:
        """Log the new rows. A directory counts when the record names it."""
        atomic.make_folder(self.task.layout.offline_runs)
        self._settle()
        logged = self._read().logged
        if new := [row for row in map(evaluation_row, evaluations) if row not in logged]:
            fill = partial(_add_rows, new, self.task.plan.iterations + len(logged))
            staged = _staged(self.task.layout, self.task.recipe, run_id(self.task), fill)
            atomic.write_json(
                self.record, {"logged": [*logged, *new], "staged": str(staged.relative_to(self.record.parent))}
            )
            self._settle()

    def _read(self) -> LoggedRows:
        if self.record not in list_directory(self.record.parent):
            return LoggedRows()
        advice = f"rm -r {self.record}, and mrt-hpc report {self.task.layout.word}: all evaluations are logged again"
        return read_typed(self.record, LoggedRows, "the record of logged evaluations", advice=advice)

    def _settle(self) -> None:
        """Put what the record names in its place, and remove all else that an attempt has left."""
        layout, staged = self.task.layout, self._read().staged
        if staged is not None and (directory := self.record.parent / staged).is_dir():
            directory.rename(layout.offline_runs / directory.name)
            atomic.sync_directory(layout.offline_runs)
        atomic.remove_leftovers(layout.wandb)


def _add_rows(rows: Sequence[dict[str, float]], first_step: int, run: Any) -> None:
    run.define_metric(VERSION)
    run.define_metric(f"{EVALUATION}/*", step_metric=VERSION)
    for step, row in enumerate(rows, first_step):  # after those of the iterations: W&B wants steps to grow
        run.log(row, step=step)


def attach(layout: RunLayout, recipe: Recipe, files: Sequence[Path]) -> None:
    """Put files of a run into its W&B run, as an offline directory like any other. No task of the run may be running.

    Args:
        layout: the run directory, whose W&B id is there.
        recipe: of the run.
        files: below the run directory.
    """

    def fill(run: Any) -> None:
        for file in files:
            run.save(str(file), base_path=str(layout.root), policy="now")

    atomic.make_folder(layout.offline_runs)
    directory = _staged(layout, recipe, (layout.wandb / "run_id").read_text(), fill)
    directory.rename(layout.offline_runs / directory.name)
    atomic.remove_leftovers(layout.wandb)


def _staged(layout: RunLayout, recipe: Recipe, identity: str, fill: Callable[[Any], None]) -> Path:
    """A finished offline directory, at a place where `wandb sync` does not look. Its name is free where it does look:
    W&B names a directory by the second in which it begins.
    """
    while True:
        place = atomic.temporary_sibling(layout.wandb / "staged")
        place.mkdir()
        # Silent, as W&B would name the place that the directory leaves.
        with _offline_run(recipe, identity, place, silent=True) as run:
            fill(run)
        atomic.sync_tree(place)
        (directory,) = place.glob(f"*/{OFFLINE}")
        if not (layout.offline_runs / directory.name).exists():
            return directory
