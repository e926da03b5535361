"""The section of results: outcomes in words, runs or models side by side, evaluations, pass@k and maj@k, stages,
quality and regret.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from mrt_hpc.analysis.intervals import FloatArray, IntervalEstimate, Means, crossed_gain, crossed_share
from mrt_hpc.analysis.measures import (
    EvaluationSummary,
    RunSummary,
    few_answers,
    graders_of,
    several_graders,
    several_unjudged,
)
from mrt_hpc.analysis.number_formats import DASH, count, number, percent, plural, points, span_text
from mrt_hpc.analysis.report.content import Column, ReportSection, RunRecord, Table, directory_records
from mrt_hpc.analysis.report.plots import result_plots
from mrt_hpc.analysis.rows import (
    VersionRow,
    accuracy_of,
    evaluation_rows,
    group_by_benchmark,
    have_several_graders,
    majority_estimates,
    mean_rows,
    outcomes,
    pass_estimates,
    regret_rows,
    stage_estimates,
)
from mrt_hpc.mrt.votes import RULE

BENCHMARK = Column("benchmark")
RUN = Column("run", numeric=False)
VERSION = Column("version")
GAIN = Column("gain over the first, points")
CHANGE = Column("change from the first, points")

Row = tuple[bool, tuple[str, ...]]
"""Whether the page shows the row first, and its cells."""


def results(records: Sequence[RunRecord]) -> ReportSection:
    tables = (
        *_comparisons(records),
        *_evaluations(records),
        *_means(records),
        *_sample_tables(records),
        *_stages(records),
        *_quality(records),
        *_regrets(records),
    )
    return ReportSection(
        "results", "Results", tuple(_sentences(records)), tuple(t for t in tables if t.rows), result_plots(records)
    )


def name_before(records: Sequence[RunRecord], record: RunRecord) -> str:
    return "" if len(records) == 1 else f"{record.name}: "


# -- in words


def _sentences(records: Sequence[RunRecord]) -> list[str]:
    directories = directory_records(records)
    return [
        *(name_before(records, record) + sentence for record in records for sentence in _outcomes(record)),
        *_outcomes_of_arms(records),
        *_outcomes_against_first(records),
        *_not_compared(records),
        *(f"Note: {note}." for record in records for note in record.notes),
        *(
            f"{name_before(directories, record)}Missing: {gap}."
            for record in directories
            for gap in record.summary.missing
        ),
    ]


def _outcomes(record: RunRecord) -> list[str]:
    """The gain of one run and a warning; of a run of an arm the warning alone."""
    sentences = [] if record.arm else _gains(record)
    if warning := last_few_answers(record.summary):
        sentences.append(f"Few answers: {warning}.")
    sentences += [f"Not judged: {warning}." for warning in lost_verdicts(record.summary)]
    return [*sentences, *(f"Several graders: {warning}." for warning in mixed_verdicts(record.summary))]


def _gains(record: RunRecord) -> list[str]:
    evaluations = record.summary.evaluations
    rows, means = outcomes(evaluation_rows(evaluations)), mean_rows(evaluations)
    sentences = [
        f"{row.evaluation.benchmark}: {percent(row.estimate.mean)} after {row.version} iterations, "
        f"{gain.text(points)} points against version {row.baseline}; the 95 % interval {_zero_clause(gain)}."
        for row in rows
        if (gain := row.difference)
    ]
    if not rows and record.is_run and not mixed_verdicts(record.summary):
        sentences.append("No two weights versions have been evaluated on the same problems.")
    if means and (gain := means[-1].difference):
        sentences.append(
            f"Mean over benchmarks: {percent(means[-1].estimate.mean)} after {means[-1].version} iterations, "
            f"{gain.text(points)} points against version {means[-1].baseline}."
        )
    return sentences


def _zero_clause(gain: IntervalEstimate) -> str:
    return f"{'excludes' if gain.excludes_zero else 'includes'} zero"


def last_few_answers(summary: RunSummary) -> str | None:
    """The warning of the last iteration, or else evaluation, where nearly no trace has an answer."""
    asked = [(m.answered_share, f"iteration {m.iteration}") for m in summary.iterations[-1:]]
    asked += [(e.answered_share, f"version {e.version} on {e.benchmark}") for e in summary.evaluations[-1:]]
    return next(filter(None, (few_answers(*one) for one in asked)), None)


def lost_verdicts(summary: RunSummary) -> list[str]:
    lost = [several_unjudged(sum(m.unjudged for m in summary.iterations), "all iterations", "they are left out")]
    lost += [
        several_unjudged(e.unjudged, f"version {e.version} on {e.benchmark}", "that counts 0")
        for e in summary.evaluations
    ]
    return [*filter(None, lost)]


def mixed_verdicts(summary: RunSummary) -> list[str]:
    """One sentence for each benchmark whose versions several graders have judged."""
    sentences = (
        several_graders(graders_of(*versions), f"version {span_text(e.version for e in versions)} on {benchmark}")
        for benchmark, versions in group_by_benchmark(summary.evaluations).items()
    )
    return [warning for warning in sentences if warning is not None]


# -- side by side: a column each, compared with the first; the runs of an arm are one


UNCORRECTED = (
    "Differences are paired by problem, with 95 % intervals that are not corrected for several comparisons: mrt-hpc "
    "compare corrects them, and says what the number of problems and of seeds can show. They vary over problems, and "
    "those of an arm over seeds too. A dash stands where the problems or the graders are not "
    "the same, or where an evaluation is missing."
)


def _arms(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """A run that stands alone is an arm of its own."""
    arms: dict[str, list[RunRecord]] = {}
    for record in records:
        arms.setdefault(record.curve_name, []).append(record)
    return arms


def _comparisons(records: Sequence[RunRecord]) -> tuple[Table, ...]:
    if len(arms := _arms(records)) < 2:
        return ()
    against = f"to {next(iter(arms))}, points"
    return (
        _accuracies(arms, any(record.is_run for record in records)),
        _differences(f"Difference of pass@1 {against}", arms, _rewards),
        _differences(f"Difference of normalised regret {against}", arms, _regrets_by_budget),
    )


def _accuracies(arms: Mapping[str, Sequence[RunRecord]], trained: bool) -> Table:
    names = _benchmarks([run for runs in arms.values() for run in runs])
    rows = tuple((name, *(_accuracy_text(runs, name) for runs in arms.values())) for name in names)
    of_last = " of the version that the recipe evaluates last" if trained else ""
    return Table(f"pass@1{of_last}, with 95 % intervals", (BENCHMARK, *map(Column, arms)), rows)


def _accuracy_text(runs: Sequence[RunRecord], benchmark: str) -> str:
    whole = _whole(runs, [benchmark])
    if len(runs) == 1:
        return f"{accuracy_of(_last(runs[0])[benchmark]).text(percent)}{_at(whole)}" if whole else DASH
    share = _share(whole, benchmark)
    return DASH if share is None else f"{share.text(percent)}, {plural(len(whole), 'run')}{_at(whole)}"


def _at(runs: Sequence[RunRecord]) -> str:
    versions = sorted({run.last for run in runs if run.is_run and run.last is not None})
    return f", version{'s' if len(versions) > 1 else ''} {span_text(versions)}" if versions else ""


def _benchmarks(records: Sequence[RunRecord]) -> list[str]:
    return list(dict.fromkeys(e.benchmark for record in records for e in record.summary.evaluations))


def _last(record: RunRecord) -> dict[str, EvaluationSummary]:
    """The evaluations of the version that stands for a run beside others; of a model all."""
    return {e.benchmark: e for e in record.summary.evaluations if e.version == record.last}


def _whole(runs: Sequence[RunRecord], benchmarks: Sequence[str]) -> list[RunRecord]:
    """A run must be evaluated on all of these benchmarks: no other version takes its place."""
    return [run for run in runs if all(name in _last(run) for name in benchmarks)]


def _share(whole: Sequence[RunRecord], benchmark: str) -> IntervalEstimate | None:
    """The share over seeds and problems; None where the runs cannot be compared."""
    shared = _shared_values(whole, [benchmark], _rewards)
    return crossed_share(shared[benchmark]) if shared else None


def _outcomes_of_arms(records: Sequence[RunRecord]) -> list[str]:
    return [
        f"{arm}: {share.text(percent)} on {name}, the mean of {plural(len(whole), 'run')}{_at(whole)}, and its 95 % "
        "interval over seeds and problems."
        for arm, runs in _arms(records).items()
        if len(runs) > 1
        for name in _benchmarks(runs)
        for whole in [_whole(runs, [name])]
        if (share := _share(whole, name)) is not None
    ]


def _outcomes_against_first(records: Sequence[RunRecord]) -> list[str]:
    """Arms must have the same problems as the first."""
    (first, runs), *others = _arms(records).items()
    sentences = []
    for name, other in others:
        names = [one for one in _benchmarks(runs) if _comparable(runs, other, [one], _rewards)]
        if shared := _comparable(runs, other, names, _rewards):
            where = names[0] if len(names) == 1 else f"the mean over {len(names)} benchmarks"
            gain = crossed_gain([*shared.values()]).interval
            sentences.append(
                f"{name}: {gain.text(points)} points of pass@1 against {first} on {where}; the 95 % interval "
                f"{_zero_clause(gain)}."
            )
    return sentences


def _not_compared(records: Sequence[RunRecord]) -> Iterator[str]:
    for name in _benchmarks(records) if len(records) > 1 else ():
        whole = _whole(records, [name])
        for record in records:
            if record not in whole:
                last = f"version {record.last}, the last one that its recipe evaluates," if record.is_run else "it"
                yield f"{record.name} is not compared on {name}: {last} has no evaluation there."
        what = f"{', '.join(record.name for record in whole)} on {name}"
        if warning := several_graders(graders_of(*(_last(record)[name] for record in whole)), what):
            yield f"Several graders: {warning}."


Measured = Callable[[EvaluationSummary], dict[str, Means]]


def _rewards(evaluation: EvaluationSummary) -> dict[str, Means]:
    return {evaluation.benchmark: evaluation.per_problem}


def _regrets_by_budget(evaluation: EvaluationSummary) -> dict[str, Means]:
    return {
        f"{evaluation.benchmark}, {budget:,} {evaluation.regret_tokens} tokens": by_problem
        for budget, by_problem in evaluation.regret.items()
    }


def _differences(caption: str, arms: Mapping[str, Sequence[RunRecord]], measured: Measured) -> Table:
    """The table has a row for each name that the first arm shares with another one."""
    first, *others = arms.values()
    pairs = [
        {name: pair for one in _benchmarks(first) for name, pair in _comparable(first, other, [one], measured).items()}
        for other in others
    ]
    names = dict.fromkeys(name for shared in pairs for name in shared)
    rows = tuple(
        (name, *(crossed_gain([shared[name]]).interval.text(points) if name in shared else DASH for shared in pairs))
        for name in names
    )
    return Table(caption, (BENCHMARK, *map(Column, [*arms][1:])), rows, UNCORRECTED)


def _comparable(
    first: Sequence[RunRecord], other: Sequence[RunRecord], benchmarks: Sequence[str], measured: Measured
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """[S, P] each: the values of both arms by name, from runs that have all of these benchmarks; empty where an arm has
    none.
    """
    ours, theirs = _whole(first, benchmarks), _whole(other, benchmarks)
    if not (ours and theirs):
        return {}
    shared = _shared_values([*ours, *theirs], benchmarks, measured)
    return {name: (values_SP[: len(ours)], values_SP[len(ours) :]) for name, values_SP in shared.items()}


def _shared_values(whole: Sequence[RunRecord], benchmarks: Sequence[str], measured: Measured) -> dict[str, FloatArray]:
    """[S, P] the values of each name that all runs have on the same problems, judged by one grader."""
    values: dict[str, FloatArray] = {}
    for benchmark in benchmarks if whole else ():
        evaluations = [_last(run)[benchmark] for run in whole]
        first, *others = map(measured, evaluations)
        for name, means in () if have_several_graders(evaluations) else first.items():
            if means and all(other.get(name, {}).keys() == means.keys() for other in others):
                values[name] = np.array([[of_run[name][p] for p in means] for of_run in (first, *others)])
    return values


# -- one below the other


def _some_and_all(
    some: str, every: str, columns: tuple[Column, ...], rows: Iterable[Row], note: str = ""
) -> tuple[Table, ...]:
    """A table of the rows that matter most, and where there are more, one of all: ``report.md`` has this one alone."""
    cells = [*rows]
    first, whole = tuple(row for shown, row in cells if shown), tuple(row for _, row in cells)
    if len(first) == len(whole):
        return (Table(some, columns, whole, note),)
    return (Table(some, columns, first, note, page_only=True), Table(every, columns, whole, note, folded=True))


def _last_and_all(
    records: Sequence[RunRecord], caption: str, columns: tuple[Column, ...], rows: Iterable[Row], note: str = ""
) -> tuple[Table, ...]:
    of_last = " of the last evaluated version" if any(record.is_run for record in records) else ""
    return _some_and_all(f"{caption}{of_last}", f"{caption} of all evaluated versions", columns, rows, note)


def _of_versions(
    records: Sequence[RunRecord],
    caption: str,
    columns: tuple[Column, ...],
    cells: Callable[[EvaluationSummary], Iterable[tuple[str, ...]]],
    note: str = "",
) -> tuple[Table, ...]:
    """Rows of each evaluated version, the last one of a benchmark first; ``cells`` are those after its name."""
    rows = (
        (evaluation is versions[-1], (*_where(record, evaluation), *more))
        for record in records
        for versions in group_by_benchmark(record.summary.evaluations).values()
        for evaluation in versions
        for more in cells(evaluation)
    )
    return _last_and_all(records, caption, (BENCHMARK, RUN, VERSION, *columns), rows, note)


def _where(record: RunRecord, evaluation: EvaluationSummary) -> tuple[str, str, str]:
    return evaluation.benchmark, record.name, _version(record, evaluation.version)


def _version(record: RunRecord, number: int) -> str:
    """A model of an evaluation on its own has its number in its name, if any."""
    return str(number) if record.is_run else DASH


def _evaluations(records: Sequence[RunRecord]) -> tuple[Table, ...]:
    names = ("problems × samples", "pass@1", "95 % interval")
    columns = (BENCHMARK, RUN, VERSION, *map(Column, names), GAIN, *map(Column, ("tokens", "cut off", "answered")))
    trained = any(record.is_run for record in records)
    note = (
        "pass@1 is the mean over problems of the mean reward of their samples. Its interval varies over problems "
        "(Wilson's, with an effective number of problems)"
    ) + (
        "; that of the gain is a t interval over the gains of the problems, so it is narrower than the two intervals "
        "suggest."
        if trained
        else "."
    )
    some = "First and last evaluated version" if trained else "Each benchmark"
    return _some_and_all(some, "All evaluated versions", columns, _evaluation_rows(records), note)


def _evaluation_rows(records: Sequence[RunRecord]) -> Iterator[Row]:
    for record in records:
        groups = group_by_benchmark(record.summary.evaluations)
        for row in evaluation_rows(record.summary.evaluations):
            evaluation, accuracy = row.evaluation, row.estimate
            versions = groups[evaluation.benchmark]
            cells = (
                *_where(record, evaluation), f"{evaluation.problems} × {evaluation.samples}", percent(accuracy.mean),
                f"{percent(accuracy.low)} to {percent(accuracy.high)}", _difference(row),
                number(evaluation.tokens_per_rollout), percent(evaluation.truncated_share),
                percent(evaluation.answered_share),
            )  # fmt: skip
            yield evaluation.version in (versions[0].version, versions[-1].version), cells


def _difference(row: VersionRow) -> str:
    return row.difference.text(points) if row.difference else DASH


def _means(records: Sequence[RunRecord]) -> tuple[Table, ...]:
    rows = [
        (
            mean in (means[0], means[-1]),
            (record.name, _version(record, mean.version), mean.estimate.text(percent), _difference(mean)),
        )
        for record in records
        for means in [mean_rows(record.summary.evaluations)]
        for mean in means
    ]
    columns = (RUN, VERSION, Column("pass@1 (95 % interval)"), GAIN)
    return _some_and_all("Mean over benchmarks", "Mean over benchmarks of all evaluated versions", columns, rows)


def _sample_tables(records: Sequence[RunRecord]) -> tuple[Table, ...]:
    def cells(evaluation: EvaluationSummary) -> Iterator[tuple[str, ...]]:
        votes = majority_estimates(evaluation)
        for k, estimate in pass_estimates(evaluation).items():
            yield count(k), estimate.text(percent), votes[k].text(percent) if k in votes else DASH

    columns = tuple(map(Column, ("samples k", "pass@k (95 % interval)", "maj@k (95 % interval)")))
    note = (
        "pass@k is the chance that one of k samples is right, unbiased. maj@k is the chance that a vote of k samples "
        f"is right: {RULE.removeprefix('votes: ')}."
    )
    return _of_versions(records, "pass@k and maj@k", columns, cells, note)


def _stages(records: Sequence[RunRecord]) -> tuple[Table, ...]:
    """The table has a row for each round or budget, where a way of evaluating has several."""

    def cells(evaluation: EvaluationSummary) -> list[tuple[str, ...]]:
        return [(stage, accuracy.text(percent)) for stage, accuracy in stage_estimates(evaluation).items()]

    columns = (Column("stage", numeric=False), Column("accuracy (95 % interval)"))
    note = "The last stage of a benchmark is its result; all other tables and figures show that one alone."
    return _of_versions(records, "Accuracy by stage", columns, cells, note)


def _quality(records: Sequence[RunRecord]) -> tuple[Table, ...]:
    def cells(evaluation: EvaluationSummary) -> list[tuple[str, ...]]:
        return [(name.replace("_", " "), percent(share)) for name, share in evaluation.quality.items()]

    columns = (Column("quality", numeric=False), Column("share of the traces"))
    return _of_versions(records, "Quality of the traces", columns, cells)


def _regrets(records: Sequence[RunRecord]) -> tuple[Table, ...]:
    regrets = [(record, row) for record in records for row in regret_rows(record.summary.evaluations)]
    lasts = {(record.name, row.evaluation.benchmark, row.budget): row for record, row in regrets}
    rows = (
        (
            lasts[record.name, row.evaluation.benchmark, row.budget] is row,
            (
                row.evaluation.benchmark, record.name, count(row.budget), _version(record, row.version),
                row.estimate.text("{:.3f}".format), _difference(row), row.evaluation.regret_tokens,
            ),
        )
        for record, row in regrets
    )  # fmt: skip
    names = ("budget, tokens", "version", "normalised regret (95 % interval)")
    note = (
        "Normalised regret is how far the value of the prefixes stays behind an oracle's, 1 at every token, on average "
        "over the budget: lower is better. Tokens counted are the sampled ones of the trace, or all: prompt, prefix, "
        "the prover's text and its answer."
    )
    columns = (BENCHMARK, RUN, *map(Column, names), CHANGE, Column("tokens counted", numeric=False))
    return _last_and_all(records, "Normalised regret", columns, rows, note)
