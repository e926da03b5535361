"""A legend hides no line of its figure."""

from typing import Any

import pytest

from mrt_hpc.analysis.figures import Line, LineFigure, Panel, _draw_figure
from mrt_hpc.analysis.intervals import IntervalEstimate

LONG = ("a" * 64, "of-many-words-" * 4, "short", "shorter")
ODD = (r"a$\frac{b$", "_hidden", "$x$", "100%_$")
"""Names that matplotlib reads as TeX, or leaves out, by default."""


def figure(*names: str) -> LineFigure:
    lines = tuple(Line(name, (0.0, 1.0), (IntervalEstimate(0.2, 0.1, 0.3),) * 2) for name in names)
    return LineFigure("", (Panel(names[0], "x", "y", lines),))


@pytest.mark.parametrize("names", [("one",), tuple(f"a benchmark of the name {n}" for n in range(8)), LONG, ODD])
def test_names_stand_whole_in_a_legend_off_the_data_that_leaves_the_axes_half_of_the_figure(names: Any) -> None:
    with _draw_figure(figure(*names)) as drawn:
        drawn.canvas.draw()
        (axes,), (legend,) = drawn.axes, (legend.get_window_extent() for legend in drawn.legends)
        assert not legend.overlaps(axes.get_window_extent())
    assert drawn.bbox.containsx(legend.x0) and drawn.bbox.containsx(legend.x1)
    assert axes.get_window_extent().width > drawn.bbox.width / 2
    assert [text.get_text().replace("\n", "") for text in drawn.legends[0].get_texts()] == list(names)
