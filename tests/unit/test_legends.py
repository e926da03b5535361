"""A legend hides no line of its figure, and the marks of an axis do not hide each other."""

from __future__ import annotations

import re

import pytest

from mrt_hpc.analysis.figures import Line, LineFigure, Panel, _drawn, inline_svg
from mrt_hpc.analysis.intervals import IntervalEstimate


def lines(*names: str, x: tuple[float, ...] = (0.0, 1.0)) -> tuple[Line, ...]:
    return tuple(Line(name, x, (IntervalEstimate(0.2, 0.1, 0.3),) * len(x)) for name in names)


def figure(*names: str) -> LineFigure:
    return LineFigure("f", (Panel("Title", "x", "y", lines(*names)),))


@pytest.mark.parametrize("entries", [1, 3, 8])
def test_a_legend_lies_off_the_data(entries: int) -> None:
    with _drawn(figure(*(f"a benchmark of the name {index}" for index in range(entries)))) as drawn:
        drawn.canvas.draw()
        (axes,), (legend,) = drawn.axes, (legend.get_window_extent() for legend in drawn.legends)
    assert not legend.overlaps(axes.get_window_extent())
    assert drawn.bbox.containsx(legend.x0)
    assert drawn.bbox.containsx(legend.x1)


def test_long_names_leave_the_axes_half_of_the_figure() -> None:
    with _drawn(figure("a" * 64, "of-many-words-" * 4, "short", "shorter")) as drawn:
        drawn.canvas.draw()
    assert drawn.axes[0].get_window_extent().width > drawn.bbox.width / 2
    written = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert written[0].replace("\n", "") == "a" * 64, "the whole name is there, in several lines"


ODD = (r"a$\frac{b$", "_hidden", "$x$", "100%_$")
"""Names that matplotlib reads as TeX, or leaves out, by default."""


def test_names_with_dollar_signs_and_underscores_stand_in_a_legend_as_they_are() -> None:
    with _drawn(LineFigure("f", (Panel(ODD[0], "x", "y", lines(*ODD)),))) as drawn:
        drawn.canvas.draw()
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == list(ODD)


def texts_of(x: tuple[float, ...], **look: bool) -> list[str]:
    """The texts of a drawn SVG."""
    panel = Panel("t", "x", "y", lines("v", x=x), logarithmic=True, **look)
    return re.findall(r"<text[^>]*>([^<]*)</text>", inline_svg(LineFigure("", (panel,)))[1])


def test_marks_of_tokens_and_samples_do_not_run_into_each_other() -> None:
    wide, narrow = texts_of((1.0, 500.0, 20_000.0)), texts_of((300.0, 9_000.0))
    assert {"1", "10", "100", "1,000", "10,000"} <= set(wide)
    assert "500" not in wide
    assert {"500", "1,000", "2,000", "5,000"} <= set(narrow)
    samples = texts_of((1.0, 2.0, 4.0), marks_at_points=True)
    assert [text for text in samples if text.isdigit()] == ["1", "2", "4"]
