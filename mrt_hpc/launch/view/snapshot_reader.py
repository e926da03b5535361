"""Reads snapshots of a run, one after the other: what does not change is read once."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.launch.run_progress import progress
from mrt_hpc.launch.view import rates
from mrt_hpc.launch.view.run_facts import RunFacts, read_facts
from mrt_hpc.launch.view.run_history import RunHistory
from mrt_hpc.launch.view.run_look import NO_QUEUES, RunLook
from mrt_hpc.launch.view.snapshot import (
    Evaluated,
    Evaluations,
    Fault,
    Iterations,
    JobView,
    Queued,
    Snapshot,
    TaskView,
)
from mrt_hpc.launch.view.upcoming import Clock, expected_end, upcoming
from mrt_hpc.plan.jobs import Role
from mrt_hpc.run.layout import collection_of
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.run.typed_file import UnreadableError
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mrt_hpc.analysis.measures import IterationMetrics
    from mrt_hpc.launch.queued_jobs import QueueLook
    from mrt_hpc.launch.run_progress import Progress
    from mrt_hpc.plan.jobs import Job, Plan
    from mrt_hpc.run.layout import RunLayout
    from mrt_hpc.run.task_state import TaskRecord

FAULTS_SHOWN = 20
_AT_REST = frozenset({TaskState.DONE, TaskState.WAITING})
"""The states of tasks that are counted, not listed."""


@dataclass
class SnapshotReader:
    """Reads snapshots of one run."""

    layout: RunLayout
    plan: Plan
    facts: RunFacts
    history: RunHistory
    metrics: rates.Metrics
    costs: rates.Costs = field(default_factory=rates.Costs)
    _summaries: dict[Path, tuple[int, Evaluated | str]] = field(default_factory=dict, init=False)
    """The results of evaluations, or why they cannot be read, with the times at which their files were changed."""

    @classmethod
    def of(cls, layout: RunLayout, plan: Plan) -> SnapshotReader:
        """A reader for a run, of which nothing but its facts is read yet."""
        return cls(layout, plan, read_facts(layout), RunHistory.of(layout), rates.Metrics(layout))

    def read(self, queues: QueueLook = NO_QUEUES) -> Snapshot:
        """Read the run's files.

        Args:
            queues: what the queues have said about it.
        """
        look, now = RunLook.at(self.layout, self.plan, queues), time.time()
        self.history.update()
        done = progress(self.plan, self.layout, look.records)
        measured = self.metrics.read(self.plan.iterations)
        current = collection_of(done.iterations_done) if done.groups_collected is not None else done.iterations_done
        groups = rates.groups_there(self.layout, current)
        iterations = self._iterations(done, measured, len(groups))
        clock = Clock(now, done.iterations_done, iterations.seconds, self.history.published.get(done.iterations_done))
        happenings, results = self.history.all_happenings(look.records), tuple(self._results())
        return Snapshot(
            run=str(self.layout.root),
            name=self.plan.name,
            kind=self.facts.kind,
            time=now,
            state=look.state,
            unreached=dict(queues.unreached),
            unreadable=tuple(self._unreadable(look, done)),
            iterations=iterations,
            measured=tuple(map(rates.measured, measured)),
            evaluations=Evaluations(done=done.evaluations_done, planned=done.evaluations, results=results),
            jobs=tuple(_job(job, look) for job in self.plan.jobs),
            tasks=tuple(self._tasks(look)),
            throughput=rates.throughput(self.layout, measured, groups, self.history, self.costs),
            fault_counts=dict(Counter(happening.kind for happening in happenings).most_common()),
            faults=tuple(
                Fault(time=one.time, what=one.kind, task=one.task, detail=one.detail)
                for one in happenings[-FAULTS_SHOWN:]
            ),
            upcoming=tuple(upcoming(look, iterations, clock)),
            expected_end=expected_end(look, iterations, clock, list(self.history.shards)),
            report=str(self.layout.report) if done.report else None,
        )

    def _iterations(self, done: Progress, measured: list[IterationMetrics], groups: int) -> Iterations:
        samples = any(job.does(Role.INFERENCE) for job in self.plan.jobs) and done.iterations_done < done.iterations
        collects = done.groups_collected is not None
        return Iterations(
            done=done.iterations_done,
            planned=done.iterations,
            weights_version=max(published_versions(self.layout), default=None),
            groups_done=done.groups_collected if collects else self._groups_done(done, groups) if samples else None,
            groups_planned=self.facts.groups if samples and not collects else None,
            seconds=rates.iteration_seconds(measured),
        )

    def _groups_done(self, done: Progress, groups: int) -> int:
        """The complete groups of the current iteration; all of them where training has put them into its archive."""
        archived = self.layout.group_archive(done.iterations_done).exists()
        return self.facts.groups or 0 if archived else groups

    def _results(self) -> Iterator[Evaluated]:
        """The results of the planned evaluations that are there."""
        units = [unit for job in self.plan.jobs for unit in job.evaluations]
        benchmarks = list(dict.fromkeys(unit.benchmark for unit in units))
        planned = {(unit.version, unit.benchmark) for unit in units}
        for version, benchmark in sorted(planned, key=lambda one: (benchmarks.index(one[1]), one[0])):
            if (result := self._result(version, benchmark)) is not None:
                yield result

    def _result(self, version: int, benchmark: str) -> Evaluated | None:
        path = self.layout.evaluation_summary(version, benchmark)
        try:
            changed = path.stat().st_mtime_ns
            if (known := self._summaries.get(path)) is None or known[0] != changed:
                self._summaries[path] = (changed, _evaluated(EvaluationSummary.read(path)))
        except UnreadableError as error:
            self._summaries[path] = (changed, error.line)
        except OSError:
            return None
        found = self._summaries[path][1]
        return found if isinstance(found, Evaluated) else None

    def _unreadable(self, look: RunLook, done: Progress) -> Iterator[str]:
        """A line for each file that cannot be read."""
        yield from look.faults
        yield from done.unreadable
        yield from (line for line in self.metrics.faults if line not in done.unreadable)
        yield from (found for _, found in self._summaries.values() if isinstance(found, str))
        yield from self.history.faults

    def _tasks(self, look: RunLook) -> Iterator[TaskView]:
        for job, index, record in look.tasks():
            if record.state not in _AT_REST or (job.name, index) in look.running:
                yield self._task(job, index, record, look)

    def _task(self, job: Job, index: int, record: TaskRecord, look: RunLook) -> TaskView:
        news, queued = self.history.tasks.get((job.name, index)), look.queued.get((job.name, index))
        alive = (job.name, index) in look.running
        node = (queued.nodes if queued is not None else "") or (news.host if news is not None and alive else "")
        return TaskView(
            job=job.name,
            index=index,
            role=job.role,
            state=record.state,
            alive=alive,
            attempt=record.attempt,
            since=record.time,
            node=node or None,
            weights_version=None if news is None else news.version,
            last_event=None if news is None else news.time,
            failures=record.failures,
            reason=record.message or ("" if queued is None else queued.reason),
            ends_at=queued.ends_at if queued is not None and alive else None,
        )


def _evaluated(summary: EvaluationSummary) -> Evaluated:
    fields = ("version", "benchmark", "accuracy", "low", "high")
    return Evaluated(**{name: getattr(summary, name) for name in fields})


def _job(job: Job, look: RunLook) -> JobView:
    tasks = look.queues.tasks.get(job.name, [])
    counts = Counter((str(task.state), "" if task.ended else task.reason) for task in tasks)
    return JobView(
        name=job.name,
        role=job.role,
        ids=tuple(look.queues.ids.get(job.name, ())),
        tasks=job.tasks,
        states=dict(Counter(record.state for record in look.records[job.name])),
        queue=tuple(Queued(state=state, reason=why, tasks=count) for (state, why), count in counts.items()),
        after=tuple(wait.job for wait in job.after),
        time_limit_s=job.resources.time_limit_minutes * 60,
        gpus=job.resources.gpus,
    )
