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
