"""``mrt-hpc compare``."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from mrt_hpc.analysis import published
from mrt_hpc.analysis.comparing import compare
from mrt_hpc.analysis.comparison_table import csv_of, notes, row_of
from mrt_hpc.analysis.problem_measures import measure_of
from mrt_hpc.analysis.run_samples import EvaluatedRun
from mrt_hpc.cli.console import console_of
from mrt_hpc.cli.status import open_run
from mrt_hpc.errors import UserError, nearest
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.analysis.comparison_table import ComparisonRow
    from mrt_hpc.analysis.samples import ModelSamples

LAST, FIRST = "last", "first"
_VERSIONED = re.compile(rf"(.+)@({LAST}|{FIRST}|\d+)")


@dataclass(frozen=True)
class Asked:
    """What the user wants to see."""

    benchmarks: tuple[str, ...]
    """Empty for all that the models share."""
    measures: tuple[str, ...]
    points: float
    """The difference to be told."""
    csv: Path | None
    as_json: bool
    published: bool


@dataclass(frozen=True)
class Model:
    """One weights version of a run, as the user named it."""

    text: str
    """The run directory as typed."""
    run: EvaluatedRun
    wanted: str
    """A number, or the first or last version that was evaluated."""

    def version(self, benchmarks: Sequence[str]) -> int:
        """The number of the version.

        Raises:
            UserError: no version has been evaluated on all of these benchmarks.
        """
        if self.wanted.isdigit():
            return int(self.wanted)
        whole = [set(self.run.versions(benchmark)) for benchmark in benchmarks]
        if not (shared := sorted(set.intersection(*whole))):
            raise UserError(
                f"no weights version of this run has a complete evaluation on {', '.join(benchmarks)}",
                where=self.run.layout.root,
                advice=f"mrt-hpc status {self.text}",
            )
        return shared[0 if self.wanted == FIRST else -1]


def print_comparison(runs: tuple[str, ...], version: str, asked: Asked) -> None:
    """Compare weights versions of runs with the first of them, and print what that shows.

    Args:
        runs: directories, each with ``@VERSION`` or without.
        version: of those without.
        asked: what is compared, and how it is shown.

    Raises:
        UserError: a run, a version or a benchmark is not there, or there is nothing to compare.
    """
    measures = [measure_of(name) for name in asked.measures]
    models = named_models(runs, version)
    benchmarks = chosen_benchmarks(models, asked.benchmarks)
    samples = read_samples(models, benchmarks)
    comparisons = compare(samples[0], samples[1:], measures)
    rows = [row_of(comparison, asked.points) for comparison in comparisons]
    remarks = notes(comparisons, samples)
    if asked.csv is not None:
        write_text(asked.csv, csv_of(rows))
    if asked.as_json:
        click.echo(as_json(rows, remarks, asked.published))
        return
    _print_rows(rows)
    for remark in remarks:
        click.echo(f"note: {remark}")
    if asked.published:
        _print_published(rows)


def named_models(runs: tuple[str, ...], version: str) -> list[Model]:
    """The models that the user named; a single run without a version stands for its first and its last.

    Raises:
        UserError: there are fewer than two.
    """
    if len(runs) == 1 and not _VERSIONED.fullmatch(runs[0]):
        runs = (f"{runs[0]}@{FIRST}", f"{runs[0]}@{version}")
    if len(runs) < 2:
        text = _VERSIONED.fullmatch(runs[0])
        run = runs[0] if text is None else text[1]
        raise UserError(
            "a comparison needs two models", value=runs[0], advice=f"mrt-hpc compare {run}@{FIRST} {run}@{LAST}"
        )
    return [_model(text, version) for text in runs]


def _model(text: str, version: str) -> Model:
    found = _VERSIONED.fullmatch(text)
    path, wanted = (text, version) if found is None else (found[1], found[2])
    layout, _ = open_run(Path(path).expanduser())
    return Model(path, EvaluatedRun.open(layout), wanted)


def chosen_benchmarks(models: Sequence[Model], wanted: tuple[str, ...]) -> list[str]:
    """The benchmarks to compare on: those wanted, or all that the models share, in the order of the first one.

    Raises:
        UserError: there is none, or one that is wanted is not there.
    """
    shared = [b for b in models[0].run.benchmarks if all(b in model.run.benchmarks for model in models[1:])]
    for name in wanted:
        if name not in shared:
            guess = nearest(name, shared)
            raise UserError(
                "not every one of these runs has this benchmark",
                value=name,
                where="--benchmark",
                expected=f"one of {', '.join(shared) or 'none'}" + (f"; {guess} is the nearest" if guess else ""),
            )
    if not shared:
        raise UserError(
            "these runs have no benchmark in common",
            value=[model.text for model in models],
            advice="add a benchmark to the recipes, in evaluation.benchmarks, and submit them again",
        )
    return list(dict.fromkeys(wanted)) or shared


def read_samples(models: Sequence[Model], benchmarks: Sequence[str]) -> list[list[ModelSamples]]:
    """The samples of each model, one item a benchmark.

    Raises:
        UserError: an evaluation is not there, or two of the models are the same.
    """
    versions = [model.version(benchmarks) for model in models]
    places = [(model.run.layout.root.resolve(), version) for model, version in zip(models, versions, strict=True)]
    names = _names(models, versions)
    if len(set(places)) < len(places):
        twice = next(name for name, place in zip(names, places, strict=True) if places.count(place) > 1)
        evaluated = models[0].run.versions(benchmarks[0])
        raise UserError(
            "a model cannot be compared with itself",
            value=twice,
            expected=f"different models; the first run has evaluated versions {evaluated}",
            advice=f"mrt-hpc compare {models[0].text}@{FIRST} {models[0].text}@{LAST}",
        )
    return [
        [model.run.samples(version, benchmark, name) for benchmark in benchmarks]
        for model, version, name in zip(models, versions, names, strict=True)
    ]


def _names(models: Sequence[Model], versions: Sequence[int]) -> list[str]:
    """What tables call the models: the last part of the run's path where that tells the runs apart."""
    roots = {model.run.layout.root.resolve() for model in models}
    short = len({root.name for root in roots}) == len(roots)
    texts = [model.run.layout.root.name if short else model.text for model in models]
    return [f"{text}@{version}" for text, version in zip(texts, versions, strict=True)]


# -- how it is shown --------------------------------------------------------------------------------------------------


def as_json(rows: Sequence[ComparisonRow], remarks: Sequence[str], with_published: bool) -> str:
    """Everything as one JSON object."""
    shown: dict[str, object] = {"comparisons": [asdict(row) for row in rows], "notes": list(remarks)}
    if with_published:
        shown["published"] = {
            "conditions": published.CONDITIONS,
            "benchmarks": published.BENCHMARKS,
            "results": [asdict(result) for result in published.RESULTS],
        }
    return json.dumps(shown, indent=2)


def _print_rows(rows: Sequence[ComparisonRow]) -> None:
    table = Table(title="shares in per cent, differences in percentage points", title_justify="left")
    for column in ("benchmark", "measure", "problems", "first", "second", "difference (95 %)", "p"):
        table.add_column(column, overflow="fold")
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

    def told(mean: float, low: float | None, high: float | None, sign: str = "") -> str:
        one, *ends = ("" if x is None else f"{x * factor:{sign},.{digits}f}" for x in (mean, low, high))
        return f"{one} ({' to '.join(ends)})" if all(ends) else one

    return (
        f"{row.first}: {told(row.first_mean, row.first_low, row.first_high)}",
        f"{row.second}: {told(row.second_mean, row.second_low, row.second_high)}",
        told(row.difference, row.difference_low, row.difference_high, "+"),
    )


def _print_published(rows: Sequence[ComparisonRow]) -> None:
    """The published results, with one's own pass@1 below them."""
    table = Table(title=f"published: {published.CONDITIONS}", title_justify="left")
    for column in ("model", *published.BENCHMARKS, "mean"):
        table.add_column(column)
    for result in published.RESULTS:
        table.add_row(result.model, *(f"{share:.2f}" for share in result.accuracy), f"{result.mean:.2f}")
    table.add_section()
    for name, accuracies in own_accuracies(rows).items():
        cells = [accuracies.get(benchmark) for benchmark in published.BENCHMARKS]
        known = [share for share in cells if share is not None]
        mean = sum(known) / len(known) if len(known) == len(cells) else None
        table.add_row(name, *("–" if share is None else f"{100 * share:.2f}" for share in (*cells, mean)))
    console_of(sys.stdout).print(table)


def own_accuracies(rows: Sequence[ComparisonRow]) -> dict[str, dict[str, float]]:
    """pass@1 by model and benchmark."""
    found: dict[str, dict[str, float]] = {}
    for row in (row for row in rows if row.measure == "pass@1"):
        found.setdefault(row.first, {})[row.benchmark] = row.first_mean
        found.setdefault(row.second, {})[row.benchmark] = row.second_mean
    return found
