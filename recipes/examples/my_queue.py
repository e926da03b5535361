"""A back end of a user's own, as it lies beside a site profile: each task is a shell script in a folder, which a batch
host starts. Nothing of the package names it.

docs/extending.md explains it; tests/unit/test_backends.py runs it.
"""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mrt_hpc import (
    Backend,
    Count,
    DependencyKind,
    Job,
    JobOrder,
    Objections,
    Plan,
    QueuedTask,
    QueueState,
    Recipe,
    RunLayout,
    Site,
    UserError,
)

SCRIPT = """#!/bin/sh
{awaited}
{exports}
echo > {mark}.started
{python} -m mrt_hpc.attempt.ranks {run} {job} {index}
echo $? > {mark}.ended
"""
AWAITED = """until [ -e {mark}.ended ]; do sleep 1; done
"""
MUST_END_WELL = """[ "$(cat {awaited}.ended)" = 0 ] || {{ echo 1 > {mark}.ended; exit 1; }}
"""


class ScriptSite(Site):
    """A host that starts every script that it finds in a folder."""

    back_end: ClassVar[str] = f"{__name__}:ScriptBackend"
    type: str
    folder: str
    """Folder that holds the scripts, and how each has ended."""
    most_scripts: Count | None = None
    """Number of scripts that one run may have; null is no limit."""


@dataclass(frozen=True)
class ScriptBackend(Backend):
    """One script for each task: ``ID_INDEX.sh``, and beside it ``.started``, and ``.ended`` with its exit code."""

    site: ScriptSite
    place: ClassVar[str] = "the batch host"

    @property
    def folder(self) -> Path:
        """Where the scripts are."""
        return Path(self.site.folder)

    @property
    def queue(self) -> str | None:
        """Each folder is a queue."""
        return f"scripts in {self.folder}"

    def objections(self, plan: Plan) -> Objections:
        """More scripts than the host takes are refused."""
        doubts = [] if self.folder.is_dir() else [f"{self.folder} is not there yet: submit makes it"]
        if self.site.most_scripts is None or plan.tasks <= self.site.most_scripts:
            return Objections(doubts)
        sentence = f"the plan has {plan.tasks} tasks, and the host takes {self.site.most_scripts}"
        error = UserError(sentence, where=f"site {self.site.name}", advice="--set evaluation.problem_shards=1")
        return Objections(doubts, [sentence], error)

    def texts(self, plan: Plan, recipe: Recipe, layout: RunLayout) -> list[tuple[str, str]]:  # noqa: ARG002
        """One script of each job."""
        ids = {job.name: [f"{{{job.name}}}_{index}" for index in range(job.tasks)] for job in plan.jobs}
        return [(job.name, self._script(job, 0, layout, ids)) for job in plan.jobs]

    def submit(self, order: JobOrder) -> None:
        """Write the scripts of all jobs that are not queued, and of the lost tasks of those that are."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tasks = {name: [task for one in ids for task in self._tasks(one)] for name, ids in order.queued.items()}
        for job in order.jobs:
            indices = order.lost_tasks.get(job.name, ()) if job.name in order.queued else range(job.tasks)
            if not indices:
                continue
            job_id = str(1 + max((int(name.partition("_")[0]) for name in self._tasks()), default=0))
            sent = [f"{job_id}_{index}" for index in indices]
            tasks[job.name] = [*tasks.get(job.name, ()), *sent]
            for index in indices:
                (self.folder / f"{job_id}_{index}.sh").write_text(self._script(job, index, order.layout, tasks, job_id))
            order.record(job.name, job_id)

    def states(self, job_ids: Iterable[str], within_s: float | None = None) -> dict[str, QueuedTask]:  # noqa: ARG002
        """By the files beside the scripts."""
        found = {}
        for job_id in job_ids:
            for name in self._tasks(job_id) or [job_id]:
                found[name] = QueuedTask(name, self._state(name))
        return found

    def cancel(self, job_ids: Iterable[str]) -> list[str]:
        """A script that has not been started is taken away; one that runs is the host's."""
        cancelled = []
        for job_id in job_ids:
            waiting = [name for name in self._tasks(job_id) if self._state(name) is QueueState.PENDING]
            for name in waiting:
                (self.folder / f"{name}.sh").rename(self.folder / f"{name}.cancelled")
            cancelled += [job_id] if waiting else []
        return cancelled

    def _tasks(self, job_or_task: str = "*") -> list[str]:
        pattern = f"{job_or_task}.*" if "_" in job_or_task else f"{job_or_task}_*.*"
        return sorted({path.name.partition(".")[0] for path in self.folder.glob(pattern)})

    def _state(self, name: str) -> QueueState:
        at = self.folder / name
        if (ended := at.with_suffix(".ended")).is_file():
            return QueueState.COMPLETED if ended.read_text().strip() == "0" else QueueState.FAILED
        states = {".cancelled": QueueState.CANCELLED, ".started": QueueState.RUNNING, ".sh": QueueState.PENDING}
        return next((state for end, state in states.items() if at.with_suffix(end).is_file()), QueueState.UNKNOWN)

    def _script(
        self, job: Job, index: int, layout: RunLayout, tasks: dict[str, Sequence[str]], job_id: str = "ID"
    ) -> str:
        mark = self._mark(f"{job_id}_{index}")
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.site.environment.items()]
        return SCRIPT.format(
            awaited="".join(self._awaited(job, tasks, mark)),
            exports="\n".join(exports),
            python=shlex.quote(sys.executable),
            run=shlex.quote(str(layout.root)),
            job=job.name,
            index=index,
            mark=mark,
        )

    def _awaited(self, job: Job, tasks: dict[str, Sequence[str]], mark: str) -> Iterator[str]:
        """Shell lines that wait for other tasks; jobs that are done have none."""
        for wait in job.after:
            for other in map(self._mark, tasks.get(wait.job, ())):
                yield AWAITED.format(mark=other)
                if wait.kind is DependencyKind.AFTEROK:
                    yield MUST_END_WELL.format(awaited=other, mark=mark)

    def _mark(self, task: str) -> str:
        return shlex.quote(str(self.folder / task))
