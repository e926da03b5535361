"""TensorBoard event files: the metrics of a run in ``tensorboard/``, where the recipe asks for them.

They are made of the run's own files: an attempt of the trainer writes them again from the metrics that are there when
it begins, and then adds its iterations; the report writes all of them again. So they hold each iteration once, also
where training went back to a checkpoint. Nothing that fails here stops a run.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.run.atomic import make_folder, remove_leftovers, temporary_sibling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Points:
    """The values of one step."""

    step: int
    values: Mapping[str, float]
    """By their names in TensorBoard."""
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
    def of(task: Task) -> IterationEvents:
        """The event files of a task: rank 0 writes them, the other ranks do not."""
        return IterationEvents(task.layout if task.recipe.tracking.tensorboard and task.rank == 0 else None)

    def resume(self, iteration: int) -> None:
        """Make the files hold the iterations before this one, as their metrics say, and no other."""
        if self._layout is not None:
            try:
                remove_leftovers(self._layout.event_files_in_work)
                write_iterations(self._layout, iteration)
                self._writer = _writer(self._layout.training_events)
                self._file = max(self._layout.training_events.iterdir())
            except Exception as error:
                self._stop(error)

    def log(self, metrics: IterationMetrics) -> None:
        """Add one iteration, unless a later attempt has written the files again."""
        if self._writer is not None and self._file is not None:
            try:
                if self._file.exists():
                    _add(self._writer, Points(metrics.iteration, iteration_values(metrics)))
                    self._writer.flush()
            except Exception as error:
                self._stop(error)

    def close(self) -> None:
        """Write what is not written yet."""
        if self._writer is not None and self._file is not None:
            try:
                if self._file.exists():
                    self._writer.close()
            except Exception as error:
                self._stop(error)

    def _stop(self, error: Exception) -> None:
        """After an error this attempt adds nothing more."""
        self._layout = self._writer = None
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
            value = {str(place): one for place, one in enumerate(value)}
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
    make_folder(layout.event_files_in_work)
    new, old = (temporary_sibling(layout.event_files_in_work / directory.name) for _ in range(2))
    try:
        with _writer(new) as writer:
            for one in points:
                _add(writer, one)
            writer.flush()  # raises what its thread could not write
        _sort_first(new)
        make_folder(directory.parent)
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
