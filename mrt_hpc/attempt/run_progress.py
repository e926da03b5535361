"""Reads the progress of a run from its files alone, for local runs and runs on Slurm."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.plan.jobs import Job, Plan
from mrt_hpc.run.layout import RunLayout, collection_of
from mrt_hpc.run.manifest import DamagedError
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_tasks, shown_task
from mrt_hpc.run.typed_file import readable
from mrt_hpc.run.weights import published_versions


@dataclass(frozen=True)
class Progress:
    iterations_done: int
    iterations: int
    groups_collected: int | None
    """The number of groups that the newest weights have sampled before training continues; None where training does not
    wait for them.
    """
    warnings: tuple[str, ...]
    """What looks wrong with the last trained iteration, or with the run's optimiser steps."""
    evaluations_done: int
    evaluations: int
    report: bool
    stale: bool
    """Whether the report is older than the newest metrics or evaluation."""
    unreadable: tuple[str, ...] = ()
    """A line where the metrics of the last trained iteration cannot be read."""


Records = Mapping[str, Sequence[TaskRecord]]
"""The records of all tasks of a run: by job, in the order of their indices."""


def read_records(plan: Plan, layout: RunLayout) -> dict[str, list[TaskRecord]]:
    """Each file is read once. A task whose file is damaged is ``unreadable``."""
    return {job.name: read_tasks(layout, job.name, job.tasks, shown_task) for job in plan.jobs}


def progress(plan: Plan, layout: RunLayout, records: Records | None = None) -> Progress:
    """Read the progress of a run. Old weights versions may be pruned, so the newest one gives the number of iterations:
    iteration v - 1 published version v.
    """
    records = read_records(plan, layout) if records is None else records
    done = max(published_versions(layout), default=0)
    collection = collection_of(done)
    collects = any(collection in job.iterations for job in plan.jobs)
    units = [u for job in plan.jobs for u in job.evaluations]
    summaries = (layout.evaluation_summary(*unit) for unit in {(u.version, u.benchmark) for u in units})
    written = [write_time(path) for path in (*map(layout.metrics, range(plan.iterations)), *summaries)]
    measured, faults = newest_metrics(layout, done)
    return Progress(
        iterations_done=done,
        iterations=plan.iterations,
        groups_collected=_count_collected(layout, collection) if collects else None,
        warnings=tuple(warnings(layout, measured)),
        evaluations_done=_count_evaluated(plan, layout, records),
        evaluations=len(units),
        report=layout.report.exists(),
        stale=write_time(layout.report) < max(written, default=0.0),
        unreadable=tuple(faults),
    )


def _count_collected(layout: RunLayout, collection: int) -> int:
    """The number of groups of a collection; those of a damaged archive are sampled again, and do not count."""
    from mrt_hpc.run.archive import sampled_positions  # it takes a third of a second to import, and few runs collect
    from mrt_hpc.run.groups import complete_groups

    try:
        return len(sampled_positions(layout, collection))
    except DamagedError:
        return len(complete_groups(layout.groups(collection)))


def _count_evaluated(plan: Plan, layout: RunLayout, records: Records) -> int:
    """The number of tasks whose shard exists, but for tasks that wait for their first start: theirs may be of other
    settings.
    """
    units = [
        unit
        for job in plan.jobs
        for unit, record in zip(job.evaluations, records[job.name], strict=False)
        if record.state is not TaskState.WAITING
    ]
    folders = {(unit.version, unit.benchmark) for unit in units}
    there = {folder: {path.name for path in list_directory(layout.evaluation(*folder))} for folder in folders}
    return sum(f"shard-{unit.shard:05d}" in there[unit.version, unit.benchmark] for unit in units)


def write_time(path: Path) -> float:
    """The time is in seconds since the epoch by the clock of the filesystem; 0 for a file that cannot be read."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def newest_metrics(layout: RunLayout, done: int) -> tuple[list[IterationMetrics], list[str]]:
    """The metrics of the last of ``done`` iterations, if there are any, and a line if they are damaged."""
    return readable([layout.metrics(done - 1)] if done else [], IterationMetrics.read)


def warnings(layout: RunLayout, measured: Iterable[IterationMetrics]) -> Iterator[str]:
    """Faults of iterations, and of the run's optimiser steps, a sentence each."""
    for metrics in measured:
        yield from metrics.warnings
    if skipped := list_directory(layout.skipped_steps, "*.json"):
        yield (
            f"{len(skipped)} optimiser step(s) were skipped, as loss or gradient was not finite; the sequences of the "
            f"last one are in {skipped[-1]}"
        )


def is_done(layout: RunLayout, job: Job) -> bool:
    return all(record.state is TaskState.DONE for record in read_tasks(layout, job.name, job.tasks))


def failures(plan: Plan, layout: RunLayout) -> list[tuple[Job, int, TaskRecord]]:
    """The tasks that have failed and are not started again: first those that failed by themselves, then those that
    failed because of another, each in the order of time.
    """
    records = read_records(plan, layout)
    tasks = [(job, index, record) for job in plan.jobs for index, record in enumerate(records[job.name])]
    broken = [task for task in tasks if task[2].message and task[2].state is TaskState.FAILED]
    names = {job.name for job, _, _ in broken}
    return sorted(broken, key=lambda task: (not names.isdisjoint(task[2].awaited), task[2].time))


def failed_tasks_error(plan: Plan, layout: RunLayout) -> UserError:
    if not (broken := failures(plan, layout)):
        status = Advice("mrt-hpc status {run}", run=layout.root)
        return UserError("tasks could not start", where=layout.root, advice=status)
    job, index, record = broken[0]
    logs, said = (
        Advice("mrt-hpc logs {run} {role}", run=layout.root, role=job.role),
        indent(record.message.strip(), "    "),
    )
    return UserError(
        f"{len(broken)} task(s) failed; the first was task {index} of {job.name}:\n{said}",
        where=layout.logs,
        advice=Advice("{logs}; {again} continues the run", logs=logs, again=layout.again),
        exit_code=ExitCode.RETRYABLE,
    )
