"""``mrt-hpc compare`` and ``regrade``: tables of differences between models, and of verdicts that changed."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mrt_hpc.analysis.comparing import compare
from mrt_hpc.analysis.comparison_table import ComparisonRow, csv_of, notes, row_of
from mrt_hpc.analysis.named_models import (
    NamedArm,
    NamedModel,
    chosen_benchmarks,
    named_arms,
    named_models,
    read_arms,
    remarks_on,
)
from mrt_hpc.analysis.number_formats import percent
from mrt_hpc.analysis.paper_results import BENCHMARKS, TABLES
from mrt_hpc.analysis.problem_measures import measure_of
from mrt_hpc.cli.options import console_of, print_notes, table_of
from mrt_hpc.cli.status import open_run
from mrt_hpc.errors import UserError, word
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.family import arms_of
from mrt_hpc.run.layout import FIRST, LAST
from mrt_hpc.run.records import gold_text

if TYPE_CHECKING:
    from mrt_hpc.evaluate.regrade import Regraded


@dataclass(frozen=True)
class ComparisonOptions:
    """What the user wants to see."""

    arms: tuple[str, ...]
    """``NAME=RUN,RUN,...``; compared with the models that are named alone."""
    benchmarks: tuple[str, ...]
    """Empty for all that the models share."""
    measures: tuple[str, ...]
    points: float
    """The difference to be shown."""
    csv: Path | None
    as_json: bool
    published: bool
    trust: bool
    """Whether code of the runs is imported also where another user can change it."""


def print_comparison(what: tuple[str, ...], asked: ComparisonOptions) -> None:
    """Compare models and arms with the first of them, and print what that shows.

    Args:
        what: runs and evaluations, see ``named_models``.
        asked: what is compared, and how it is shown.

    Raises:
        UserError: a model or a benchmark is not there, or there is nothing to compare.
    """
    measures = [measure_of(name) for name in asked.measures]
    named = compared_arms(what, asked.arms, trust=asked.trust)
    benchmarks = chosen_benchmarks([model for arm in named for model in arm.models], asked.benchmarks)
    arms = read_arms(named, benchmarks, graded=any(measure.is_graded for measure in measures))
    comparisons = compare(arms[0], arms[1:], measures)
    rows = [row_of(comparison, asked.points) for comparison in comparisons]
    remarks = [*notes(comparisons, arms), *remarks_on(named, benchmarks)]
    if asked.csv is not None:
        asked.csv.parent.mkdir(parents=True, exist_ok=True)
        write_text(asked.csv, csv_of(rows))
    if asked.as_json:
        click.echo(as_json(rows, remarks, asked.published))
        return
    _print_rows(rows)
    print_notes(remarks)
    if asked.published:
        _print_published(rows)


def compared_arms(what: Sequence[str], arms: Sequence[str], *, trust: bool) -> list[NamedArm]:
    """The models that the user named, each an arm of one run, and the arms, those of families too; a single run without
    a version stands for its first and its last.

    Raises:
        UserError: there are fewer than two.
    """
    alone, of_families = arms_of(what)
    models = named_models(alone, trust=trust)
    arms = (*of_families, *arms)
    named = [*(NamedArm((model,)) for model in models), *named_arms(arms, trust=trust)]
    if len(named) > 1:
        return named
    if len(models) == 1 and models[0].version is None:
        return [NamedArm((replace(models[0], version=version),)) for version in (FIRST, LAST)]
    if models:
        one, other = shlex.quote(alone[0]), _another(models[0])
    elif what:
        one, other = shlex.join(what), "FAMILY"
    else:
        one, other = f"--arm {shlex.quote(arms[0])}", "--arm NAME=RUN,RUN"
    raise UserError("a comparison needs two models or arms", value=one, advice=f"mrt-hpc compare {one} {other}")


def _another(model: NamedModel) -> str:
    """A model that this one may be compared with, as the user types it."""
    if model.run.models:
        return "RUN"
    return f"{model.run.typed}@{LAST if model.version in (FIRST, 0) else FIRST}"


# -- how a comparison is shown


def as_json(rows: Sequence[ComparisonRow], remarks: Sequence[str], with_published: bool) -> str:
    """Everything as one JSON object."""
    shown: dict[str, object] = {"comparisons": [asdict(row) for row in rows], "notes": list(remarks)}
    if with_published:
        shown["published"] = [{"benchmarks": BENCHMARKS, **asdict(table)} for table in TABLES]
    return json.dumps(shown, indent=2, allow_nan=False)


def _print_rows(rows: Sequence[ComparisonRow]) -> None:
    columns = ("benchmark", "measure", "problems", "first", "second", "difference (95 %)", "p")
    table = table_of("shares in per cent, differences in percentage points", *columns)
    for row in rows:
        table.add_row(row.benchmark, row.measure, str(row.problems), *_numbers(row), f"{row.corrected_p:.3g}")
    console = console_of(sys.stdout)
    console.print(table)
    for row in rows:
        console.print(f"[bold]{row.benchmark}, {row.measure}:[/] ", end="", highlight=False)
        console.print("; ".join(filter(None, (row.verdict, row.requirement))), markup=False, highlight=False)


def _numbers(row: ComparisonRow) -> tuple[str, str, str]:
    """Both sides with their names and intervals, and the difference."""
    shares = row.measure != "tokens"
    factor, digits = (100.0, 1) if shares else (1.0, 0)

    def with_interval(mean: float, low: float | None, high: float | None, sign: str = "") -> str:
        estimate, *ends = ("" if x is None else f"{x * factor:{sign},.{digits}f}" for x in (mean, low, high))
        return f"{estimate} ({' to '.join(ends)})" if all(ends) else estimate

    return (
        f"{_name(row.first, row.first_runs)}: {with_interval(row.first_mean, row.first_low, row.first_high)}",
        f"{_name(row.second, row.second_runs)}: {with_interval(row.second_mean, row.second_low, row.second_high)}",
        with_interval(row.difference, row.difference_low, row.difference_high, "+"),
    )


def _name(arm: str, runs: int) -> str:
    return arm if runs == 1 else f"{arm}, {runs} seeds"


ACCURACIES = ("model", *BENCHMARKS, "mean")
"""The columns of published results, and of one's own below them."""


def _print_published(rows: Sequence[ComparisonRow]) -> None:
    """The published results, and one's own pass@1 below them."""
    console = console_of(sys.stdout)
    for table in TABLES:
        shown = table_of(f"published: {table.conditions}", *ACCURACIES)
        for result in table.results:
            shown.add_row(result.model, *(f"{share:.{table.digits}f}" for share in (*result.accuracy, result.mean)))
        console.print(shown)
    own = own_accuracies(rows)
    if not own:
        console.print("For your own results beside them, add --measure pass@1.", highlight=False)
        return
    shown = table_of("yours: pass@1", *ACCURACIES)
    for name, accuracies in own.items():
        shown.add_row(name, *_own_cells(accuracies))
    console.print(shown)


def _own_cells(accuracies: Mapping[str, float]) -> list[str]:
    """pass@1 on each benchmark, and their mean where all are there, per cent."""
    cells = [accuracies.get(benchmark) for benchmark in BENCHMARKS]
    known = [share for share in cells if share is not None]
    mean = sum(known) / len(known) if len(known) == len(cells) else None
    return ["–" if share is None else f"{100 * share:.2f}" for share in (*cells, mean)]


def own_accuracies(rows: Sequence[ComparisonRow]) -> dict[str, dict[str, float]]:
    """pass@1 by model and benchmark."""
    accuracies: dict[str, dict[str, float]] = {}
    for row in (row for row in rows if row.measure == "pass@1"):
        accuracies.setdefault(row.first, {})[row.benchmark] = row.first_mean
        accuracies.setdefault(row.second, {})[row.benchmark] = row.second_mean
    return accuracies


# -- regrade


def regrade(runs: Sequence[Path]) -> None:
    """Judge the samples of runs' evaluations again, and print the verdicts that changed.

    Raises:
        UserError: a directory is no run, or its tasks are queued or running.
    """
    from mrt_hpc.evaluate.regrade import regrade_run  # it needs graders, which a light installation lacks

    console = console_of(sys.stdout)
    for run in runs:
        layout, _ = open_run(run)
        for unit in regrade_run(layout, click.echo):
            before, now = (percent(accuracy) for accuracy in unit.accuracy)
            click.echo(
                f"version {unit.version} on {unit.benchmark}: {len(unit.changed)} of {unit.samples} verdicts changed, "
                f"pass@1 {before} -> {now}"
            )
            if unit.changed:
                console.print(_table(unit))
        click.echo(f"mrt-hpc report {word(run)} writes the report with these verdicts")


def _table(regraded: Regraded) -> Table:
    columns = ("problem", "sample", "gold", "answer before", "answer now", "reward before", "reward now")
    table = table_of("changed verdicts", *columns)
    for pair in regraded.changed:
        gold = gold_text(regraded.golds[pair[0].problem_id])
        answers, rewards = [verdict.answer or "none" for verdict in pair], [f"{verdict.reward:g}" for verdict in pair]
        table.add_row(pair[0].problem_id, str(pair[0].sample), gold, *answers, *rewards)
    return table
