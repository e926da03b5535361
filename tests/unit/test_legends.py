"""A legend hides no line of its figure, and the marks of an axis do not hide each other."""

from __future__ import annotations

import re
from io import BytesIO
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.analysis import plots
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.analysis.line_figures import Line, LineFigure, Panel, draw
from mrt_hpc.analysis.plots import Series, _figure, _legend, accuracy_by_iteration

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("entries", [1, 3, 8])
def test_a_legend_lies_off_the_data(tmp_path: Path, entries: int) -> None:
    with _figure(tmp_path / "plot.png", "Title", "x", "y") as axes:
        for index in range(entries):
            axes.plot([0, 1], [index, index], label=f"a benchmark of the name {index}")
        _legend(axes, entries)
    figure = axes.get_figure(root=True)
    assert figure is not None
    legend = figure.legends[0].get_window_extent()
    assert not legend.overlaps(axes.get_window_extent())
    assert figure.bbox.containsx(legend.x0)
    assert figure.bbox.containsx(legend.x1)


def test_long_names_leave_the_axes_half_of_the_figure(tmp_path: Path) -> None:
    with _figure(tmp_path / "plot.png", "Title", "x", "y") as axes:
        for name in ("a" * 64, "of-many-words-" * 4, "short", "shorter"):
            axes.plot([0, 1], [0, 1], label=name)
        _legend(axes, 4)
    figure = axes.get_figure(root=True)
    assert figure is not None
    assert axes.get_window_extent().width > figure.bbox.width / 2
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told[0].replace("\n", "") == "a" * 64, "the whole name is told, in several lines"


ODD = (r"a$\frac{b$", "_hidden", "$x$", "100%_$")
"""Names that matplotlib reads as TeX, or leaves out, unless it is told otherwise."""


def test_names_with_dollar_signs_and_underscores_stand_in_a_legend_as_they_are(tmp_path: Path) -> None:
    with _figure(tmp_path / "plot.png", ODD[0], "x", "y") as axes:
        for name in ODD:
            axes.plot([0, 1], [0, 1], label=name)
        axes.plot([0, 1], [1, 1])
        _legend(axes, len(ODD))
    figure = axes.get_figure(root=True)
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(ODD)


def test_figures_of_the_report_and_of_analyses_take_such_names(tmp_path: Path) -> None:
    accuracy_by_iteration(tmp_path / "report.png", [Series(name, (0.0, 1.0), (0.2, 0.3)) for name in ODD[:2]])
    lines = tuple(Line(name, (0.0, 1.0), (IntervalEstimate(0.2, 0.1, 0.3),) * 2) for name in ODD)
    (_, svg) = draw(LineFigure("figure", (Panel(f"Regret of {ODD[0]}", "x", "y", lines),)), tmp_path)
    drawn = svg.read_text()
    assert all(f"<!-- {name} -->" in drawn for name in ODD), "every name is in the legend"


def texts_of(buffer: BytesIO) -> list[str]:
    """The texts of a drawn SVG."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", buffer.getvalue().decode())


def test_marks_of_tokens_and_samples_do_not_run_into_each_other() -> None:
    wide, narrow, samples = BytesIO(), BytesIO(), BytesIO()
    plots.votes_by_tokens(wide, "t", [Series("v", (1.0, 500.0), (0.1, 0.2))], [Series("c", (20_000.0,), (0.3,))])
    plots.votes_by_tokens(narrow, "t", [Series("v", (300.0, 9_000.0), (0.1, 0.2))], [])
    plots.by_samples(samples, "s", "pass@k", [Series("v", (1.0, 2.0, 4.0), (0.1, 0.2, 0.3))])
    assert {"1", "10", "100", "1,000", "10,000"} <= set(texts_of(wide))
    assert "500" not in texts_of(wide)
    assert {"500", "1,000", "2,000", "5,000"} <= set(texts_of(narrow))
    assert [text for text in texts_of(samples) if text.isdigit()] == ["1", "2", "4"]
