"""The section of results: outcomes in words, evaluations, pass@k and maj@k, stages, regret."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mrt_hpc.analysis.estimates import majority_estimates, pass_estimates, stage_estimates
from mrt_hpc.analysis.number_formats import DASH, count, decimal_text, interval, number, percent, share_text
from mrt_hpc.analysis.page.columns import RUN, VERSION, name_before
from mrt_hpc.analysis.page.content import Column, Section, Table, by_directory
from mrt_hpc.analysis.page.figures import result_plots
from mrt_hpc.analysis.page.prefix_figures import prefix_vote_plots
from mrt_hpc.analysis.page.side_by_side import comparisons, last_by_benchmark, of_last, outcomes_against_first
from mrt_hpc.analysis.render import VOTES, last_few_answers, mixed_verdicts
from mrt_hpc.analysis.result_rows import evaluation_rows, mean_rows, outcomes, regret_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mrt_hpc.analysis.measures import EvaluationSummary
    from mrt_hpc.analysis.page.content import RunRecord
    from mrt_hpc.analysis.result_rows import EvaluationRow, RegretRow


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
        *(name_before(records, record) + sentence for record in records for sentence in _outcomes(record)),
        *outcomes_against_first(records),
        *(f"{name_before(directories, one)}Missing: {gap}." for one in directories for gap in one.summary.missing),
    ]


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
