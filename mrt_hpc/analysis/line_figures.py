"""Figures of lines with intervals, in panels side by side, as PNG and SVG. The same figure gives the same bytes.

They share the style of the report's figures (``plots``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mrt_hpc.analysis.plots import (
    COLOURS,
    HEIGHT_PX,
    MARKERS,
    STYLE,
    WIDTH_PX,
    draw_band,
    new_figure,
    plain_numbers,
    save,
)

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mrt_hpc.analysis.intervals import IntervalEstimate

PANEL_PX = 900
"""The width of a panel where there are several."""
ROW_PX = 30
"""The height of a row of the legend."""
COLUMNS = 3
"""The entries in a row of the legend."""
MOST_MARKERS = 16
"""A line of more points has a marker at every second of them, every third and so on."""
SALT = "mrt-hpc"
"""The seed of the names inside an SVG."""

Dash = Literal["solid", "dashed", "dotted", "dashdot"]


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    label: str
    x: tuple[float, ...]
    y: tuple[IntervalEstimate, ...]
    """Their means are drawn, and a band of their intervals."""
    colour: int = 0
    """Its index among the colours; the marker goes with it."""
    dash: Dash = "solid"
    band: bool = True
    """Whether the intervals are drawn."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    percent: bool = False
    """Whether the values are shares, shown as percentages."""
    logarithmic: bool = False
    """Whether the horizontal axis is logarithmic."""
    whole_numbers: bool = False
    """Whether the horizontal axis has marks at whole numbers only."""
    level: float | None = None
    """A height that is marked by a thin horizontal line."""


@dataclass(frozen=True)
class LineFigure:
    """A figure of one row of panels that share a legend and the scale of their heights."""

    name: str
    """The name of its files, without an ending."""
    panels: tuple[Panel, ...]


def draw(figure: LineFigure, directory: Path) -> list[Path]:
    """Draw a figure as NAME.png and NAME.svg. Returns their paths."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": SALT}):
        drawn = _drawn(figure)
        paths = [directory / f"{figure.name}.{ending}" for ending in ("png", "svg")]
        for path in paths:
            save(drawn, path)
        return paths


def _drawn(figure: LineFigure) -> Figure:
    entries = _entries(figure)
    rows = -(-len(entries) // COLUMNS)
    width = WIDTH_PX if len(figure.panels) == 1 else PANEL_PX * len(figure.panels)
    drawn = new_figure(width, HEIGHT_PX + ROW_PX * rows)
    for axes, panel in zip(_axes(drawn, figure), figure.panels, strict=True):
        _draw_panel(axes, panel)
    if len(entries) > 1:
        drawn.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=min(COLUMNS, len(entries))
        )
    return drawn


def _axes(drawn: Figure, figure: LineFigure) -> list[Axes]:
    """The axes of the panels, with the same heights."""
    return list(drawn.subplots(1, len(figure.panels), squeeze=False, sharey=True)[0])


def _entries(figure: LineFigure) -> dict[str, Line2D]:
    """What the legend shows, each label once."""
    lines = [line for panel in figure.panels for line in panel.lines]
    return {line.label: Line2D([], [], **_look(line)) for line in lines}


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.level is not None:
        axes.axhline(panel.level, color="#4D4D4D", lw=1)
    for line in panel.lines:
        _draw_line(axes, line)
    if panel.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if panel.whole_numbers:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.logarithmic:
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)


def _draw_line(axes: Axes, line: Line) -> None:
    """The means, and a band of those intervals that are finite."""
    axes.plot(line.x, [y.mean for y in line.y], markevery=-(-len(line.x) // MOST_MARKERS), **_look(line))
    if line.band:
        draw_band(axes, line.x, [y.low for y in line.y], [y.high for y in line.y], _colour(line))


def _look(line: Line) -> dict[str, Any]:
    return {"color": _colour(line), "linestyle": line.dash, "marker": MARKERS[line.colour % len(MARKERS)]}


def _colour(line: Line) -> str:
    return COLOURS[line.colour % len(COLOURS)]
