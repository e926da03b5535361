"""Analyses are made of curves, which give rows of tables and lines of figures, and of sentences; and their files."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mrt_hpc.analysis.comparing import compare, verdict
from mrt_hpc.analysis.figures import Line, LineFigure, Panel, draw, line_of
from mrt_hpc.analysis.intervals import IntervalEstimate, MeanGain, Means, holm, mean_of_shares
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.named_models import Arm
from mrt_hpc.analysis.problem_measures import Measure
from mrt_hpc.run.atomic import write_text

Cell = str | int | float


@dataclass(frozen=True)
class DataTable:
    name: str
    """Of its file, without an ending."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Point:
    at: tuple[float, ...]
    """Its place, in cells of a row; the last one is that on the horizontal axis."""
    by_problem: Means = field(default_factory=dict)
    """Shares, whose mean it is; empty where its estimate is ``given``."""
    given: IntervalEstimate | None = None
    more: tuple[float, ...] = ()
    """Further cells of its row."""

    @property
    def estimate(self) -> IntervalEstimate:
        return self.given or mean_of_shares(self.by_problem)

    @property
    def index(self) -> int:
        return int(self.at[0])

    @property
    def x(self) -> float:
        return self.at[-1]

    @property
    def row(self) -> tuple[Cell, ...]:
        return (*self.at, *self.estimate.cells, *self.more)


@dataclass(frozen=True)
class Curve:
    """Rows of a table, and a line of a figure."""

    names: tuple[str, ...]
    """The first cells of its rows: the model's name, and what is measured of it."""
    points: tuple[Point, ...]

    @property
    def model(self) -> str:
        return self.names[0]

    @property
    def estimates(self) -> list[IntervalEstimate]:
        return [point.estimate for point in self.points]

    def line(self, label: str = "", **look: Any) -> Line:
        """By default the label is the model's name."""
        drawn = line_of(label or self.model, [point.x for point in self.points], self.estimates)
        return replace(drawn, **look)


@dataclass(frozen=True)
class Analysis:
    tables: tuple[DataTable, ...]
    """All numbers, a CSV file each."""
    figures: tuple[LineFigure, ...]
    summary: DataTable
    verdicts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """On what was left out, or how to read the numbers."""


def table_of_curves(name: str, columns: Sequence[str], curves: Iterable[Curve]) -> DataTable:
    rows = ((*curve.names, *point.row) for curve in curves for point in curve.points)
    return DataTable(name, tuple(columns), tuple(rows))


def figure_of_curves(
    name: str, title: str, x_label: str, y_label: str, curves: Sequence[Curve], **look: Any
) -> LineFigure:
    """A line for each model; ``look`` are further fields of the panel."""
    return LineFigure(name, (Panel(title, x_label, y_label, tuple(curve.line() for curve in curves), **look),))


def title_of(what: str, curves: Sequence[Curve]) -> str:
    """It names a model that stands alone."""
    return what if len(curves) > 1 else f"{what} of {curves[0].model}"


def write_analysis(analysis: Analysis, directory: Path) -> list[Path]:
    """The tables become CSV and the figures PNG and SVG, each whole; returns their paths."""
    paths = []
    for table in analysis.tables:
        path = directory / f"{table.name}.csv"
        write_text(path, table_csv(table))
        paths.append(path)
    for figure in analysis.figures:
        drawn = [directory / f"{figure.name}.{ending}" for ending in ("png", "svg")]
        draw(figure, *drawn)
        paths += drawn
    return paths


def name_of_file(*parts: str) -> str:
    """The words may have spaces and slashes."""
    return re.sub(r"[^\w.-]+", "_", "_".join(parts))


def table_csv(table: DataTable) -> str:
    """Numbers have ten digits; one that does not exist is an empty cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_text(cell) for cell in row] for row in table.rows)
    return stream.getvalue()


def _text(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.10g}" if math.isfinite(cell) else ""
    return str(cell)


def gain_table(
    name: str, columns: Sequence[str], gains: Sequence[tuple[tuple[Cell, ...], MeanGain]]
) -> tuple[DataTable, list[float]]:
    """A row for each of some gains shown together, and their p-values with Holm's correction for all. Each gain has the
    first cells of its row.
    """
    corrected = holm([gain.p_value for _, gain in gains])
    rows = [(*cells, *gain.interval.cells, gain.p_value, p) for (cells, gain), p in zip(gains, corrected, strict=True)]
    return DataTable(name, (*columns, "low", "high", "p", "corrected_p"), tuple(rows)), corrected


def remark_on_correction(what: str, count: int) -> tuple[str, ...]:
    """One comparison needs no remark."""
    return (f"p of {what} is corrected for the {count} shown (Holm); intervals are not",) if count > 1 else ()


def comparisons_with_first(
    models: Sequence[ModelSamples], measure: Measure, corrected: Sequence[float] = (), together: int = 1
) -> tuple[str, ...]:
    """A sentence on each model's comparison with the first one.

    Args:
        corrected: p-values where further comparisons are shown; else these models alone are corrected for.
        together: the number of comparisons that these are corrected for.
    """
    first, *others = map(Arm.of, models)
    comparisons = compare([first], [[other] for other in others], [measure])
    if corrected:
        comparisons = [
            replace(comparison, corrected_p=p, together=together)
            for comparison, p in zip(comparisons, corrected, strict=True)
        ]
    return tuple(
        f"{measure.name}, {comparison.second.name} against {comparison.first.name}: "
        f"{comparison.gain.interval.decimals('+.3f')}, {verdict(comparison)}"
        for comparison in comparisons
    )
