"""Metrics for W&B and TensorBoard, where the recipe asks for them.

The trainer logs iterations; the report, which runs without a trainer, logs evaluations. Failures here stop no run: the
run's own files hold the same.
"""

import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.errors import Advice
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.roles.task.context import Task
from mrt_hpc.run import atomic
from mrt_hpc.run.access import private_folder
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import read_typed
from mrt_hpc.run.wandb_runs import OFFLINE

log = logging.getLogger(__name__)

WANDB, TENSORBOARD = "W&B", "TensorBoard"
EVALUATION = "evaluation"
"""Prefix of evaluation metrics."""
VERSION = f"{EVALUATION}/version"
"""W&B's x-axis for evaluations, in place of the step."""
LONGEST_FOLDER = 34
"""Characters of the temporary folder. W&B's sockets lie up to 73 deeper, and a socket's path has at most 107."""


class Tracker:
    def __init__(
        self, services: "Iterable[tuple[str, WandbRun | EventFile]]" = (), layout: RunLayout | None = None
    ) -> None:
        self._services = dict(services)
        """By name. A failed one gets nothing more in this attempt."""
        self._layout = layout
        """Of the run whose event files are written, or None."""

    @staticmethod
    def of(task: Task) -> "Tracker":
        """Only rank 0 logs."""
        if task.rank != 0:
            return Tracker()
        tracker = Tracker(layout=task.layout if task.recipe.tracking.tensorboard else None)
        if task.recipe.tracking.wandb:
            with _tolerate_failure(WANDB):
                tracker._services[WANDB] = WandbRun.of(task)
        return tracker

    def resume(self, iteration: int) -> None:
        """Rewrite the event files up to this iteration, when later metrics are set aside."""
        if self._layout is not None:
            with _tolerate_failure(TENSORBOARD):
                self._services[TENSORBOARD] = write_iterations(self._layout, iteration)

    def log(self, metrics: IterationMetrics) -> None:
        self._each(lambda service: service.log(metrics))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._each(lambda service: service.close(0 if error is None else 1))

    def _each(self, act: "Callable[[WandbRun | EventFile], None]") -> None:
        for name, service in [*self._services.items()]:
            with _tolerate_failure(name, partial(self._services.pop, name)):
                act(service)


@contextmanager
def _tolerate_failure(service: str, stop: Callable[[], object] = lambda: None) -> Iterator[None]:
    """A service's error ends only this block: it is logged, and ``stop`` is called."""
    try:
        yield
    except Exception as error:
        log.warning(
            "%s failed, and this attempt logs nothing more for it; the run's own files have all metrics: %s",
            service,
            error,
        )
        stop()


# -- W&B ---------------------------------------------------------------------------------------------------------------
# It is offline: all attempts of a run share one run id, which the first of them makes.


@dataclass(frozen=True)
class WandbRun:
    run: Any

    @staticmethod
    def of(task: Task) -> "WandbRun":
        atomic.make_folder(task.layout.wandb)
        return WandbRun(_offline_run(task.recipe, run_id(task), task.layout.wandb))

    def log(self, metrics: IterationMetrics) -> None:
        content = metrics.model_dump(mode="json", exclude={"iteration"})
        content["progress_by_episode"] = dict(enumerate(metrics.progress_by_episode))
        self.run.log(content, step=metrics.iteration)

    def close(self, exit_code: int) -> None:
        self.run.finish(exit_code=exit_code)


def run_id(task: Task) -> str:
    """The first attempt stores it."""
    path = task.layout.wandb / "run_id"
    task.retry(lambda: atomic.create_text(path, uuid.uuid4().hex[:8]), "the W&B id of the run")
    return path.read_text()


def _offline_run(recipe: Recipe, identity: str, directory: Path, **settings: Any) -> Any:
    import wandb  # takes a second to import, and most recipes do not ask for it

    with _private_sockets():
        return wandb.init(
            project=recipe.tracking.project,
            name=recipe.name,
            id=identity,
            resume="allow",
            mode="offline",
            dir=str(directory.absolute()),
            config=recipe.model_dump(mode="json"),
            settings=settings,
        )


@contextmanager
def _private_sockets() -> Iterator[None]:
    """Put the sockets of W&B's processes into a private folder, not the temporary one under the umask. The block runs
    there, as W&B reads server and entity from ``./wandb/settings``.
    """
    before, parent = os.environ.get("TMPDIR"), tempfile.gettempdir()
    place = private_folder(Path(parent if len(parent) <= LONGEST_FOLDER else "/tmp"), f"mrt-hpc-wandb-{os.geteuid()}")
    os.environ["TMPDIR"] = str(place)
    try:
        with chdir(place):
            yield
    finally:
        del os.environ["TMPDIR"]
        os.environ |= {} if before is None else {"TMPDIR": before}


def log_evaluations(task: Task, evaluations: Sequence[EvaluationSummary]) -> None:
    """Log evaluations not logged yet; each is logged once, whenever an attempt is killed.

    A kill leaves an unfinished directory, which is removed, or a finished one that the record names, which the next
    attempt puts in place.
    """
    with _tolerate_failure(WANDB):
        task.retry(lambda: _Evaluations(task).log(evaluations), "the evaluations for W&B")


def evaluation_row(summary: EvaluationSummary) -> dict[str, float]:
    """Only measured values count."""
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
    logged: tuple[dict[str, float], ...] = ()
    staged: str | None = None
    """The last finished directory, relative to this record's file."""


@dataclass(frozen=True)
class _Evaluations:
    task: Task

    @property
    def record(self) -> Path:
        return self.task.layout.wandb / "evaluations.json"

    def log(self, evaluations: Sequence[EvaluationSummary]) -> None:
        """Log new rows. A directory counts once the record names it."""
        atomic.make_folder(self.task.layout.offline_runs)
        self._settle()
        logged = self._read().logged
        if new := [row for row in map(evaluation_row, evaluations) if row not in logged]:
            staged = _stage_run(self.task, partial(_add_rows, new, self.task.plan.iterations + len(logged)))
            atomic.write_json(
                self.record, {"logged": [*logged, *new], "staged": str(staged.relative_to(self.record.parent))}
            )
            self._settle()

    def _read(self) -> LoggedRows:
        if self.record not in list_directory(self.record.parent):
            return LoggedRows()
        advice = Advice(
            "rm -r {record}, and mrt-hpc report {run}: all evaluations are logged again",
            record=self.record,
            run=self.task.layout.root,
        )
        return read_typed(self.record, LoggedRows, "the record of logged evaluations", advice=advice)

    def _settle(self) -> None:
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


def _stage_run(task: Task, fill: Callable[[Any], None]) -> Path:
    """A finished offline directory where `wandb sync` does not look, with a name free where it does: W&B names
    directories by the second.
    """
    while True:
        place = atomic.temporary_sibling(task.layout.wandb / "staged")
        place.mkdir()
        # Silent, as W&B would name the place that the directory leaves.
        with _offline_run(task.recipe, run_id(task), place, silent=True) as run:
            fill(run)
        atomic.sync_tree(place)
        (directory,) = place.glob(f"*/{OFFLINE}")
        if not (task.layout.offline_runs / directory.name).exists():
            return directory


# -- TensorBoard -------------------------------------------------------------------------------------------------------
# Event files are made of the run's own files: an attempt of the trainer writes them again from the metrics that are
# there when it begins, and then adds its iterations; the report writes all of them again. So they hold each iteration
# once, also where training went back to a checkpoint.


class EventFile:
    """A new TensorBoard file that replaces all in its directory. Later events of a lost attempt go to a nameless file
    and are not shown.
    """

    def __init__(self, directory: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # most recipes do not ask for it

        atomic.make_folder(directory)
        for earlier in list_directory(directory):
            earlier.unlink()
        self._records = RecordWriter((directory / f"events.out.tfevents.{time.time_ns()}").open("xb"))
        self._write(file_version="brain.Event:2")

    def add(self, step: int, values: Mapping[str, float], at: float | None = None) -> None:
        """One step's values by name; ``at`` is when they were measured, None for now."""
        scalars = [{"tag": name, "simple_value": value} for name, value in values.items()]
        self._write(step=step, summary={"value": scalars}, wall_time=time.time() if at is None else at)

    def log(self, metrics: IterationMetrics, at: float | None = None) -> None:
        self.add(metrics.iteration, dict(numbers_in(metrics.model_dump(mode="json", exclude={"iteration"}))), at)

    def close(self, _exit_code: int = 0) -> None:
        self._records.close()

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(**fields).SerializeToString())
        self._records.flush()


def write_iterations(layout: RunLayout, iterations: int) -> EventFile:
    events = EventFile(layout.training_events)
    for path in filter(Path.is_file, map(layout.metrics, range(iterations))):
        events.log(IterationMetrics.read(path), path.stat().st_mtime)
    return events


def numbers_in(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Numbers in a JSON value with TensorBoard names such as ``seconds/generation``."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(inner, f"{name}/{key}")
    elif isinstance(value, int | float):
        yield name.removeprefix("/"), value


def write_event_files(task: Task, evaluations: Sequence[EvaluationSummary]) -> None:
    with _tolerate_failure(TENSORBOARD):
        write_iterations(task.layout, task.plan.iterations).close()
        if evaluations or task.layout.evaluation_events.exists():
            with closing(EventFile(task.layout.evaluation_events)) as events:
                for row in map(evaluation_row, evaluations):
                    events.add(int(row.pop(VERSION)), row)
