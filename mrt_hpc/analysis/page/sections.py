"""The sections of the page and their tables; several runs stand side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mrt_hpc.analysis.estimates import majority_estimates, pass_estimates, stage_estimates
from mrt_hpc.analysis.page.content import Column, Listing, Section, Table, by_directory
from mrt_hpc.analysis.page.figures import (
    labelled,
    learning_plots,
    progress_plots,
    result_plots,
    time_plots,
)
from mrt_hpc.analysis.page.prefix_figures import prefix_progress_plots, prefix_vote_plots
from mrt_hpc.analysis.page.side_by_side import comparisons, last_by_benchmark, of_last, outcomes_against_first
from mrt_hpc.analysis.plots import MARKED_POINTS
from mrt_hpc.analysis.render import (
    DASH,
    MOST_ROWS,
    VOTES,
    count,
    decimal_text,
    duration,
    evaluation_rows,
    interval,
    last_few_answers,
    mean_rows,
    mixed_verdicts,
    number,
    outcomes,
    percent,
    phase_totals,
    points,
    regret_rows,
    sample,
    share_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
    from mrt_hpc.analysis.page.content import RunRecord
    from mrt_hpc.analysis.render import EvaluationRow, RegretRow

SMOOTHED = (
    "In the figures, a light line has the value of each iteration, and the strong line is the mean over a twentieth of "
    "the run around it."
)
RUN, MODEL = Column("run", numeric=False), Column("model", numeric=False)
VERSION = Column("version")
OF_VERSIONS = (VERSION, Column("gain over the first, points"), Column("change from the first, points"))
"""The columns that tell the weights versions of a run apart."""
MOST_HAPPENINGS = 200
"""Of a run's faults and resumes, so many of the newest are listed."""


def sections(records: Sequence[RunRecord]) -> tuple[Section, ...]:
    """All sections of the page but the reader of sample traces."""
    trained = [record for record in records if record.trained]
    directories = by_directory(records)
    return (
        _fitted(results(records), records) if trained else _of_models(results(records)),
        *((_fitted(learning(trained), trained),) if trained else ()),
        *_progress(records, trained),
        _fitted(costs(directories), directories),
        _fitted(faults(directories), directories),
        setup(records),
    )


def _fitted(section: Section, records: Sequence[RunRecord]) -> Section:
    """A section whose tables name the run or model in every row only where there are several."""
    if len(records) > 1:
        return section
    return replace(section, tables=tuple(_without(table, {RUN}) for table in section.tables))


def _of_models(section: Section) -> Section:
    """A section whose tables call models by their names alone."""
    named = (_without(table, OF_VERSIONS) for table in section.tables)
    return replace(section, tables=tuple(_renamed(table, RUN, MODEL) for table in named))


def _without(table: Table, columns: Collection[Column]) -> Table:
    kept = [i for i, column in enumerate(table.columns) if column not in columns]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def _renamed(table: Table, before: Column, after: Column) -> Table:
    return replace(table, columns=tuple(after if column == before else column for column in table.columns))


# -- results


def results(records: Sequence[RunRecord]) -> Section:
    """What came out, with intervals."""
    rows = [(record, row) for record in records for row in evaluation_rows(record.summary.evaluations)]
    lasts = [(record, row) for record, row in rows if row.evaluation.version in _ends_of(record, row)]
    trained = any(record.trained for record in records)
    tables = [
        *comparisons(records),
        _evaluations("First and last evaluated version" if trained else "Each benchmark", lasts),
        _means(records),
        _by_samples(records),
        _stages(records),
        *_regrets(records),
        *([_evaluations("All evaluated versions", rows, folded=True)] if len(rows) > len(lasts) else []),
    ]
    return Section(
        "results",
        "Results",
        tuple(_sentences(records)),
        tuple(t for t in tables if t.rows),
        (*result_plots(records), *prefix_vote_plots(records)),
    )


def _sentences(records: Sequence[RunRecord]) -> list[str]:
    """The outcome of each run or model in words, and what is wrong with it or missing."""
    directories = by_directory(records)
    return [
        *(_prefix(records, record) + sentence for record in records for sentence in _outcomes(record)),
        *outcomes_against_first(records),
        *(f"{_prefix(directories, one)}Missing: {gap}." for one in directories for gap in one.summary.missing),
    ]


def _prefix(records: Sequence[RunRecord], record: RunRecord) -> str:
    return "" if len(records) == 1 else f"{record.name}: "


def _outcomes(record: RunRecord) -> list[str]:
    """What one run has gained, and a warning."""
    rows = outcomes(evaluation_rows(record.summary.evaluations))
    told = [_outcome(row) for row in rows]
    if not rows and record.trained:
        told.append("No two weights versions have been evaluated on the same problems.")
    if warning := last_few_answers(record.summary):
        told.append(f"Few answers: {warning}.")
    told += [f"Several graders: {warning}." for warning in mixed_verdicts(record.summary)]
    return told


def _outcome(row: EvaluationRow) -> str:
    gain = row.difference
    assert gain is not None  # outcomes() gives comparable versions only
    return (
        f"{row.evaluation.benchmark}: {percent(row.evaluation.accuracy)} after {row.evaluation.version} iterations, "
        f"{interval(gain)} points against version {row.baseline}; the 95 % interval "
        f"{'excludes' if gain.excludes_zero else 'includes'} zero."
    )


def _ends_of(record: RunRecord, row: EvaluationRow) -> tuple[int, int]:
    versions = [one.version for one in record.summary.evaluations if one.benchmark == row.evaluation.benchmark]
    return min(versions), max(versions)


def _evaluations(caption: str, rows: Sequence[tuple[RunRecord, EvaluationRow]], *, folded: bool = False) -> Table:
    names = (
        "version", "problems × samples", "pass@1", "95 % interval", "gain over the first, points", "tokens", "cut off",
        "answered",
    )  # fmt: skip
    note = "pass@1 is the mean over problems of the mean reward of their samples. Its interval varies over problems" + (
        "; that of the gain is over the gains of the same problems, so it is narrower than the two intervals suggest."
        if any(record.trained for record, _ in rows)
        else "."
    )
    columns = (Column("benchmark"), RUN, *map(Column, names))
    told = tuple((row.evaluation.benchmark, record.name, *_evaluation_cells(record, row)) for record, row in rows)
    return Table(caption, columns, told, note, folded)


def _evaluation_cells(record: RunRecord, row: EvaluationRow) -> tuple[str, ...]:
    one = row.evaluation
    return (
        _version(record, one.version),
        f"{one.problems} × {one.samples}",
        percent(one.accuracy),
        f"{percent(one.low)} to {percent(one.high)}",
        interval(row.difference) if row.difference else DASH,
        number(one.tokens_per_rollout),
        percent(one.truncated_share),
        percent(one.answered_share),
    )


def _version(record: RunRecord, number: int) -> str:
    """The number of a weights version; a model of an evaluation on its own has its number in its name, if any."""
    return str(number) if record.trained else DASH


def _means(records: Sequence[RunRecord]) -> Table:
    """The first and the last version that was evaluated on all benchmarks."""
    rows = []
    for record in records:
        means = mean_rows(record.summary.evaluations)
        for mean in [*means[:1], *means[1:][-1:]]:
            gain = interval(mean.difference) if mean.difference else DASH
            rows.append((record.name, _version(record, mean.version), share_text(mean.accuracy), gain))
    columns = (RUN, VERSION, Column("pass@1 (95 % interval)"), Column("gain over the first, points"))
    return Table("Mean over benchmarks", columns, tuple(rows))


def _by_samples(records: Sequence[RunRecord]) -> Table:
    """pass@k and maj@k, a row for each number of samples."""
    rows = tuple(
        (one.benchmark, record.name, _version(record, one.version), count(k), *told)
        for record in records
        for one in last_by_benchmark(record).values()
        for k, told in _of_samples(one)
    )
    names = ("samples k", "pass@k (95 % interval)", "maj@k (95 % interval)")
    columns = (Column("benchmark"), RUN, VERSION, *map(Column, names))
    note = f"pass@k is the chance that one of k samples is right, unbiased. {VOTES}"
    return Table(f"pass@k and maj@k{of_last(records)}", columns, rows, note)


def _of_samples(one: EvaluationSummary) -> Iterator[tuple[int, tuple[str, str]]]:
    votes = majority_estimates(one)
    for k, estimate in pass_estimates(one).items():
        yield k, (share_text(estimate), share_text(votes[k]) if k in votes else DASH)


def _stages(records: Sequence[RunRecord]) -> Table:
    """A row for each round or budget of a way of evaluating that has several."""
    rows = tuple(
        (one.benchmark, record.name, _version(record, one.version), stage, share_text(accuracy))
        for record in records
        for one in last_by_benchmark(record).values()
        for stage, accuracy in stage_estimates(one).items()
    )
    accuracy = Column("accuracy (95 % interval)")
    columns = (Column("benchmark"), RUN, VERSION, Column("stage", numeric=False), accuracy)
    note = "The last stage of a benchmark is its result; all other tables and figures show that one alone."
    return Table(f"Accuracy by stage{of_last(records)}", columns, rows, note)


def _regrets(records: Sequence[RunRecord]) -> tuple[Table, Table]:
    """The last version against the first, and all of them."""
    found = [(record, row) for record in records for row in regret_rows(record.summary.evaluations)]
    lasts = {(record.name, row.benchmark, row.budget): (record, row) for record, row in found}
    shown = _regret_table(f"Normalised regret{of_last(records)}", list(lasts.values()))
    every = _regret_table("Normalised regret of all evaluated versions", found if len(found) > len(lasts) else [])
    return shown, replace(every, folded=True)


def _regret_table(caption: str, found: Sequence[tuple[RunRecord, RegretRow]]) -> Table:
    names = ("budget, tokens", "version", "normalised regret (95 % interval)", "change from the first, points")
    columns = (Column("benchmark"), RUN, *map(Column, names), Column("tokens counted", numeric=False))
    note = (
        "Normalised regret is how far the value of the prefixes stays behind an oracle's, 1 at every token, on average "
        "over the budget: lower is better."
    )
    return Table(caption, columns, tuple(_regret_cells(record, row) for record, row in found), note)


def _regret_cells(record: RunRecord, row: RegretRow) -> tuple[str, ...]:
    change = interval(row.difference) if row.difference else DASH
    told = (count(row.budget), _version(record, row.version), decimal_text(row.regret))
    return (row.benchmark, record.name, *told, change, row.counted)


# -- training


def _progress(records: Sequence[RunRecord], trained: Sequence[RunRecord]) -> tuple[Section, ...]:
    """Progress by episode in training and in evaluation; nothing where neither could have any."""
    found = (*(progress_plots(trained) if trained else ()), *prefix_progress_plots(records))
    told = tuple(_prefix(records, record) + sentence for record in records for sentence in record.unread)
    return (Section("progress", "Progress by episode", told, plots=found),) if trained or found or told else ()


def learning(records: Sequence[RunRecord]) -> Section:
    """The curves of the training, and some of its iterations as a table a run."""
    most = max(record.summary.iterations_done for record in records)
    told = (SMOOTHED,) if most > MARKED_POINTS else ()
    return Section("training", "Learning curves", told, tuple(map(_iterations, records)), learning_plots(records))


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
    "error of progress": lambda m: percent(m.progress_error),
    "progress by episode, points": lambda m: ", ".join(map(points, m.progress_by_episode)) or DASH,
}


def _iterations(record: RunRecord) -> Table:
    done = record.summary.iterations
    shown = sample(done, MOST_ROWS)
    rows = tuple((str(m.iteration), *(told(m) for told in _MEASURES.values())) for m in shown)
    note = (
        f"{len(shown)} of {len(done)} iterations; the tables of the figures have all. Mismatch is the mean ratio of "
        "the sampled tokens' probabilities, the trainer's over the server's: 1 when they agree."
    )
    return Table(f"Iterations of {record.name}", _columns("iteration", *_MEASURES), rows, note)


# -- time


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
        "tokens sampled per second and inference process": [number(one.sampled_tokens_per_second) for one in every],
        "tokens trained per second and rank": [number(one.trained_tokens_per_second) for one in every],
    }
    return _by_run("Cost", records, {name: told for name, told in rows.items() if set(told) != {DASH}})


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


# -- faults


def faults(records: Sequence[RunRecord]) -> Section:
    """What went wrong, and how the run went on."""
    kinds = list(dict.fromkeys(h.kind for record in records for h in record.happenings))
    counts = [Counter(h.kind for h in record.happenings) for record in records]
    rows = {kind: [count(found[kind]) for found in counts] for kind in kinds}
    tables = [_by_run("Faults and resumes", records, rows), *(_happenings(record) for record in records)]
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


# -- set-up


def setup(records: Sequence[RunRecord]) -> Section:
    """Recipe, versions and files."""
    directories = by_directory(records)
    summaries = [record.summary for record in directories]
    files = [{file.what: file.path for file in s.files} for s in summaries]
    tables = (
        _by_run("Settings", directories, _joined([_settings(record) for record in directories])),
        _models(records),
        _by_run("Versions", directories, _joined([s.versions for s in summaries])),
        _by_run("Files in the run directory", directories, _joined(files)),
    )
    listings = tuple(
        Listing(labelled(directories, record, "Resolved recipe"), record.recipe)
        for record in directories
        if record.recipe
    )
    return Section("setup", "Recipe and versions", (), tuple(t for t in tables if t.rows), listings=listings)


def _settings(record: RunRecord) -> dict[str, str]:
    summary = record.summary
    if not record.trained:
        return {"recipe": summary.recipe, **summary.settings}
    method = {"algorithm": summary.algorithm, "model": summary.model, "prover": summary.prover or DASH}
    return {"recipe": summary.recipe, **method, **summary.settings}


def _models(records: Sequence[RunRecord]) -> Table:
    """Where the models of evaluations on their own are from."""
    rows = tuple((r.name, r.evaluation, r.summary.model) for r in records if r.evaluation is not None)
    names = ("model", "evaluation", "directory")
    return Table("Models", tuple(Column(name, numeric=False) for name in names), rows)


def _joined(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for one in facts for name in one)
    return {name: [one.get(name, DASH) for one in facts] for name in names}


def _by_run(caption: str, records: Sequence[RunRecord], rows: Mapping[str, Sequence[str]]) -> Table:
    """A column each run."""
    columns = (Column("", numeric=False), *(Column(record.name, numeric=False) for record in records))
    return Table(caption, columns, tuple((name, *values) for name, values in rows.items()))


def _columns(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)
