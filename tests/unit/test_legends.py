"""A legend hides no line of its figure, and the marks of an axis do not hide each other."""

from __future__ import annotations

import re

import pytest

from mrt_hpc.analysis.figures import Line, LineFigure, Panel, _drawn, inline_svg
from mrt_hpc.analysis.intervals import IntervalEstimate

ODD = (r"a$\frac{b$", "_hidden", "$x$", "100%_$")
"""Names that matplotlib reads as TeX, or leaves out, by default."""


def figure(*names: str, x: tuple[float, ...] = (0.0, 1.0), **look: bool) -> LineFigure:
    lines = tuple(Line(name, x, (IntervalEstimate(0.2, 0.1, 0.3),) * len(x)) for name in names)
    return LineFigure("", (Panel(names[0], "x", "y", lines, **look),))


@pytest.mark.parametrize("entries", [1, 3, 8])
def test_a_legend_lies_off_the_data(entries: int) -> None:
    with _drawn(figure(*(f"a benchmark of the name {index}" for index in range(entries)))) as drawn:
        drawn.canvas.draw()
        (axes,), (legend,) = drawn.axes, (legend.get_window_extent() for legend in drawn.legends)
    assert not legend.overlaps(axes.get_window_extent())
    assert drawn.bbox.containsx(legend.x0)
    assert drawn.bbox.containsx(legend.x1)


@pytest.mark.parametrize("names", [("a" * 64, "of-many-words-" * 4, "short", "shorter"), ODD], ids=["long", "odd"])
def test_names_stand_whole_in_a_legend_that_leaves_the_axes_half_of_the_figure(names: tuple[str, ...]) -> None:
    with _drawn(figure(*names)) as drawn:
        drawn.canvas.draw()
    assert drawn.axes[0].get_window_extent().width > drawn.bbox.width / 2
    assert [text.get_text().replace("\n", "") for text in drawn.legends[0].get_texts()] == list(names)


def test_marks_of_tokens_and_samples_do_not_run_into_each_other() -> None:
    def texts(*x: float, **look: bool) -> list[str]:
        return re.findall(r"<text[^>]*>([^<]*)</text>", inline_svg(figure("v", x=x, logarithmic=True, **look))[1])

    wide = texts(1.0, 500.0, 20_000.0)
    assert {"1", "10", "100", "1,000", "10,000"} <= set(wide) and "500" not in wide
    assert {"500", "1,000", "2,000", "5,000"} <= set(texts(300.0, 9_000.0))
    assert [text for text in texts(1.0, 2.0, 4.0, marks_at_points=True) if text.isdigit()] == ["1", "2", "4"]
