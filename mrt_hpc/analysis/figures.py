"""Figures of lines with intervals, in panels side by side: plain data, drawn as PNG and SVG, each file whole or none.

Okabe and Ito's colours, which colour-blind readers can distinguish, and markers; units on every axis. No display and no
global state of matplotlib: the same figure gives the same bytes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mrt_hpc.run.atomic import replace_file

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from mrt_hpc.analysis.intervals import IntervalEstimate


WIDTH_PX, HEIGHT_PX, PANEL_PX, DPI = 1200, 675, 900, 150
BELOW, ROW, BESIDE = 3, 60, 28
"""Entries of a legend below the axes, letters of a row of them, and letters of a line beside the axes: longer ones
leave too little room.
"""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
AGES = LinearSegmentedColormap.from_list("time", ["#A6CEE3", "#3E7FB8", "#08306B"])
"""From early to late in training: light to dark, so that it survives print in grey."""
MARKED_POINTS = 40
"""A trend of more points is drawn faintly, and the mean over a twentieth of it strongly."""
MOST_MARKERS = 16
"""A line of more points has fewer markers than points."""
MOST_RATIO = 300
"""An axis that spans more has marks at powers of ten alone: others would run into each other."""
MOST_BARS = 60
"""A stack of more points is drawn as areas, of fewer as bars."""

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # names of models and benchmarks may hold a dollar sign
    "font.size": 11,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 11.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#4D4D4D",
    "axes.linewidth": 0.9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "lines.markersize": 6,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "figure.facecolor": "white",
    "svg.fonttype": "none",  # texts that a reader can select and search
    "path.simplify": False,
}

Dash = Literal["solid", "dashed", "dotted", "dashdot"]
Kind = Literal["lines", "error bars", "trends", "stack"]


@dataclass(frozen=True)
class Line:
    label: str
    x: tuple[float, ...]
    """Ascending."""
    y: "tuple[IntervalEstimate, ...]"
    """Their means are drawn, and a band of the finite intervals."""
    colour: int | None = None
    """Its index among the colours and markers, by default its place in the panel."""
    dash: Dash = "solid"
    band: bool = True
    age: float | None = None
    """Where it lies in training, from 0 to 1, for a colour from light to dark."""

    @property
    def means(self) -> list[float]:
        return [y.mean for y in self.y]


def line_of(label: str, x: Iterable[float], estimates: "Iterable[IntervalEstimate]") -> Line:
    return Line(label, tuple(map(float, x)), tuple(estimates))


@dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    kind: Kind = "lines"
    """Trends are values of many iterations; lines of a stack have the same x."""
    percent: bool = False
    logarithmic: bool = False
    doubling: bool = False
    """Logarithmic, with marks at powers of 2."""
    logarithmic_heights: bool = False
    whole_numbers: bool = False
    marks_at_points: bool = False
    level: float | None = None
    """A height marked by a thin horizontal line."""


@dataclass(frozen=True)
class LineFigure:
    """One row of panels that share a legend, and the scale and the label of their heights."""

    name: str
    """Of its files, without an ending; empty for a figure without a file."""
    panels: tuple[Panel, ...]


def draw(figure: LineFigure, *paths: Path) -> None:
    """The ending of each path decides between PNG and SVG."""
    with _draw_figure(figure) as drawn:
        for path in paths:
            ending = path.suffix[1:]
            without = {"Software": None} if ending == "png" else {"Date": None}
            with replace_file(path) as temporary:
                drawn.savefig(temporary, format=ending, metadata=without)


def inline_svg(figure: LineFigure) -> tuple[str, str]:
    """The view box and the SVG elements, without the title, which the page writes, and without names of groups, which
    figures of one page would share.
    """
    buffer = BytesIO()
    with _draw_figure(figure, titled=False) as drawn:
        drawn.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    _, _, root = buffer.getvalue().decode().partition("<svg")
    head, _, body = root.partition(">")
    match = re.search(r'viewBox="([^"]+)"', head)
    if match is None:
        raise ValueError("the figure has no view box")
    content = re.sub(r"<metadata>.*?</metadata>", "", body[: body.rindex("</svg>")], flags=re.DOTALL)
    return match[1], re.sub(r' id="[A-Za-z.]+\w*_\d+"', "", content)


@contextmanager
def _draw_figure(figure: LineFigure, *, titled: bool = True) -> Iterator[Figure]:
    """The figure is open within the style that saving it needs."""
    panels = [_colour_lines(panel) for panel in figure.panels]
    salt = f"{figure.name} {panels[0].title}"  # of the names inside an SVG: figures of one page have other ones
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}):
        width = WIDTH_PX if len(panels) == 1 else PANEL_PX * len(panels)
        drawn = Figure(figsize=(width / DPI, HEIGHT_PX / DPI), dpi=DPI, layout="constrained")
        FigureCanvasAgg(drawn)
        for axes, panel in zip(drawn.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
            _draw_panel(axes, panel, panel.title if titled else "")
        for axes in drawn.axes[1:]:
            axes.set_ylabel("")
        _legend(drawn, panels)
        yield drawn


def _colour_lines(panel: Panel) -> Panel:
    lines = (replace(line, colour=n if line.colour is None else line.colour) for n, line in enumerate(panel.lines))
    return replace(panel, lines=tuple(lines))


def _draw_panel(axes: "Axes", panel: Panel, title: str) -> None:
    axes.set(title=title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.level is not None:
        axes.axhline(panel.level, color="#4D4D4D", lw=1)
    _KINDS[panel.kind](axes, panel.lines)
    if panel.percent:
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0, decimals=0))
    if panel.whole_numbers:
        axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    if panel.logarithmic:
        axes.set_xscale("log")
        _marks(axes.xaxis, _powers(*axes.get_xlim()))
    if panel.doubling:
        axes.set_xscale("log", base=2)
        _marks(axes.xaxis, ticker.LogLocator(base=2))
    if panel.logarithmic_heights:
        axes.set_yscale("log")
        _marks(axes.yaxis, _powers(*axes.get_ylim()))
    if panel.marks_at_points:
        _marks(axes.xaxis, ticker.FixedLocator(sorted({x for line in panel.lines for x in line.x})))


def _powers(low: float, high: float) -> ticker.LogLocator:
    return ticker.LogLocator(subs=(1.0,) if high / low > MOST_RATIO else (1.0, 2.0, 5.0))


def _marks(axis: "Axis", locator: ticker.Locator) -> None:
    axis.set_major_locator(locator)
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


# -- kinds of lines


def _lines(axes: "Axes", lines: Sequence[Line]) -> None:
    for line in lines:
        axes.plot(line.x, line.means, markevery=-(-len(line.x) // MOST_MARKERS) or 1, **_look(line))
        if line.band:
            _band(axes, line)


def _band(axes: "Axes", line: Line) -> None:
    low, high = [y.low for y in line.y], [y.high for y in line.y]
    finite = np.isfinite(low) & np.isfinite(high)
    axes.fill_between(line.x, low, high, where=finite, color=_colour(line), alpha=0.15, lw=0)


def _error_bars(axes: "Axes", lines: Sequence[Line]) -> None:
    """Lines stand a little beside each other, so that their bars can be seen."""
    every = [x for line in lines for x in line.x]
    shift = 0.006 * ((max(every) - min(every)) or 1.0)
    for number, line in enumerate(lines):
        x = np.array(line.x) + shift * (number - (len(lines) - 1) / 2)
        axes.plot(x, line.means, **_look(line))
        below_above = np.array([(y.mean - y.low, y.high - y.mean) for y in line.y]).T
        axes.errorbar(
            x, line.means, yerr=np.maximum(below_above, 0), fmt="none", ecolor=_colour(line), capsize=3, lw=1.2
        )


def _trends(axes: "Axes", lines: Sequence[Line]) -> None:
    """Over many values a centred moving average is drawn stronger."""
    for line in lines:
        _band(axes, line)
        if len(line.x) <= MARKED_POINTS:
            axes.plot(line.x, line.means, **_look(line))
            continue
        axes.plot(line.x, line.means, color=_colour(line), alpha=0.35, lw=1)
        axes.plot(line.x, moving_average(line.means, len(line.x) // 20 * 2 + 1), color=_colour(line), lw=2.4)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """[N] centred means over ``window`` (odd) values, fewer near the ends."""
    half = window // 2
    return [float(np.mean(values[max(0, i - half) : i + half + 1])) for i in range(len(values))]


def _stack(axes: "Axes", lines: Sequence[Line]) -> None:
    x, colours = lines[0].x, [_colour(line) for line in lines]
    if len(x) > MOST_BARS:
        axes.stackplot(x, [line.means for line in lines], colors=colours, lw=0)
    else:
        bottom, width = np.zeros(len(x)), 0.8 * min(np.diff(x), default=1.0)
        for line, colour in zip(lines, colours, strict=True):
            axes.bar(x, line.means, width, bottom=bottom, color=colour, lw=0)
            bottom += line.means
    axes.margins(x=0)
    axes.grid(visible=False, axis="x")


_KINDS = {"lines": _lines, "error bars": _error_bars, "trends": _trends, "stack": _stack}


def _look(line: Line) -> dict[str, Any]:
    """Where colours come again, they have other markers."""
    again, colour = divmod(line.colour or 0, len(COLOURS))
    return {"color": _colour(line), "linestyle": line.dash, "marker": MARKERS[(colour + 3 * again) % len(MARKERS)]}


def _colour(line: Line) -> Any:
    return COLOURS[(line.colour or 0) % len(COLOURS)] if line.age is None else AGES(line.age)


def _legend(drawn: Figure, panels: Sequence[Panel]) -> None:
    """Each label stands once, outside of the axes, so that it hides no line: below, or beside where there are many."""
    entries = {line.label: _entry(panel.kind, line) for panel in panels for line in panel.lines}
    if len(entries) > BELOW:
        stacked = any(panel.kind == "stack" for panel in panels)
        labels = [*entries][:: -1 if stacked else 1]
        wrapped = ["\n".join(wrap(label, BESIDE)) for label in labels]
        drawn.legend([entries[label] for label in labels], wrapped, loc="outside right center")
    else:
        columns = len(entries) if sum(map(len, entries)) <= ROW else 1
        drawn.legend([*entries.values()], [*entries], loc="outside lower center", ncols=columns)


def _entry(kind: Kind, line: Line) -> "Artist":
    return Patch(color=_colour(line)) if kind == "stack" else Line2D([], [], **_look(line))
