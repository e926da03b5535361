"""The figures of the page, each with its numbers as a table; the runs of a page share them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING

from mrt_hpc.analysis import plots
from mrt_hpc.analysis.estimates import majority_estimates, mean_of, pass_estimates
from mrt_hpc.analysis.measures import Phase
from mrt_hpc.analysis.number_formats import number
from mrt_hpc.analysis.page.content import Column, Plot, Table
from mrt_hpc.analysis.plots import PhaseTimes, Series
from mrt_hpc.analysis.report_figures import LEAST_ITERATIONS, progress_stages, series_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mrt_hpc.analysis.intervals import IntervalEstimate
    from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
    from mrt_hpc.analysis.page.content import RunRecord
    from mrt_hpc.analysis.plots import Target


def result_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    """Accuracy against training, regret against the budget, and pass@k and maj@k against the samples, where they are
    measured.
    """
    return tuple(filter(None, (_accuracy(records), _regret(records), _scaling(records), _votes(records))))


def learning_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    """The measures of every iteration."""
    curves = (_curve(records, curve) for curve in _CURVES)
    return tuple(filter(None, (*curves, _quality(records))))


def _accuracy(records: Sequence[RunRecord]) -> Plot | None:
    lines = [
        Series(
            labelled(records, record, benchmark),
            tuple(float(one.version) for one in versions),
            tuple(one.accuracy for one in versions),
            tuple(one.low for one in versions),
            tuple(one.high for one in versions),
        )
        for record, benchmark, versions in _evaluated(records)
        if record.trained
    ]
    caption = "pass@1 of each evaluated weights version, with its 95 % interval over problems."
    return plotted("Accuracy", caption, "weights version", lines, plots.accuracy_by_iteration)


def _regret(records: Sequence[RunRecord]) -> Plot | None:
    lines = []
    for label, group in _compared_versions(records):
        budgets = sorted(set.intersection(*(set(one.regret) for one in group)))
        means = [mean_of(*(one.regret[budget] for one in group)) for budget in budgets]
        lines.append(series_of(label, budgets, means))
    caption = (
        f"Normalised regret at each budget of tokens{_ends(records)}, with 95 % intervals over problems: lower is "
        "better."
    )
    return _compared("Regret", caption, "budget (tokens)", "normalised regret", [line for line in lines if line.x])


def _scaling(records: Sequence[RunRecord]) -> Plot | None:
    caption = f"pass@k against the number of samples k, unbiased{_ends(records)}, with 95 % intervals over problems."
    return _by_samples(records, "Scaling with samples", "pass@k", caption, pass_estimates)


def _votes(records: Sequence[RunRecord]) -> Plot | None:
    caption = (
        f"maj@k, the chance that a vote of k samples is right, against k{_ends(records)}, with 95 % intervals over "
        "problems."
    )
    return _by_samples(records, "Votes of samples", "maj@k", caption, majority_estimates)


def _by_samples(
    records: Sequence[RunRecord],
    title: str,
    measure: str,
    caption: str,
    estimates: Callable[..., Mapping[int, IntervalEstimate]],
) -> Plot | None:
    lines = []
    for label, group in _compared_versions(records):
        found = estimates(*group)
        lines.append(series_of(label, found, [*found.values()]))

    def draw(target: Target, drawn: Sequence[Series]) -> None:
        plots.by_samples(target, title, f"{measure} (mean; bands: 95 % interval)", drawn)

    return plotted(title, caption, "samples k", [line for line in lines if len(line.x) > 1], draw)


def _ends(records: Sequence[RunRecord]) -> str:
    """Words for a caption that tell which versions of a run are shown."""
    return ", first and last version" if any(record.trained for record in records) else ""


def _compared_versions(records: Sequence[RunRecord]) -> Iterator[tuple[str, list[EvaluationSummary]]]:
    """The first and the last version of each run with a label: one benchmark each, or the mean of more than two."""
    for record in records:
        groups = [versions for one, _, versions in _evaluated(records) if one is record]
        together = [groups] if len(groups) > 2 else [[versions] for versions in groups]
        for benchmarks in together:
            shared = set.intersection(*({one.version for one in versions} for versions in benchmarks))
            name = benchmarks[0][0].benchmark if len(benchmarks) == 1 else f"mean of {len(benchmarks)} benchmarks"
            for version in sorted({min(shared), max(shared)} if shared else shared):
                members = [one for versions in benchmarks for one in versions if one.version == version]
                yield labelled(records, record, f"{name}, version {version}" if record.trained else name), members


def progress_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    """Progress by episode: of one run from early to late, of several at the end of each."""
    lines = []
    for record in records:
        measured = [m for m in record.summary.iterations if m.progress_by_episode]
        if measured:
            stages = progress_stages(measured)
            shown = stages if len(records) == 1 else stages[-1:]
            lines += [replace(s, label=labelled(records, record, s.label)) for s in shown]
    caption = (
        "Mean progress V(j+1) − V(j) of the j-th episode over the traces that have one, by stage of training. The 95 % "
        f"intervals are over the iterations of a stage, where it has {LEAST_ITERATIONS} or more."
    )
    draw = plots.progress_by_episode if len(records) == 1 else plots.progress_compared
    return tuple(filter(None, [plotted("Progress by episode in training", caption, "episode", lines, draw)]))


def time_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    """The wall time of every iteration by phase, a figure a run."""
    return tuple(filter(None, (_time(records, record) for record in records)))


def _time(records: Sequence[RunRecord], record: RunRecord) -> Plot | None:
    timed = [m for m in record.summary.iterations if any(m.seconds.values())]
    phases = [phase for phase in Phase if any(m.seconds.get(phase) for m in timed)]
    numbers = tuple(m.iteration for m in timed)
    seconds = {phase: tuple(m.seconds.get(phase, 0.0) for m in timed) for phase in phases}
    lines = [Series(phase.value, tuple(map(float, numbers)), seconds[phase]) for phase in phases]
    draw = plots.time_by_phase if len(timed) <= plots.MOST_BARS else plots.time_areas
    caption = "Wall time of each iteration in seconds, by what the run was doing."
    title = labelled(records, record, "Time by phase")
    return plotted(title, caption, "iteration", lines, lambda target, _: draw(target, PhaseTimes(numbers, seconds)))


def _quality(records: Sequence[RunRecord]) -> Plot | None:
    lines = []
    for record in records:
        for name in sorted({name for m in record.summary.iterations for name in m.quality}):
            found = [(m.iteration, m.quality.get(name)) for m in record.summary.iterations]
            lines.append(_line(labelled(records, record, name.replace("_", " ")), found))
    caption = "Shares of the traces that the reward alone does not show."
    return plotted("Quality of the traces", caption, "iteration", lines, plots.quality_by_iteration)


def _curve(records: Sequence[RunRecord], curve: _Curve) -> Plot | None:
    lines = []
    for record in records:
        for name, value in curve.measures.items():
            found = [(m.iteration, value(m)) for m in record.summary.iterations]
            label = labelled(records, record, name) if len(curve.measures) > 1 else labelled(records, record, "", name)
            lines.append(_line(label, found))
    lines = [line for line in lines if line.x]

    def draw(target: Target, drawn: Sequence[Series]) -> None:
        plots.trends(target, curve.title, curve.unit, drawn, percent=curve.percent)

    return plotted(curve.title, curve.caption, "iteration", lines, draw)


def _line(label: str, found: Sequence[tuple[int, float | None]]) -> Series:
    """A line over the iterations that have its measure."""
    points = [(float(x), y) for x, y in found if y is not None]
    return Series(label, tuple(x for x, _ in points), tuple(y for _, y in points))


@dataclass(frozen=True)
class _Curve:
    """A figure of measures against iterations."""

    title: str
    unit: str
    caption: str
    measures: Mapping[str, Callable[[IterationMetrics], float | None]]
    percent: bool = False


_CURVES = (
    _Curve(
        "Reward", "mean reward", "Mean reward of the rollouts of each iteration.", {"reward": lambda m: m.reward_mean}
    ),
    _Curve(
        "Likelihood",
        "nats a token",
        "Mean negative log-likelihood of the learnt tokens, where given samples are learnt.",
        {"negative log-likelihood": lambda m: m.trainer.get("nll") if m.reward_mean is None else None},
    ),
    _Curve(
        "Length of the rollouts",
        "tokens per rollout (mean)",
        "Mean length of a trace with its answer.",
        {"tokens": lambda m: m.tokens_per_rollout},
    ),
    _Curve(
        "Answers",
        "share",
        "Shares of the rollouts in which an answer was found and that the token limit cut off, and of the groups whose "
        "rewards differ.",
        {
            "answered": lambda m: m.answered_share,
            "cut off": lambda m: m.truncated_share,
            "groups with a signal": lambda m: m.signal_share,
        },
        percent=True,
    ),
    _Curve(
        "Error of progress",
        "standard error",
        "Standard error of one progress value, as its branches tell it.",
        {"error of progress": lambda m: m.progress_error},
    ),
    _Curve("Entropy", "nats a token", "Entropy of the policy.", {"entropy": lambda m: m.entropy}),
    _Curve(
        "Divergence",
        "nats a token",
        "KL divergence to the reference policy.",
        {"KL to the reference": lambda m: m.kl_reference},
    ),
    _Curve("Gradient norm", "norm", "Norm of the gradient before clipping.", {"gradient norm": lambda m: m.grad_norm}),
)


# -- from lines to a figure with its table


def labelled(records: Sequence[RunRecord], record: RunRecord, text: str, alone: str = "") -> str:
    """A label that names its run where there are several; ``alone`` is the label of a single run without a text."""
    if len(records) == 1:
        return text or alone
    return f"{record.name}: {text}" if text else record.name


def _evaluated(records: Sequence[RunRecord]) -> Iterator[tuple[RunRecord, str, list[EvaluationSummary]]]:
    for record in records:
        for benchmark, versions in groupby(record.summary.evaluations, lambda one: one.benchmark):
            yield record, benchmark, list(versions)


def _compared(title: str, caption: str, x_label: str, y_label: str, lines: Sequence[Series]) -> Plot | None:
    def draw(target: Target, drawn: Sequence[Series]) -> None:
        plots.compared(target, title, x_label, y_label, drawn)

    return plotted(title, caption, x_label, lines, draw)


def plotted(
    title: str, caption: str, x_label: str, lines: Sequence[Series], draw: Callable[[Target, Sequence[Series]], None]
) -> Plot | None:
    """A figure of lines with all their points as a table; None where there are none.

    Args:
        title: its heading.
        caption: what stands below it.
        x_label: what the table calls the horizontal axis.
        lines: of the figure.
        draw: draws them into a target.
    """
    if not any(line.x for line in lines):
        return None
    buffer = BytesIO()
    draw(buffer, lines)
    view_box, drawing = inlined(buffer.getvalue().decode())
    return Plot(title, caption, described(title, lines), view_box, drawing, series_table(title, x_label, lines))


def inlined(svg: str) -> tuple[str, str]:
    """Return the view box of an SVG file and the content of its root element, without the names of its groups: figures
    of one page would share them.
    """
    root = svg[svg.index("<svg") :]
    head, _, body = root.partition(">")
    found = re.search(r'viewBox="([^"]+)"', head)
    if found is None:
        raise ValueError("the figure has no view box")
    content = body[: body.rindex("</svg>")]
    content = re.sub(r"<metadata>.*?</metadata>", "", content, flags=re.DOTALL)
    return found[1], re.sub(r' id="[A-Za-z.]+\w*_\d+"', "", content)


def described(title: str, lines: Sequence[Series]) -> str:
    """A sentence for readers who do not see a figure: where each of its lines begins and ends."""
    ends = [f"{line.label} from {number(line.y[0])} to {number(line.y[-1])}" for line in lines[:8] if line.y]
    more = f"; and {len(lines) - 8} more lines" if len(lines) > 8 else ""
    return f"{title}: {'; '.join(ends)}{more}. The table below has all values."


def series_table(title: str, x_label: str, lines: Sequence[Series]) -> Table:
    """All points of a figure: a row each x, a column each line."""
    columns = [Column(x_label)]
    cells: list[dict[float, str]] = []
    for line in lines:
        columns.append(Column(line.label))
        cells.append(dict(zip(line.x, _written(line), strict=True)))
    places = sorted({x for line in lines for x in line.x})
    rows = tuple((f"{x:g}", *(column.get(x, "–") for column in cells)) for x in places)
    return Table(f"{title}: all values", tuple(columns), rows, folded=True)


def _written(line: Series) -> list[str]:
    if line.low is None or line.high is None:
        return [number(y) for y in line.y]
    return [
        f"{number(y)} ({number(low)} to {number(high)})" if math.isfinite(low) else number(y)
        for y, low, high in zip(line.y, line.low, line.high, strict=True)
    ]
