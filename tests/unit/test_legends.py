"""A legend hides no line of its figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mrt_hpc.analysis.plots import _figure, _legend

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
