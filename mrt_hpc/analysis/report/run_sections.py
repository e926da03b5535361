"""The sections of a report and their tables; several runs stand side by side."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from mrt_hpc.analysis.figures import MARKED_POINTS
from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.analysis.number_formats import DASH, count, duration, number, percent, points
from mrt_hpc.analysis.report.content import Column, Listing, ReportSection, RunRecord, Table, directory_records
from mrt_hpc.analysis.report.plots import learning_plots, line_label, prefix_progress_plots, progress_plots, time_plots
from mrt_hpc.analysis.report.result_sections import CHANGE, GAIN, RUN, VERSION, name_before, results
from mrt_hpc.analysis.rows import phase_totals, sample
from mrt_hpc.plan.hours import UseHours

MOST_ROWS = 12
"""Rows of the table of iterations: the first, the last, and others evenly between."""
MOST_HAPPENINGS = 200
"""The newest faults and resumes that are listed."""
MODEL = Column("model", numeric=False)
SMOOTHED = (
    "In the figures, a light line has the value of each iteration, and the strong line is the mean over a twentieth of "
    "the run around it."
)


def title(records: Sequence[RunRecord]) -> str:
    return ", ".join(dict.fromkeys(record.curve_name for record in directory_records(records)))


def heading(record: RunRecord) -> str:
    s = record.summary
    if not record.is_run:
        return f"{s.model}, evaluated by {record.evaluation}."
    prover = f", prover {s.prover}" if s.prover else ""
    return f"{s.algorithm} on {s.model}{prover}; {s.iterations_done} of {s.iterations_planned} iterations done."


def sections(records: Sequence[RunRecord]) -> tuple[ReportSection, ...]:
    """All sections but the reader of sample traces."""
    trained = [record for record in records if record.is_run]
    directories = directory_records(records)
    return (
        _fit_section(results(records), records) if trained else _model_section(results(records)),
        *((_fit_section(training_section(trained), trained),) if trained else ()),
        *progress(records, trained),
        _fit_section(costs(directories), directories),
        _fit_section(faults(directories), directories),
        setup(records),
        *upload(directories),
    )


def _fit_section(section: ReportSection, records: Sequence[RunRecord]) -> ReportSection:
    """Tables name the run or model in every row only where there are several."""
    if len(records) > 1:
        return section
    return replace(section, tables=tuple(_drop_columns(table, {RUN}) for table in section.tables))


def _model_section(section: ReportSection) -> ReportSection:
    """Tables call models by their names alone."""
    named = (_drop_columns(table, {VERSION, GAIN, CHANGE}) for table in section.tables)
    return replace(section, tables=tuple(_rename_column(table, RUN, MODEL) for table in named))


def _drop_columns(table: Table, columns: Collection[Column]) -> Table:
    kept = [i for i, column in enumerate(table.columns) if column not in columns]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def _rename_column(table: Table, before: Column, after: Column) -> Table:
    return replace(table, columns=tuple(after if column == before else column for column in table.columns))


# -- training


def progress(records: Sequence[RunRecord], trained: Sequence[RunRecord]) -> tuple[ReportSection, ...]:
    """A section for training and one for evaluation, where they could have any progress."""
    plots = (*(progress_plots(trained) if trained else ()), *prefix_progress_plots(records))
    unread = tuple(name_before(records, record) + sentence for record in records for sentence in record.unread)
    return (
        (ReportSection("progress", "Progress by episode", unread, plots=plots),) if trained or plots or unread else ()
    )


def training_section(records: Sequence[RunRecord]) -> ReportSection:
    most = max(record.summary.iterations_done for record in records)
    sentences = (SMOOTHED,) if most > MARKED_POINTS else ()
    tables = tuple(_iterations(record) for record in records if record.summary.iterations)
    return ReportSection("training", "Learning curves", sentences, tables, learning_plots(records))


_MEASURES: Mapping[str, Callable[[IterationMetrics], str]] = {
    "reward": lambda m: number(m.reward_mean),
    "tokens per rollout": lambda m: number(m.tokens_per_rollout),
    "cut off": lambda m: percent(m.truncated_share),
    "answered": lambda m: percent(m.answered_share),
    "loss": lambda m: number(m.loss),
    "gradient norm": lambda m: number(m.grad_norm),
    "learning rate": lambda m: number(m.learning_rate),
    "KL to reference": lambda m: number(m.kl_reference),
    "mismatch": lambda m: number(m.mismatch_mean),
    "error of progress": lambda m: percent(m.progress_error) + _value_share_note(m.progress_error_share),
    "progress by episode, points": lambda m: ", ".join(map(points, m.progress_by_episode)) or DASH,
}


def _value_share_note(share: float | None) -> str:
    return "" if share is None or share >= 1 else f" (of {percent(share)})"


def _iterations(record: RunRecord) -> Table:
    done = record.summary.iterations
    shown = sample(done, MOST_ROWS)
    rows = tuple((str(m.iteration), *(written(m) for written in _MEASURES.values())) for m in shown)
    note = (
        f"{len(shown)} of {len(done)} iterations are shown; all are in iterations/*/metrics.json, and the page has all "
        "in the tables of its figures. Iteration n samples with weights version n (an older one where max_staleness "
        "allows it) and ends with version n + 1. Answered are the traces in which an answer was found, right or wrong. "
        "Mismatch is the mean ratio of the sampled tokens' probabilities, the trainer's over the server's: 1 when they "
        "agree. The error of progress is the standard error of one progress value by the prover's branches, where "
        "there are two or more."
    )
    return Table(f"Iterations of {record.name}", tuple(map(Column, ("iteration", *_MEASURES))), rows, note)


# -- time, cost and faults


def costs(records: Sequence[RunRecord]) -> ReportSection:
    tables = (_totals(records), _phases(records), _roles(records), _uses(records))
    return ReportSection("cost", "Time and cost", (), tuple(t for t in tables if t.rows), time_plots(records))


def _totals(records: Sequence[RunRecord]) -> Table:
    every = [record.summary.cost for record in records]
    gpu_unit, gpu_scale = _unit(total.gpu_hours for total in every)
    core_unit, core_scale = _unit(total.cpu_hours for total in every)
    rows = {
        "wall time": [duration(total.wall_seconds) for total in every],
        "tokens generated for training, branches included": [count(total.generated_tokens) for total in every],
        f"GPU-{gpu_unit}": [_scaled_hours(total.gpu_hours or None, gpu_scale) for total in every],
        f"CPU core {core_unit}": [_scaled_hours(total.cpu_hours, core_scale) for total in every],
        "tokens sampled per second and inference task": [number(total.sampled_tokens_per_second) for total in every],
        "tokens trained per second and rank": [number(total.trained_tokens_per_second) for total in every],
    }
    return _table_by_run("Cost", records, {name: cells for name, cells in rows.items() if set(cells) != {DASH}})


def _unit(hours: Iterable[float | None]) -> tuple[str, float]:
    """The unit is seconds where all are below an hour; the number is that of units in an hour."""
    most = max((value for value in hours if value is not None), default=0.0)
    return ("seconds", 3600.0) if most < 1 else ("hours", 1.0)


def _scaled_hours(hours: float | None, scale: float) -> str:
    return number(None if hours is None else scale * hours)


def _hour_columns(uses: Sequence[tuple[float, float, float]]) -> tuple[tuple[Column, ...], list[tuple[str, ...]]]:
    """Columns of time, GPU time and core time, and their cells; no GPU column without GPUs. ``uses`` are hours of the
    three in each row.
    """
    unit, scale = _unit(hours for use in uses for hours in use)
    names = (f"{unit} of all tasks", f"GPU-{unit}", f"CPU core {unit}")
    shown = [n for n in range(3) if n != 1 or any(use[n] for use in uses)]
    cells = [tuple(_scaled_hours(use[n], scale) for n in shown) for use in uses]
    return tuple(Column(names[n]) for n in shown), cells


def _phases(records: Sequence[RunRecord]) -> Table:
    """GPU-hours of training are shared out by the time of its phases."""
    rows = []
    by_gpus = any(row.gpu_hours for record in records for row in record.hours)
    for record in records:
        gpu_hours = sum(row.gpu_hours for row in record.hours if row.role in ("inference", "trainer", "colocated"))
        for phase, seconds, share in phase_totals(record.summary.iterations):
            used = (number(share * gpu_hours) if record.hours else DASH,) if by_gpus else ()
            rows.append((str(phase), record.name, duration(seconds), percent(share), *used))
    note = (
        "The GPU-hours of the jobs that sample and train, shared out by the time of the phases: in every phase, all "
        "their GPUs are allocated."
    )
    names = ("wall time", "share", "GPU-hours") if by_gpus else ("wall time", "share")
    columns = (Column("phase"), RUN, *map(Column, names))
    return Table("Training by phase", columns, tuple(rows), note if by_gpus else "", folded=True)


Named = tuple[tuple[str, ...], Sequence[UseHours]]


def _hour_table(title: str, first: Sequence[Column], named: Sequence[Named], note: str = "") -> Table:
    summed = [
        (sum(row.hours for row in of_row), sum(row.gpu_hours for row in of_row), sum(row.core_hours for row in of_row))
        for _, of_row in named
    ]
    columns, cells = _hour_columns(summed)
    rows = tuple((*names, *hours) for (names, _), hours in zip(named, cells, strict=True))
    return Table(title, (*first, *columns), rows, note, folded=True)


def _roles(records: Sequence[RunRecord]) -> Table:
    named = [
        ((str(role), record.name, count(attempts)), [row for row in record.hours if row.role is role])
        for record in records
        for role, attempts in record.attempts.items()
    ]
    return _hour_table("Jobs by role", (Column("role"), RUN, Column("attempts")), named)


def _uses(records: Sequence[RunRecord]) -> Table:
    named = [((str(row.use), str(row.role), record.name), [row]) for record in records for row in record.hours]
    note = (
        "The uses of a role add up to its hours. Lost is the work of attempts that did not end well, since their last "
        "result that stays. These are the hours by the run's events; mrt-hpc cost RUN takes those of the cluster's "
        "accounting where there is one."
    )
    return _hour_table("Time by use", (Column("use"), Column("role", numeric=False), RUN), named, note)


def faults(records: Sequence[RunRecord]) -> ReportSection:
    kinds = list(dict.fromkeys(h.kind for record in records for h in record.happenings))
    counts = [Counter(h.kind for h in record.happenings) for record in records]
    rows = {kind: [count(counted[kind]) for counted in counts] for kind in kinds}
    tables = [_table_by_run("Faults and resumes", records, rows), *(_happenings(record) for record in records)]
    sentences = () if kinds else ("The event logs have no fault, no resume and no change of the recipe.",)
    return ReportSection("faults", "Faults and resumes", sentences, tuple(t for t in tables if t.rows))


def _happenings(record: RunRecord) -> Table:
    newest = record.happenings[-MOST_HAPPENINGS:]
    times = [datetime.fromtimestamp(h.time, UTC).strftime("%Y-%m-%d %H:%M:%S") for h in newest]
    rows = tuple((time, h.kind, h.task, h.detail) for time, h in zip(times, newest, strict=True))
    note = f"The newest {len(newest)} of {len(record.happenings)}." if len(newest) < len(record.happenings) else ""
    columns = tuple(Column(name, numeric=False) for name in ("time (UTC)", "what", "task", "detail"))
    return Table(f"Events of {record.name}", columns, rows, note, folded=True, page_only=True)


# -- recipe, versions and files


def setup(records: Sequence[RunRecord]) -> ReportSection:
    directories = directory_records(records)
    summaries = [record.summary for record in directories]
    files = [{file.what: file.path for file in s.files} for s in summaries]
    tables = (
        _table_by_run("Settings", directories, _join_facts([_settings(record) for record in directories])),
        _models(records),
        _table_by_run("Versions", directories, _join_facts([s.versions for s in summaries])),
        _table_by_run("Files in the run directory", directories, _join_facts(files)),
    )
    listings = tuple(
        Listing(line_label(directories, record.name, "Resolved recipe"), record.recipe, page_only=True)
        for record in directories
        if record.recipe
    )
    return ReportSection("setup", "Recipe and versions", (), tuple(t for t in tables if t.rows), listings=listings)


def _settings(record: RunRecord) -> dict[str, str]:
    summary = record.summary
    if not record.is_run:
        return {"recipe": summary.recipe, **summary.settings}
    method = {"algorithm": summary.algorithm, "model": summary.model, "prover": summary.prover or DASH}
    return {"recipe": summary.recipe, **method, **summary.settings}


def _models(records: Sequence[RunRecord]) -> Table:
    rows = tuple((r.name, r.evaluation, r.summary.model) for r in records if r.evaluation is not None)
    names = ("model", "evaluation", "directory")
    return Table("Models", tuple(Column(name, numeric=False) for name in names), rows)


def _join_facts(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for fact in facts for name in fact)
    return {name: [fact.get(name, DASH) for fact in facts] for name in names}


def _table_by_run(caption: str, records: Sequence[RunRecord], rows: Mapping[str, Sequence[str]]) -> Table:
    columns = (Column("", numeric=False), *(Column(record.name, numeric=False) for record in records))
    return Table(caption, columns, tuple((name, *values) for name, values in rows.items()))


def upload(records: Sequence[RunRecord]) -> tuple[ReportSection, ...]:
    """How to upload what was logged offline; nothing where all is uploaded."""
    waiting = [(record, record.summary.upload) for record in records if record.summary.upload]
    sentences = tuple(name_before(records, record) + sentence for record, sentence in waiting)
    commands = (
        Listing(line_label(records, record.name, "Command"), record.summary.upload_command or "")
        for record, _ in waiting
    )
    return (ReportSection("upload", "Upload to W&B", sentences, listings=tuple(commands)),) if waiting else ()
