"""``mrt-hpc compare`` and ``regrade``: tables of differences between models, and of verdicts that changed."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from mrt_hpc.analysis.comparing import Comparison, compare, csv_of, notes, row_of
from mrt_hpc.analysis.intervals import IntervalEstimate
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


def print_comparison(
    what: tuple[str, ...],
    typed_arms: tuple[str, ...],
    *,
    benchmarks: tuple[str, ...],
    measures: tuple[str, ...],
    difference: float,
    csv: Path | None,
    as_json: bool,
    published: bool,
    trust: bool,
) -> None:
    """Compare models and arms with the first of them, and print what that shows.

    Args:
        what: runs and evaluations, see ``named_models``.
        typed_arms: ``NAME=RUN,RUN,...``; compared with the models that are named alone.
        benchmarks: empty for all that the models share.
        measures: by their names.
        difference: the one to be shown, in percentage points.
        csv: where the numbers are also written.
        as_json: whether they are printed as JSON.
        published: whether the published results are printed beside.
        trust: whether code of the runs is imported also where another user can change it.

    Raises:
        UserError: a model or a benchmark is not there, or there is nothing to compare.
    """
    measured = [measure_of(name) for name in measures]
    named = compared_arms(what, typed_arms, trust=trust)
    chosen = chosen_benchmarks([model for arm in named for model in arm.models], benchmarks)
    arms = read_arms(named, chosen, graded=any(measure.is_graded for measure in measured))
    comparisons = compare(arms[0], arms[1:], measured)
    rows = [row_of(comparison, difference) for comparison in comparisons]
    remarks = [*notes(comparisons, arms), *remarks_on(named, chosen)]
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        write_text(csv, csv_of(rows))
    if as_json:
        tables = [{"benchmarks": BENCHMARKS, **asdict(table)} for table in TABLES]
        beside = {"published": tables} if published else {}
        click.echo(json.dumps({"comparisons": rows, "notes": remarks, **beside}, indent=2, allow_nan=False))
        return
    _print_comparisons(comparisons, rows)
    print_notes(remarks)
    if published:
        _print_published(comparisons)


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


def _print_comparisons(comparisons: Sequence[Comparison], rows: Sequence[dict[str, Any]]) -> None:
    columns = ("benchmark", "measure", "problems", "first", "second", "difference (95 %)", "p")
    table = table_of("shares in per cent, differences in percentage points", *columns)
    for one in comparisons:
        p = f"{one.corrected_p:.3g}"
        table.add_row(one.benchmark, one.measure.name, str(one.problems), *_numbers(one), p)
    console = console_of(sys.stdout)
    console.print(table)
    for row in rows:
        console.print(f"[bold]{row['benchmark']}, {row['measure']}:[/] ", end="", highlight=False)
        console.print("; ".join(filter(None, (row["verdict"], row["requirement"]))), markup=False, highlight=False)


def _numbers(comparison: Comparison) -> Iterator[str]:
    """Both sides with their names and intervals, and the difference."""
    factor, digits = (100.0, 1) if comparison.measure.is_share else (1.0, 0)

    def with_ends(mean: float, interval: IntervalEstimate | None, scale: float = 1.0, sign: str = "") -> str:
        ends = () if interval is None else (scale * interval.low, scale * interval.high)
        estimate, *texts = (f"{x * factor:{sign},.{digits}f}" for x in (mean, *ends))
        return f"{estimate} ({' to '.join(texts)})" if ends and all(map(isfinite, ends)) else estimate

    for side in comparison.sides:
        name = side.name if side.runs == 1 else f"{side.name}, {side.runs} seeds"
        yield f"{name}: {with_ends(side.mean, side.interval)}"
    gain, scale = comparison.gain.interval, comparison.scale
    yield with_ends(gain.mean * scale, gain, scale, "+")


ACCURACIES = ("model", *BENCHMARKS, "mean")
"""The columns of published results, and of one's own below them."""


def _print_published(comparisons: Sequence[Comparison]) -> None:
    """The published results, and one's own pass@1 below them."""
    console = console_of(sys.stdout)
    for table in TABLES:
        shown = table_of(f"published: {table.conditions}", *ACCURACIES)
        for result in table.results:
            shown.add_row(result.model, *(f"{share:.{table.digits}f}" for share in (*result.accuracy, result.mean)))
        console.print(shown)
    own = own_accuracies(comparisons)
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


def own_accuracies(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    """pass@1 by model and benchmark."""
    accuracies: dict[str, dict[str, float]] = {}
    for one in comparisons:
        for side in one.sides if one.measure.name == "pass@1" else ():
            accuracies.setdefault(side.name, {})[one.benchmark] = side.mean
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


def _table(regraded: "Regraded") -> Table:
    columns = ("problem", "sample", "gold", "answer before", "answer now", "reward before", "reward now")
    table = table_of("changed verdicts", *columns)
    for pair in regraded.changed:
        gold = gold_text(regraded.golds[pair[0].problem_id])
        answers, rewards = [verdict.answer or "none" for verdict in pair], [f"{verdict.reward:g}" for verdict in pair]
        table.add_row(pair[0].problem_id, str(pair[0].sample), gold, *answers, *rewards)
    return table
