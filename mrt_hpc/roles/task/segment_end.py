"""When a segment of training is over, by the files of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task


def is_trained(task: Task) -> bool:
    """Whether the last weights version of the segment is published, and a checkpoint holds the state that the next
    segment continues from.
    """
    layout, end = task.layout, task.job.end_iteration
    saved = [layout.step_of(path) or 0 for path in list_directory(layout.checkpoints)]
    return layout.weights_version(end).exists() and max(saved, default=0) >= end
