"""Figures of lines with intervals, in panels side by side, as PNG and SVG. The same figure gives the same bytes.

They share the style of the report's figures (``plots``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from mrt_hpc.analysis.plots import COLOURS, DPI, HEIGHT_PX, MARKERS, STYLE, WIDTH_PX
from mrt_hpc.run.atomic import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

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
        return [_save(drawn, directory / f"{figure.name}.{ending}") for ending in ("png", "svg")]


def _save(drawn: Figure, path: Path) -> Path:
    """Write a figure whole, without the date and the program's version."""
    ending = path.suffix[1:]
    with replacing(path) as temporary:
        drawn.savefig(temporary, format=ending, metadata={"Software": None} if ending == "png" else {"Date": None})
    return path


def _drawn(figure: LineFigure) -> Figure:
    entries = _entries(figure)
    rows = -(-len(entries) // COLUMNS)
    width = WIDTH_PX if len(figure.panels) == 1 else PANEL_PX * len(figure.panels)
    drawn = Figure(figsize=(width / DPI, (HEIGHT_PX + ROW_PX * rows) / DPI), dpi=DPI, layout="constrained")
    FigureCanvasAgg(drawn)
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
        _make_logarithmic(axes)


def _draw_line(axes: Axes, line: Line) -> None:
    """The means, and a band of those intervals that are finite."""
    axes.plot(line.x, [y.mean for y in line.y], markevery=-(-len(line.x) // MOST_MARKERS), **_look(line))
    if line.band:
        low, high = np.array([y.low for y in line.y]), np.array([y.high for y in line.y])
        axes.fill_between(
            line.x, low, high, where=np.isfinite(low) & np.isfinite(high), color=_colour(line), alpha=0.15, lw=0
        )


def _look(line: Line) -> dict[str, Any]:
    return {"color": _colour(line), "linestyle": line.dash, "marker": MARKERS[line.colour % len(MARKERS)]}


def _colour(line: Line) -> str:
    return COLOURS[line.colour % len(COLOURS)]


def _make_logarithmic(axes: Axes) -> None:
    """Plain numbers on a logarithmic axis, at 1, 2 and 5 times the powers of ten."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
