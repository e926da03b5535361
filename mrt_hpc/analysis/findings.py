"""What analyses are made of: curves, which give rows of tables and lines of figures, and sentences; and their files."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from mrt_hpc.analysis.comparing import can_show, compare, quantity, verdict
from mrt_hpc.analysis.figures import Line, LineFigure, Panel, draw, line_of
from mrt_hpc.analysis.intervals import SIGNIFICANCE, IntervalEstimate, MeanGain, Means, detectable, holm, mean_of_shares
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.named_models import Arm
from mrt_hpc.analysis.number_formats import csv_text
from mrt_hpc.analysis.problem_measures import Measure
from mrt_hpc.run.atomic import write_text

Cell = str | int | float | None
Cells = Sequence[Any]
"""An interval stands for its three numbers, and a gain for four: the last one is its p-value."""
Form = str | Callable[[Any], str]
"""How a cell is printed: a format of Python's, or a function."""


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
    def row(self) -> Cells:
        return (*self.at, self.estimate, *self.more)


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


def data_table(name: str, columns: str, rows: Iterable[Cells]) -> DataTable:
    """A table of numbers; a space parts the names of the columns."""
    return DataTable(name, tuple(columns.split()), tuple(tuple(chain.from_iterable(map(_cells, row))) for row in rows))


def _cells(cell: Any) -> tuple[Cell, ...]:
    return cell.cells if isinstance(cell, IntervalEstimate | MeanGain) else (cell,)


def summary_table(name: str, columns: Mapping[str, Form], rows: Iterable[Cells]) -> DataTable:
    """A table to be printed: each cell in the form of its column, and nothing for None."""
    texts = (tuple(map(_text, row, columns.values())) for row in rows)
    return DataTable(name, tuple(columns), tuple(texts))


def _text(cell: Any, form: Form) -> str:
    if cell is None:
        return ""
    if isinstance(form, str):
        return cell.decimals(form) if isinstance(cell, IntervalEstimate) else format(cell, form)
    return form(cell)


def analysis_of_curves(
    name: str,
    columns: str,
    curves: Sequence[Curve],
    title: str,
    x_label: str,
    y_label: str,
    at: str,
    form: str = ".3f",
    shown: Collection[float] = (),
    **look: Any,
) -> Analysis:
    """The table of curves, their figure, and a summary with a row each curve and a column each place.

    Args:
        columns: of the table, the first ones for the names of a curve.
        at: the column of a place in the summary, as ``{} tokens``.
        form: of the summary's numbers.
        shown: the places in the summary; empty for all.
        look: further fields of the panel.
    """
    places = sorted({point.x for curve in curves for point in curve.points if not shown or point.x in shown})
    estimates = [{point.x: point.estimate for point in curve.points} for curve in curves]
    names = columns.split()[: len(curves[0].names)]
    forms = {**dict.fromkeys(names, ""), **{at.format(x): form for x in places}}
    rows = ((*c.names, *map(mine.get, places)) for c, mine in zip(curves, estimates, strict=True))
    figure = figure_of_curves(name, title, x_label, y_label, curves, **look)
    return Analysis((table_of_curves(name, columns, curves),), (figure,), summary_table(title.lower(), forms, rows))


def table_of_curves(name: str, columns: str, curves: Iterable[Curve]) -> DataTable:
    return data_table(name, columns, ((*curve.names, *point.row) for curve in curves for point in curve.points))


def figure_of_curves(
    name: str, title: str, x_label: str, y_label: str, curves: Sequence[Curve], **look: Any
) -> LineFigure:
    """A line for each curve, by its model's name; the title names a model that stands alone."""
    titled = title if len(curves) > 1 else f"{title} of {curves[0].model}"
    return LineFigure(name, (Panel(titled, x_label, y_label, tuple(curve.line() for curve in curves), **look),))


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


def name_of_file(name: str, model: str, models: Sequence[ModelSamples]) -> str:
    """The name of a model's own figure, beside those of others; a model's name may have spaces and slashes."""
    return re.sub(r"[^\w.-]+", "_", f"{name}_{model}") if len(models) > 1 else name


def table_csv(table: DataTable) -> str:
    """Numbers have ten digits; one that does not exist is an empty cell."""
    return csv_text(table.columns, ([_digits(cell) for cell in row] for row in table.rows))


def _digits(cell: Cell) -> Cell:
    if isinstance(cell, float):
        return f"{cell:.10g}" if math.isfinite(cell) else ""
    return cell


def gain_table(
    name: str, columns: str, gains: Sequence[tuple[Sequence[Cell], MeanGain]]
) -> tuple[DataTable, list[float]]:
    """A row for each of some gains shown together, and their p-values with Holm's correction for all. Each gain has the
    first cells of its row.
    """
    corrected = holm([gain.p_value for _, gain in gains])
    rows = [(*cells, gain, p) for (cells, gain), p in zip(gains, corrected, strict=True)]
    return data_table(name, f"{columns} low high p corrected_p", rows), corrected


def remark_on_correction(what: str, count: int) -> tuple[str, ...]:
    """One comparison needs no remark."""
    return (f"p of {what} is corrected for the {count} shown (Holm); intervals are not",) if count > 1 else ()


def gain_sentence(
    about: str, measure: Measure, gain: MeanGain, problems: int, corrected_p: float | None = None, together: int = 1
) -> str:
    """What a gain shows that is paired by problem; one of ``together`` has a corrected p-value."""
    told, is_known = f"{about}: {gain.interval.decimals('+.3f')}", gain.p_value < SIGNIFICANCE
    if is_known and (corrected_p is None or corrected_p < SIGNIFICANCE):
        return f"{told}, it is {'better' if gain.mean > 0 else 'worse'} by {quantity(measure, abs(gain.mean))}"
    limit = can_show(measure, problems, detectable(gain.error, gain.degrees, together))
    return f"{told}, cannot be distinguished{' after the correction' * is_known}: {limit}"


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
