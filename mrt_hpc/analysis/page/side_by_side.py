"""Tables that put runs, or models of an evaluation on its own, side by side: a column each, compared with the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrt_hpc.analysis.estimates import accuracy_of
from mrt_hpc.analysis.intervals import mean_paired_difference
from mrt_hpc.analysis.number_formats import DASH, interval, share_text
from mrt_hpc.analysis.page.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mrt_hpc.analysis.intervals import Means
    from mrt_hpc.analysis.measures import EvaluationSummary
    from mrt_hpc.analysis.page.content import RunRecord

UNCORRECTED = (
    "Differences are paired by problem, with 95 % intervals over problems that are not corrected for several "
    "comparisons: mrt-hpc compare corrects them, and says what the number of problems can show. A dash stands where "
    "the problems are not the same."
)


def of_last(records: Sequence[RunRecord]) -> str:
    """Words that end a caption: which version of a run is meant; empty where there are models alone."""
    return " of the last evaluated version" if any(record.trained for record in records) else ""


def last_by_benchmark(record: RunRecord) -> dict[str, EvaluationSummary]:
    """Return the last evaluation on each benchmark; of a model, the only one."""
    return {one.benchmark: one for one in record.summary.evaluations}  # ascending in version, so the last one stays


def comparisons(records: Sequence[RunRecord]) -> tuple[Table, ...]:
    """Accuracy side by side, and the differences of accuracy and regret to the first run or model; none for one."""
    if len(records) < 2:
        return ()
    against = f"to {records[0].name}, points"
    return (
        _accuracies(records),
        _differences(f"Difference of pass@1 {against}", records, _rewards),
        _differences(f"Difference of normalised regret {against}", records, _regrets),
    )


def _accuracies(records: Sequence[RunRecord]) -> Table:
    """A row each benchmark."""
    lasts = [last_by_benchmark(record) for record in records]
    rows = tuple(
        (name, *(_accuracy(record, found.get(name)) for record, found in zip(records, lasts, strict=True)))
        for name in _shared_order(lasts)
    )
    columns = (Column("benchmark"), *(Column(record.name) for record in records))
    return Table(f"pass@1{of_last(records)}, with 95 % intervals", columns, rows)


def _accuracy(record: RunRecord, one: EvaluationSummary | None) -> str:
    if one is None:
        return DASH
    version = f", version {one.version}" if record.trained else ""
    return f"{share_text(accuracy_of(one))}{version}"


def outcomes_against_first(records: Sequence[RunRecord]) -> list[str]:
    """Say of each run or model but the first one how its accuracy differs, where both have the same problems."""
    told = []
    for record in records[1:]:
        shared = _comparable(_rewards(records[0]), _rewards(record))
        if shared:
            where = next(iter(shared)) if len(shared) == 1 else f"the mean over {len(shared)} benchmarks"
            gain = mean_paired_difference([*shared.values()])
            told.append(
                f"{record.name}: {interval(gain)} points of pass@1 against {records[0].name} on {where}; the 95 % "
                f"interval {'excludes' if gain.excludes_zero else 'includes'} zero."
            )
    return told


def _rewards(record: RunRecord) -> dict[str, Means]:
    """Return the mean reward of each problem, by benchmark."""
    return {name: one.per_problem for name, one in last_by_benchmark(record).items()}


def _regrets(record: RunRecord) -> dict[str, Means]:
    """Return the regret of each problem, by benchmark and budget in words."""
    return {
        f"{name}, {budget:,} {one.regret_tokens} tokens": by_problem
        for name, one in last_by_benchmark(record).items()
        for budget, by_problem in one.regret.items()
    }


def _differences(
    caption: str, records: Sequence[RunRecord], measured: Callable[[RunRecord], dict[str, Means]]
) -> Table:
    """A row for each name that the first one has in common with another one."""
    first = measured(records[0])
    pairs = [_comparable(first, measured(record)) for record in records[1:]]
    names = [name for name in first if any(name in shared for shared in pairs)]
    rows = tuple((name, *(_gain([shared[name]] if name in shared else []) for shared in pairs)) for name in names)
    columns = (Column("benchmark"), *(Column(record.name) for record in records[1:]))
    return Table(caption, columns, rows, UNCORRECTED)


def _comparable(first: Mapping[str, Means], other: Mapping[str, Means]) -> dict[str, tuple[Means, Means]]:
    """Return the pairs of one name on the same problems."""
    return {
        name: (means, other[name])
        for name, means in first.items()
        if means and name in other and means.keys() == other[name].keys()
    }


def _gain(pairs: Sequence[tuple[Means, Means]]) -> str:
    return interval(mean_paired_difference(pairs)) if pairs else DASH


def _shared_order(lasts: Sequence[Mapping[str, EvaluationSummary]]) -> list[str]:
    return list(dict.fromkeys(name for found in lasts for name in found))
