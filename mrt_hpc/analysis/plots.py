"""The figures of the report: one function each, data in frozen dataclasses, a whole PNG or none out.

A figure for a page is drawn into a buffer as SVG, its texts as texts; the same data give the same bytes.

Their style: Okabe and Ito's colours, which colour-blind readers can distinguish (markers differ as well), 1200 pixels
wide, units on every axis. Draws without a display and without matplotlib's global figure state.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from mrt_hpc.analysis.measures import Phase
from mrt_hpc.run.atomic import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D
    from matplotlib.ticker import Locator

    Target = Path | BytesIO
    """A file becomes a PNG, a buffer an SVG."""

BELOW, ROW, BESIDE = 3, 60, 28
"""Entries of a legend that may stand below the axes, letters of a row of them, and letters of a line beside the axes:
longer ones would leave the axes too little room.
"""
WIDTH_PX, HEIGHT_PX, DPI = 1200, 675, 150
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PHASE_COLOURS = {
    Phase.GENERATION: "#0072B2",
    Phase.GRADING: "#F0E442",
    Phase.WAITING: "#BFBFBF",
    Phase.LOADING: "#CC79A7",
    Phase.OPTIMISATION: "#D55E00",
    Phase.CHECKPOINT: "#009E73",
    Phase.PUBLISHING: "#000000",
}
TIME_SCALE = LinearSegmentedColormap.from_list("time", ["#A6CEE3", "#3E7FB8", "#08306B"])
"""From early to late in training: light to dark, so that it survives print in grey."""
MARKED_POINTS = 40
"""More points than this are drawn without markers."""
OWN_LABEL = re.compile(r"_(child\d+|nolegend_)")
"""What matplotlib calls a line that was given no label."""
MOST_RATIO = 300
"""An axis that spans more than this has marks at powers of ten alone: others would run into each other."""
MOST_BARS = 60
"""More iterations than this are averaged into this many bars."""

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
}

SVG_STYLE: Any = {"svg.fonttype": "none", "path.simplify": False}
"""Texts that a reader can select and search, and all points as they are."""


@dataclass(frozen=True)
class Series:
    """One line of a figure: N points, ascending in ``x``."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    """Lower ends of the intervals."""
    high: tuple[float, ...] | None = None
    """Upper ends of the intervals."""


@dataclass(frozen=True)
class PhaseTimes:
    """Where the time of N iterations went."""

    iterations: tuple[int, ...]
    seconds: dict[Phase, tuple[float, ...]]
    """[N] for each phase; a phase that is left out took no time."""


def accuracy_by_iteration(path: Target, benchmarks: Sequence[Series]) -> None:
    """pass@1 with intervals against iterations of training, one line a benchmark."""
    with _figure(path, "Accuracy", "iterations of training", "pass@1 (mean, 95 % interval)") as axes:
        shift = 0.006 * _width(benchmarks)
        for index, (series, colour, marker) in enumerate(_styled(benchmarks)):
            x = np.array(series.x) + shift * (index - (len(benchmarks) - 1) / 2)
            axes.plot(x, series.y, color=colour, marker=marker, label=series.label)
            if series.low is not None and series.high is not None:
                below_above = np.array([np.subtract(series.y, series.low), np.subtract(series.high, series.y)])
                axes.errorbar(
                    x, series.y, yerr=np.maximum(below_above, 0), fmt="none", ecolor=colour, capsize=3, lw=1.2
                )
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes, len(benchmarks))


def reward_by_iteration(path: Target, reward: Series) -> None:
    """Mean reward of the rollouts against iterations."""
    with _figure(path, "Reward of the rollouts", "iteration", "mean reward") as axes:
        _trend(axes, reward, COLOURS[0])


def likelihood_by_iteration(path: Target, losses: Series) -> None:
    """Mean negative log-likelihood of the learnt tokens against iterations."""
    with _figure(path, "Negative log-likelihood", "iteration", "nats a token") as axes:
        _trend(axes, losses, COLOURS[1])


def tokens_per_rollout(path: Target, tokens: Series) -> None:
    """Mean length of a trace with its answer against iterations."""
    with _figure(path, "Length of the rollouts", "iteration", "tokens per rollout (mean)") as axes:
        _trend(axes, tokens, COLOURS[2])
        axes.set_ylim(bottom=0)


def progress_by_episode(path: Target, stages: Sequence[Series]) -> None:
    """Mean progress against the episode's index, one line a stage of training from light (early) to dark (late)."""
    with _figure(path, "Progress by episode", "episode index j", "mean progress V(j+1) − V(j)") as axes:
        axes.axhline(0, color="#4D4D4D", lw=1)
        for index, (series, _, marker) in enumerate(_styled(stages)):
            colour = TIME_SCALE(index / max(1, len(stages) - 1)) if len(stages) > 1 else COLOURS[0]
            _line(axes, series, colour, marker)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes, len(stages))


def time_by_phase(path: Target, times: PhaseTimes) -> None:
    """Process time of each iteration, stacked by phase."""
    with _figure(path, "Time by phase", "iteration", "wall time (s)") as axes:
        blocks = np.array_split(np.arange(len(times.iterations)), min(MOST_BARS, len(times.iterations)))
        x = np.array([np.mean([times.iterations[i] for i in block]) for block in blocks])
        width = np.array([len(block) for block in blocks]) * (0.8 if len(blocks) == len(times.iterations) else 1.0)
        bottom = np.zeros(len(blocks))
        for phase in [phase for phase in Phase if any(times.seconds.get(phase, ()))]:
            heights = np.array([np.mean([times.seconds[phase][i] for i in block]) for block in blocks])
            axes.bar(x, heights, width, bottom=bottom, color=PHASE_COLOURS[phase], label=phase.value, lw=0)
            bottom += heights
        axes.grid(visible=False, axis="x")
        axes.set_xlim(x[0] - width[0] / 2 - 0.2, x[-1] + width[-1] / 2 + 0.2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5))


def quality_by_iteration(path: Target, shares: Sequence[Series]) -> None:
    """Shares that describe the traces beyond their reward, against iterations."""
    trends(path, "Quality of the traces", "share of the traces", shares, percent=True)


def trends(path: Target, title: str, y_label: str, lines: Sequence[Series], *, percent: bool = False) -> None:
    """Measures against iterations, a line each."""
    with _figure(path, title, "iteration", y_label) as axes:
        for series, colour, _ in _styled(lines):
            _trend(axes, series, colour, label=series.label)
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _legend(axes, len(lines))


def time_areas(path: Target, times: PhaseTimes) -> None:
    """Process time of each iteration, stacked by phase, without averages: for many iterations."""
    with _figure(path, "Time by phase", "iteration", "wall time (s)") as axes:
        phases = [phase for phase in Phase if any(times.seconds.get(phase, ()))]
        axes.stackplot(
            times.iterations,
            [times.seconds[phase] for phase in phases],
            labels=[phase.value for phase in phases],
            colors=[PHASE_COLOURS[phase] for phase in phases],
            lw=0,
        )
        axes.margins(x=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5))


def compared(
    path: Target, title: str, x_label: str, y_label: str, lines: Sequence[Series], *, logarithmic: bool = False
) -> None:
    """Several ways of doing the same, a line each with its interval: the figure of a study."""
    with _figure(path, title, x_label, y_label) as axes:
        for series, colour, marker in _styled(lines):
            _line(axes, series, colour, marker)
        if logarithmic:
            axes.set(xscale="log", yscale="log")
            plain_numbers(axes.xaxis)
            plain_numbers(axes.yaxis)
        _legend(axes, len(lines))


def by_samples(path: Target, title: str, y_label: str, lines: Sequence[Series]) -> None:
    """Shares with intervals against the number of samples, 1, 2, 4 .., a line each."""
    with _figure(path, title, "samples k (logarithmic)", y_label) as axes:
        for series, colour, marker in _styled(lines):
            _line(axes, series, colour, marker)
        axes.set_xscale("log", base=2)
        _marks(axes.xaxis, FixedLocator(sorted({k for series in lines for k in series.x})))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _legend(axes, len(lines))


def progress_compared(path: Target, lines: Sequence[Series]) -> None:
    """Mean progress with its intervals against the episode's index, a line each."""
    with _figure(path, "Progress by episode", "episode index j", "mean progress V(j+1) − V(j)") as axes:
        axes.axhline(0, color="#4D4D4D", lw=1)
        for series, colour, marker in _styled(lines):
            _line(axes, series, colour, marker)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes, len(lines))


def votes_by_tokens(path: Target, title: str, prefixes: Sequence[Series], complete: Sequence[Series]) -> None:
    """Accuracy against tokens, a line each vote: solid at prefixes, dashed for complete samples."""
    with _figure(path, title, "tokens (logarithmic)", "accuracy (mean; bands: 95 % interval)") as axes:
        for number, (series, colour, marker) in enumerate(_styled([*prefixes, *complete])):
            _line(axes, series, colour, marker, "solid" if number < len(prefixes) else "dashed")
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        _marks(axes.xaxis, LogLocator(subs=(1.0,) if high / low > MOST_RATIO else (1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _legend(axes, len(prefixes) + len(complete))


def _marks(axis: Axis, locator: Locator) -> None:
    """Whole numbers, with separators, where a locator puts them."""
    axis.set_major_locator(locator)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_minor_formatter(NullFormatter())


def plain_numbers(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 times the powers of ten of a logarithmic axis; more would run into each other."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


@contextmanager
def _figure(path: Target, title: str, x_label: str, y_label: str) -> Iterator[Axes]:
    """Axes to draw on; on leaving without an error the PNG or SVG appears whole."""
    with matplotlib.rc_context({**STYLE, **SVG_STYLE, "svg.hashsalt": title}):
        figure = new_figure()
        axes = figure.add_subplot()
        # The page writes the title as a heading.
        axes.set(title="" if isinstance(path, BytesIO) else title, xlabel=x_label, ylabel=y_label)
        yield axes
        if isinstance(path, BytesIO):
            figure.savefig(path, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        else:
            save(figure, path)


def new_figure(width: int = WIDTH_PX, height: int = HEIGHT_PX) -> Figure:
    """An empty figure of so many pixels, outside of matplotlib's global state."""
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure whole, as PNG or SVG by the path's ending, without the date and the program's version."""
    ending = path.suffix[1:]
    with replacing(path) as temporary:
        figure.savefig(temporary, format=ending, metadata={"Software": None} if ending == "png" else {"Date": None})


def _line(axes: Axes, series: Series, colour: Any, marker: str, dash: str = "solid") -> None:
    """The values, and their interval as a band where they have one."""
    axes.plot(series.x, series.y, color=colour, marker=marker, label=series.label, linestyle=dash)
    if series.low is not None and series.high is not None:
        draw_band(axes, series.x, series.low, series.high, colour)


def draw_band(axes: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: Any) -> None:
    """A band between those ends that are finite."""
    axes.fill_between(x, low, high, where=np.isfinite(low) & np.isfinite(high), color=colour, alpha=0.15, lw=0)


def _trend(axes: Axes, series: Series, colour: str, label: str | None = None) -> None:
    """The values, and over many of them a centred moving average, drawn stronger."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(series.x) <= MARKED_POINTS:
        axes.plot(series.x, series.y, color=colour, marker="o", label=label)
        return
    window = len(series.x) // 20 * 2 + 1
    axes.plot(series.x, series.y, color=colour, alpha=0.35, lw=1)
    smooth_label = label or f"mean over {window} iterations"
    axes.plot(series.x, moving_average(series.y, window), color=colour, lw=2.4, label=smooth_label)
    if label is None:
        _legend(axes, 1)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """[N] centred means over ``window`` (odd) values; near the ends over those of them that there are."""
    half = window // 2
    return [float(np.mean(values[max(0, i - half) : i + half + 1])) for i in range(len(values))]


def _styled(series: Sequence[Series]) -> Iterator[tuple[Series, str, str]]:
    """A colour and a marker each; where colours come again, they come with other markers."""
    for index, one in enumerate(series):
        again, colour = divmod(index, len(COLOURS))
        yield one, COLOURS[colour], MARKERS[(colour + 3 * again) % len(MARKERS)]


def _width(series: Sequence[Series]) -> float:
    points = [x for one in series for x in one.x]
    return (max(points) - min(points)) or 1.0 if points else 1.0


def _legend(axes: Axes, entries: int) -> None:
    """Outside of the axes, so that it hides no line: below them, or beside them where there are many entries."""
    figure = axes.get_figure(root=True)
    if figure is None or entries == 0:
        return
    handles, labels = _labelled(axes)
    if entries > BELOW:
        figure.legend(handles, ["\n".join(wrap(label, BESIDE)) for label in labels], loc="outside right center")
    else:
        columns = entries if sum(map(len, labels)) <= ROW else 1
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _labelled(axes: Axes) -> tuple[list[Line2D], list[str]]:
    """The lines that were given a label, with these. Matplotlib itself leaves out a name that begins with ``_``, as its
    own labels of lines without one do.
    """
    lines = [line for line in axes.lines if not OWN_LABEL.fullmatch(str(line.get_label()))]
    return lines, [str(line.get_label()) for line in lines]
