"""The sections of time and cost, and of faults."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mrt_hpc.analysis.number_formats import DASH, count, duration, number, percent
from mrt_hpc.analysis.page.columns import RUN, by_run
from mrt_hpc.analysis.page.content import Column, Section, Table
from mrt_hpc.analysis.page.figures import time_plots
from mrt_hpc.analysis.result_rows import phase_totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.analysis.page.content import RunRecord

MOST_HAPPENINGS = 200
"""Of a run's faults and resumes, so many of the newest are listed."""


def costs(records: Sequence[RunRecord]) -> Section:
    """Time and resources by phase and by role."""
    tables = (_totals(records), _phases(records), _roles(records), _uses(records))
    return Section("cost", "Time and cost", (), tuple(t for t in tables if t.rows), time_plots(records))


def _totals(records: Sequence[RunRecord]) -> Table:
    every = [record.summary.cost for record in records]
    rows = {
        "wall time": [duration(one.wall_seconds) for one in every],
        "tokens generated": [count(one.generated_tokens) for one in every],
        "GPU-hours": [number(one.gpu_hours) for one in every],
        "CPU core hours": [number(one.cpu_hours) for one in every],
        "tokens sampled per second and inference task": [number(one.sampled_tokens_per_second) for one in every],
        "tokens trained per second and rank": [number(one.trained_tokens_per_second) for one in every],
    }
    return by_run("Cost", records, {name: told for name, told in rows.items() if set(told) != {DASH}})


def _phases(records: Sequence[RunRecord]) -> Table:
    """GPU-hours of training are shared out by the time of its phases."""
    rows = []
    for record in records:
        gpu_hours = sum(use.gpu_hours for use in record.roles if use.role in ("inference", "trainer", "colocated"))
        for phase, seconds, share in phase_totals(record.summary.iterations):
            used = number(share * gpu_hours) if record.roles else DASH
            rows.append((str(phase), record.name, duration(seconds), percent(share), used))
    note = (
        "The GPU-hours of the jobs that sample and train, shared out by the time of the phases: in every phase, all "
        "their GPUs are allocated."
    )
    columns = (Column("phase"), RUN, *map(Column, ("wall time", "share", "GPU-hours")))
    return Table("Training by phase", columns, tuple(rows), note)


def _roles(records: Sequence[RunRecord]) -> Table:
    rows = tuple(
        (use.role, record.name, count(use.attempts), number(use.hours), number(use.gpu_hours), number(use.cpu_hours))
        for record in records
        for use in record.roles
    )
    names = ("attempts", "hours of all tasks", "GPU-hours", "CPU core hours")
    return Table("Jobs by role", (Column("role"), RUN, *map(Column, names)), rows)


def _uses(records: Sequence[RunRecord]) -> Table:
    rows = tuple(
        (what, use.role, record.name, *map(number, hours))
        for record in records
        for use in record.roles
        for what, hours in use.by_use.items()
    )
    note = (
        "The uses of a role add up to its hours. Lost is the work of attempts that did not end well, since their last "
        "result that stays. These are the hours by the run's events; mrt-hpc cost RUN takes those of the cluster's "
        "accounting where there is one."
    )
    names = ("hours of all tasks", "GPU-hours", "CPU core hours")
    columns = (Column("use"), Column("role", numeric=False), RUN, *map(Column, names))
    return Table("Hours by use", columns, rows, note)


def faults(records: Sequence[RunRecord]) -> Section:
    """What went wrong, and how the run went on."""
    kinds = list(dict.fromkeys(h.kind for record in records for h in record.happenings))
    counts = [Counter(h.kind for h in record.happenings) for record in records]
    rows = {kind: [count(found[kind]) for found in counts] for kind in kinds}
    tables = [by_run("Faults and resumes", records, rows), *(_happenings(record) for record in records)]
    told = () if kinds else ("The event logs have no fault, no resume and no change of the recipe.",)
    return Section("faults", "Faults and resumes", told, tuple(t for t in tables if t.rows))


def _happenings(record: RunRecord) -> Table:
    newest = record.happenings[-MOST_HAPPENINGS:]
    rows = tuple((when(h.time), h.kind, h.task, h.detail) for h in newest)
    note = f"The newest {len(newest)} of {len(record.happenings)}." if len(newest) < len(record.happenings) else ""
    columns = tuple(Column(name, numeric=False) for name in ("time (UTC)", "what", "task", "detail"))
    return Table(f"Events of {record.name}", columns, rows, note, folded=True)


def when(time: float) -> str:
    """A time of day in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
