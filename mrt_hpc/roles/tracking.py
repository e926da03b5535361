"""W&B, offline: one run id over all attempts of a run, made when the first of them starts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from mrt_hpc.run.atomic import creating

if TYPE_CHECKING:
    from types import TracebackType

    from mrt_hpc.analysis.model import IterationMetrics
    from mrt_hpc.roles.task import Task


class Tracker:
    """Logs metrics where the recipe asks for it; without that, does nothing. Use as a context manager."""

    def __init__(self, run: Any = None) -> None:
        self._run = run

    @staticmethod
    def of(task: Task) -> Tracker:
        """The tracker of a task: rank 0 logs, the others do not."""
        if not task.recipe.tracking.wandb or task.rank != 0:
            return Tracker()
        import wandb  # a second's import that most recipes do not ask for

        layout, recipe = task.layout, task.recipe
        layout.wandb.mkdir(exist_ok=True)
        return Tracker(
            wandb.init(
                project=recipe.tracking.project,
                name=recipe.name,
                id=run_id(task),
                resume="allow",
                mode="offline",
                dir=str(layout.wandb),
                config=recipe.model_dump(mode="json"),
            )
        )

    def log(self, metrics: IterationMetrics) -> None:
        """Log one iteration, under its number."""
        if self._run is not None:
            content = metrics.model_dump(mode="json", exclude={"iteration"})
            content["progress_by_episode"] = dict(enumerate(metrics.progress_by_episode))
            self._run.log(content, step=metrics.iteration)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if error is None else 1)


def run_id(task: Task) -> str:
    """The W&B id of the run, written down by the first attempt."""
    path = task.layout.wandb / "run_id"

    def write() -> None:
        with creating(path) as commit:
            commit.temporary.write_text(uuid.uuid4().hex[:8])

    task.patiently(write, "the W&B id of the run")
    return path.read_text()
