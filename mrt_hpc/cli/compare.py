"""``mrt-hpc compare`` and ``regrade``: tables of differences between models, and of verdicts that changed."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from mrt_hpc.analysis.comparing import Comparison, compare_named
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.analysis.model_samples import BENCHMARKS
from mrt_hpc.analysis.number_formats import csv_text, percent
from mrt_hpc.cli.status import open_run
from mrt_hpc.cli.terminal import Terminal, echo, echo_json, print_notes, table_of
from mrt_hpc.errors import Advice
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.records import gold_text

if TYPE_CHECKING:
    from mrt_hpc.evaluate.regrade import Regraded


def print_comparison(
    what: Sequence[str], arms: Sequence[str], *, csv: Path | None, as_json: bool, published: bool, **asked: Any
) -> None:
    """Compare models and arms with the first of them, and print the result.

    Args:
        what: runs and evaluations, see ``named_models``.
        arms: ``NAME=RUN,RUN,...``; compared with the models named alone.
        csv: where the numbers are also written.
        asked: further arguments of :func:`mrt_hpc.analysis.comparing.compare_named`.
    """
    found = compare_named(what, arms, **asked)
    comparisons, rows = found.comparisons, found.rows
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        write_text(csv, csv_text(rows[0], (row.values() for row in rows)))
    if as_json:
        tables = [{"benchmarks": BENCHMARKS, **table} for table in published_tables()]
        beside = {"published": tables} if published else {}
        echo_json({"comparisons": rows, "notes": found.notes, **beside})
        return
    _print_comparisons(comparisons, rows)
    print_notes(found.notes)
    if published:
        _print_published(comparisons)


# -- how a comparison is shown


def _print_comparisons(comparisons: Sequence[Comparison], rows: Sequence[dict[str, Any]]) -> None:
    columns = ("benchmark", "measure", "problems", "first", "second", "difference (95 %)", "p")
    table = table_of("shares in per cent, differences in percentage points", *columns)
    for one in comparisons:
        table.add_row(one.benchmark, one.measure.name, str(one.problems), *_numbers(one), f"{one.corrected_p:.3g}")
    console = Terminal(sys.stdout)
    console.print(table)
    for row in rows:
        sentence = "; ".join(filter(None, (row["verdict"], row["requirement"])))
        console.print(Text.assemble((f"{row['benchmark']}, {row['measure']}: ", "bold"), sentence))


def _numbers(comparison: Comparison) -> Iterator[str]:
    factor, digits = (100.0, 1) if comparison.measure.is_share else (1.0, 0)

    def ends_text(mean: float, interval: IntervalEstimate | None, scale: float = 1.0, sign: str = "") -> str:
        ends = () if interval is None else (scale * interval.low, scale * interval.high)
        estimate, *texts = (f"{x * factor:{sign},.{digits}f}" for x in (mean, *ends))
        return f"{estimate} ({' to '.join(texts)})" if ends and all(map(isfinite, ends)) else estimate

    for side in comparison.sides:
        name = side.name if side.runs == 1 else f"{side.name}, {side.runs} seeds"
        yield f"{name}: {ends_text(side.mean, side.interval)}"
    gain, scale = comparison.gain.interval, comparison.scale
    yield ends_text(gain.mean * scale, gain, scale, "+")


ACCURACIES = ("model", *BENCHMARKS, "mean")
"""Of published results, and of one's own below them."""


def published_tables() -> list[dict[str, Any]]:
    """Published results of MRT: pass@1 in per cent on each of ``BENCHMARKS``, with at most 16,384 tokens, and the mean
    as published, whose last digit may differ from that of the rounded numbers.

    Source: Table 1 of the paper, and the authors' repository and model cards (CMU-AIRe/MRT) for their later rerun.
    """
    read: list[dict[str, Any]] = json.loads(
        resources.files("mrt_hpc.analysis").joinpath("published_results.json").read_text(encoding="utf-8")
    )
    return read


def _print_published(comparisons: Sequence[Comparison]) -> None:
    console = Terminal(sys.stdout)
    for table in published_tables():
        shown = table_of(f"published: {table['conditions']}", *ACCURACIES)
        for result in table["results"]:
            shares = (*result["accuracy"], result["mean"])
            shown.add_row(result["model"], *(f"{share:.{table['digits']}f}" for share in shares))
        console.print(shown)
    own: dict[str, dict[str, float]] = {}
    for one in (one for one in comparisons if one.measure.name == "pass@1"):
        for side in one.sides:
            own.setdefault(side.name, {})[one.benchmark] = side.mean
    shown = table_of("yours: pass@1", *ACCURACIES)
    for name, accuracies in own.items():
        shown.add_row(name, *_own_cells(accuracies))
    console.print(shown if own else "For your own results beside them, add --measure pass@1.")


def _own_cells(accuracies: Mapping[str, float]) -> list[str]:
    """pass@1 on each benchmark, and their mean where all are there, per cent."""
    known = [accuracies[benchmark] for benchmark in BENCHMARKS if benchmark in accuracies]
    mean = sum(known) / len(known) if len(known) == len(BENCHMARKS) else None
    cells = (*map(accuracies.get, BENCHMARKS), mean)
    return ["–" if share is None else f"{100 * share:.2f}" for share in cells]


# -- regrade


def regrade(runs: Sequence[Path]) -> None:
    """Tasks of the runs may not be queued or running."""
    from mrt_hpc.evaluate.regrade import regrade_run  # it needs graders, which a light installation lacks

    console = Terminal(sys.stdout)
    for run in runs:
        layout, _ = open_run(run)
        for unit in regrade_run(layout, echo):
            before, now = (percent(accuracy) for accuracy in unit.accuracy)
            echo(
                f"version {unit.version} on {unit.benchmark}: {len(unit.changed)} of {unit.samples} verdicts changed, "
                f"pass@1 {before} -> {now}"
            )
            if unit.changed:
                console.print(_table(unit))
        echo(Advice("the report with these verdicts: mrt-hpc report {run}", run=run))


def _table(regraded: "Regraded") -> Table:
    columns = ("problem", "sample", "gold", "answer before", "answer now", "reward before", "reward now")
    table = table_of("changed verdicts", *columns)
    for pair in regraded.changed:
        gold = gold_text(regraded.golds[pair[0].problem_id])
        answers, rewards = [verdict.answer or "none" for verdict in pair], [f"{verdict.reward:g}" for verdict in pair]
        table.add_row(pair[0].problem_id, str(pair[0].sample), gold, *answers, *rewards)
    return table
