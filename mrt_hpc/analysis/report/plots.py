"""The figures of a report, each with its numbers as a table; those with a file's name are in ``report.md`` too."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mrt_hpc.analysis.episode_progress import FEW_PROBLEMS, frequent_episodes
from mrt_hpc.analysis.figures import Line, LineFigure, Panel, line_of
from mrt_hpc.analysis.findings import Curve, Point
from mrt_hpc.analysis.intervals import IntervalEstimate, clustered_mean
from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics, Phase
from mrt_hpc.analysis.number_formats import DASH, count, number, percent
from mrt_hpc.analysis.report.content import Column, Plot, PrefixCurves, RunRecord, Table
from mrt_hpc.analysis.rows import (
    accuracy_of,
    bare_mean,
    group_by_benchmark,
    majority_estimates,
    mean_of,
    pass_estimates,
)

MOST_STAGES = 5
"""Lines in the figure of progress by episode."""
LEAST_ITERATIONS = 3
"""Means over fewer iterations have no interval: it would fill the figure."""
PHASE_COLOURS = {
    Phase.GENERATION: 0,
    Phase.GRADING: 4,
    Phase.WAITING: 6,
    Phase.LOADING: 3,
    Phase.OPTIMISATION: 1,
    Phase.CHECKPOINT: 2,
    Phase.PUBLISHING: 7,
}


# -- results


def result_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    return (*_accuracy(records), *_regret(records), *_sample_scaling_plots(records), *_votes_by_tokens(records))


def _accuracy(records: Sequence[RunRecord]) -> list[Plot]:
    lines = [
        line_of(line_label(records, record.curve_name, benchmark), [e.version for e in group], map(accuracy_of, group))
        for record in records
        if record.is_run
        for benchmark, group in group_by_benchmark(record.summary.evaluations).items()
    ]
    caption = "pass@1 of each evaluated weights version, with its 95 % interval over problems."
    names = ("iterations of training", "pass@1 (mean, 95 % interval)")
    return make_plots(
        "Accuracy", caption, *names, lines, "accuracy", kind="error bars", percent=True, whole_numbers=True
    )


def _regret(records: Sequence[RunRecord]) -> list[Plot]:
    lines = []
    for label, group in _compared_versions(records):
        budgets = sorted(set.intersection(*(set(evaluation.regret) for evaluation in group)))
        regrets = [mean_of(*(evaluation.regret[budget] for evaluation in group)) for budget in budgets]
        lines.append(line_of(label, budgets, regrets))
    caption = (
        f"Normalised regret at each budget of tokens{_ends(records)}, with 95 % intervals over problems: lower is "
        "better."
    )
    return make_plots("Regret", caption, "budget (tokens)", "normalised regret", [line for line in lines if line.x])


def _sample_scaling_plots(records: Sequence[RunRecord]) -> Iterator[Plot]:
    over = f"{_ends(records)}, with 95 % intervals over problems."
    passes = f"pass@k against the number of samples k, unbiased{over}"
    votes = f"maj@k, the chance that a vote of k samples is right, against k{over}"
    measures: tuple[tuple[str, str, str, Callable[..., Mapping[int, IntervalEstimate]]], ...] = (
        ("Scaling with samples", "pass@k", passes, pass_estimates),
        ("Votes of samples", "maj@k", votes, majority_estimates),
    )
    for title, measure, caption, estimates in measures:
        labelled_estimates = [(label, estimates(*group)) for label, group in _compared_versions(records)]
        lines = [line_of(label, by_k, by_k.values()) for label, by_k in labelled_estimates if len(by_k) > 1]
        names = ("samples k", f"{measure} (mean; bands: 95 % interval)")
        yield from make_plots(title, caption, *names, lines, percent=True, logarithmic=True, marks_at_points=True)


def _ends(records: Sequence[RunRecord]) -> str:
    return ", first and last version" if any(record.is_run for record in records) else ""


def _compared_versions(records: Sequence[RunRecord]) -> Iterator[tuple[str, list[EvaluationSummary]]]:
    """One benchmark each, or the mean of more than two; each with a label."""
    for record in records:
        groups = list(group_by_benchmark(record.summary.evaluations).values())
        together = [groups] if len(groups) > 2 else [[versions] for versions in groups]
        for benchmarks in together:
            shared = set.intersection(*({evaluation.version for evaluation in versions} for versions in benchmarks))
            name = benchmarks[0][0].benchmark if len(benchmarks) == 1 else f"mean of {len(benchmarks)} benchmarks"
            for version in sorted({min(shared), max(shared)} if shared else shared):
                members = [each for versions in benchmarks for each in versions if each.version == version]
                text = _version_label(name, record, version)
                yield line_label(records, record.curve_name, text), members


# -- votes against tokens: of one run the last evaluated version and, for comparison, the first one; of several the last


def _votes_by_tokens(records: Sequence[RunRecord]) -> Iterator[Plot]:
    voted = dict.fromkeys(curves.benchmark for record in records for curves in record.prefixes if curves.votes)
    for benchmark in voted:
        votes = [*_prefix_votes(records, benchmark), *_complete(records, benchmark)]
        title = f"Scaling with tokens: {benchmark}"
        caption = (
            "Accuracy of a vote of p answers that are forced after j episodes, [maj@p]_j, and of k complete samples, "
            "against the tokens that this takes, with 95 % intervals over problems; the figure shows those of the "
            "largest p and of complete samples. Where thinking helps, votes at later prefixes are more accurate, also "
            "than votes of complete samples of as many tokens."
        )
        names = ("tokens (logarithmic)", "accuracy (mean; bands: 95 % interval)")
        rows = tuple(
            (curve.model, count(point.index), count(round(point.x)), point.estimate.text(percent))
            for curve, _ in votes
            for point in curve.points
        )
        columns = map(Column, ("vote", "episodes j or samples k", "tokens", "accuracy (95 % interval)"))
        table = Table(f"{title}: all values", tuple(columns), rows, folded=True)
        lines = [curve.line(**look) for curve, look in votes]
        yield from make_plots(title, caption, *names, lines, table=table, percent=True, logarithmic=True)


Vote = tuple[Curve, dict[str, Any]]
"""The accuracy of a vote at j episodes, or k samples, and their tokens; and the look of its line."""


def _prefix_votes(records: Sequence[RunRecord], benchmark: str) -> Iterator[Vote]:
    """All votes of a single run, and the largest one of its first version; of several runs the largest that all have.
    Only that has intervals: others would hide each other.
    """
    shown = [(record, curves) for record, curves in _shown_curves(records, benchmark) if curves.votes]
    if not shown:
        return
    shared = set.intersection(*({curve.voters or 0 for curve in curves.votes} for _, curves in shown))
    for record, curves in shown:
        is_last = curves is shown[-1][1]
        for curve in curves.votes:
            most = curve.voters == max(shared, default=0)
            if most or (len(records) == 1 and is_last):
                label = line_label(records, record.name, _version_label(curve.way, record, curves.version))
                yield Curve((label,), curve.points), {"band": (most and is_last) or len(records) > 1}


def _complete(records: Sequence[RunRecord], benchmark: str) -> Iterator[Vote]:
    for record in records:
        for evaluation in group_by_benchmark(record.summary.evaluations).get(benchmark, [])[-1:]:
            estimates, tokens = majority_estimates(evaluation), evaluation.tokens_per_rollout
            if tokens is not None and estimates:
                text = _version_label("maj@k of complete samples", record, evaluation.version)
                points = tuple(Point((k, k * tokens), given=estimate) for k, estimate in estimates.items())
                yield Curve((line_label(records, record.name, text),), points), {"dash": "dashed"}


def _version_label(text: str, record: RunRecord, version: int) -> str:
    return f"{text}, version {version}" if record.is_run else text


def _shown_curves(records: Sequence[RunRecord], benchmark: str) -> Iterator[tuple[RunRecord, PrefixCurves]]:
    """The last version of each record, and before it the first one where there is a single record."""
    for record in records:
        of_benchmark = [curves for curves in record.prefixes if curves.benchmark == benchmark]
        yield from ((record, curves) for curves in (of_benchmark if len(records) == 1 else of_benchmark[-1:]))


# -- progress by episode


def progress_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    """One run is shown from early to late, several at the end of each."""
    lines = []
    for record in records:
        measured = [m for m in record.summary.iterations if m.progress_by_episode]
        if measured:
            stages = progress_stages(measured)
            shown = stages if len(records) == 1 else [replace(stages[-1], age=None)]
            lines += [replace(s, label=line_label(records, record.curve_name, s.label)) for s in shown]
    caption = (
        "Mean progress V(j+1) − V(j) of the j-th episode over the traces that have one, by stage of training. The 95 % "
        f"intervals are over the iterations of a stage, where it has {LEAST_ITERATIONS} or more."
    )
    return tuple(_progress("Progress by episode in training", caption, lines, name="progress"))


def progress_stages(iterations: Sequence[IterationMetrics]) -> list[Line]:
    """Mean progress by episode index over up to ``MOST_STAGES`` equal stages of training; intervals are over the
    iterations of a stage, each of which has other problems.
    """
    stages = np.array_split(np.arange(len(iterations)), min(MOST_STAGES, len(iterations)))
    lines = [_progress_stage([iterations[i] for i in stage]) for stage in stages]
    return [replace(line, age=n / (len(lines) - 1)) for n, line in enumerate(lines)] if len(lines) > 1 else lines


def _progress_stage(members: Sequence[IterationMetrics]) -> Line:
    longest = max(len(metrics.progress_by_episode) for metrics in members)
    by_episode = [[m.progress_by_episode[j] for m in members if j < len(m.progress_by_episode)] for j in range(longest)]
    first, last = members[0].iteration, members[-1].iteration
    label = f"iteration {first}" if first == last else f"iterations {first}–{last}"
    return line_of(label, range(longest), map(_mean_of_iterations, by_episode))


def _mean_of_iterations(means: Sequence[float]) -> IntervalEstimate:
    if len(means) < LEAST_ITERATIONS:
        return bare_mean(float(np.mean(means)))
    return clustered_mean([[mean] for mean in means])


def prefix_progress_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    named = dict.fromkeys(curves.benchmark for record in records for curves in record.prefixes if curves.progress)
    return tuple(plot for benchmark in named for plot in _evaluated_progress(records, benchmark))


def _evaluated_progress(records: Sequence[RunRecord], benchmark: str) -> list[Plot]:
    every: list[Line] = []
    frequent: list[Line] = []
    for record, curves in _shown_curves(records, benchmark):
        if not curves.progress:
            continue
        version = f"version {curves.version}" if record.is_run else ""
        label = line_label(records, record.curve_name, version, record.name)
        least = min(FEW_PROBLEMS, curves.problems)  # a later episode has as many problems, or fewer
        every.append(Curve((label,), curves.progress).line())
        frequent.append(Curve((label,), frequent_episodes(curves.progress, least)).line())
    caption = (
        "Mean progress V(j+1) − V(j) of the j-th episode over the evaluated traces that have one, with 95 % intervals "
        f"clustered by problem. Episodes of fewer than {FEW_PROBLEMS} problems are in the table alone."
    )
    title = f"Progress by episode: {benchmark}"
    return _progress(title, caption, frequent, table=series_table(title, "episode j", average_seeds(every)))


def _progress(title: str, caption: str, lines: Sequence[Line], **more: Any) -> list[Plot]:
    y_label = "mean progress V(j+1) − V(j)"
    return make_plots(title, caption, "episode j", y_label, lines, level=0.0, whole_numbers=True, **more)


# -- iterations


def learning_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    return (*(plot for curve in _CURVES for plot in _curve(records, curve)), *_quality(records))


def _quality(records: Sequence[RunRecord]) -> list[Plot]:
    lines = [
        _trend(
            line_label(records, record.curve_name, name.replace("_", " ")),
            {m.iteration: m.quality.get(name) for m in record.summary.iterations},
        )
        for record in records
        for name in sorted({name for m in record.summary.iterations for name in m.quality})
    ]
    caption = "Shares of the traces that the reward alone does not show."
    return _trends("Quality of the traces", caption, "share of the traces", lines, "quality", percent=True)


def _curve(records: Sequence[RunRecord], curve: "_Curve") -> list[Plot]:
    lines = []
    for record in records:
        for name, value in curve.measures.items():
            text, alone = (name, "") if len(curve.measures) > 1 else ("", name)
            label = line_label(records, record.curve_name, text, alone)
            lines.append(_trend(label, {m.iteration: value(m) for m in record.summary.iterations}))
    lines = [line for line in lines if line.x]
    return _trends(curve.title, curve.caption, curve.unit, lines, curve.name, percent=curve.percent)


def _trends(title: str, caption: str, y_label: str, lines: Sequence[Line], name: str, *, percent: bool) -> list[Plot]:
    return make_plots(
        title, caption, "iteration", y_label, lines, name, kind="trends", percent=percent, whole_numbers=True
    )


def _trend(label: str, measured: Mapping[int, float | None]) -> Line:
    points = {iteration: value for iteration, value in measured.items() if value is not None}
    return line_of(label, points, map(bare_mean, points.values()))


@dataclass(frozen=True)
class _Curve:
    title: str
    unit: str
    caption: str
    measures: Mapping[str, Callable[[IterationMetrics], float | None]]
    percent: bool = False
    name: str = ""


_CURVES = (
    _Curve(
        "Reward",
        "mean reward",
        "Mean reward of the rollouts of each iteration.",
        {"reward": lambda m: m.reward_mean},
        name="reward",
    ),
    _Curve(
        "Likelihood",
        "nats a token",
        "Mean negative log-likelihood of the learnt tokens, where given samples are learnt.",
        {"negative log-likelihood": lambda m: m.trainer.get("nll") if m.reward_mean is None else None},
        name="likelihood",
    ),
    _Curve(
        "Length of the rollouts",
        "tokens per rollout (mean)",
        "Sampled tokens of a rollout with its answer; of one that begins with a prefix, those after it.",
        {"tokens": lambda m: m.tokens_per_rollout},
        name="tokens",
    ),
    _Curve(
        "Answers",
        "share",
        "Shares of the rollouts in which an answer was found and that the token limit cut off, and of the groups of "
        "which the algorithm learns something.",
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
        "Standard error of one progress value, by its branches.",
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


def time_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    return tuple(plot for record in records for plot in _time(records, record))


def _time(records: Sequence[RunRecord], record: RunRecord) -> list[Plot]:
    timed = [m for m in record.summary.iterations if any(m.seconds.values())]
    iterations = [metrics.iteration for metrics in timed]
    lines = [
        replace(line_of(phase, iterations, (bare_mean(m.seconds.get(phase, 0.0)) for m in timed)), colour=colour)
        for phase, colour in PHASE_COLOURS.items()
        if any(m.seconds.get(phase) for m in timed)
    ]
    caption = "Wall time of each iteration in seconds, by what the run was doing."
    title = line_label(records, record.name, "Time by phase")
    return make_plots(title, caption, "iteration", "wall time (s)", lines, "time", kind="stack", whole_numbers=True)


# -- from lines to a figure with its table


def line_label(records: Sequence[RunRecord], name: str, text: str, alone: str = "") -> str:
    """The label names the run or arm where there are several; ``alone`` is for a single run without a text."""
    if len(records) == 1:
        return text or alone
    return f"{name}: {text}" if text else name


OVER_SEEDS = (
    "A line of an arm is the mean of its runs, with the range from the lowest to the highest of them in place of an "
    "interval."
)


def average_seeds(lines: Iterable[Line]) -> list[Line]:
    """Lines with the same label, the runs of an arm, become one: their mean where all have a value, with the range of
    the runs, since an interval over two or three seeds would fill the figure.
    """
    of_arms: dict[str, list[Line]] = {}
    for line in lines:
        of_arms.setdefault(line.label, []).append(line)
    return [_mean_line(runs) if len(runs) > 1 else runs[0] for runs in of_arms.values()]


def _mean_line(runs: Sequence[Line]) -> Line:
    values = [dict(zip(line.x, line.means, strict=True)) for line in runs]
    shared = sorted(set(values[0]).intersection(*values))
    at = [[of_run[x] for of_run in values] for x in shared]
    ranges = (IntervalEstimate(float(np.mean(here)), min(here), max(here)) for here in at)
    return replace(runs[0], x=tuple(shared), y=tuple(ranges))


def make_plots(
    title: str,
    caption: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    name: str = "",
    table: Table | None = None,
    **look: Any,
) -> list[Plot]:
    """A plot; none without points.

    Args:
        lines: those with the same label become one, see ``average_seeds``.
        name: of its file; without one only the page shows it.
        table: in place of one with a row for each x.
        look: further fields of its panel.
    """
    drawn = average_seeds(lines)
    if not any(line.x for line in drawn):
        return []
    if len(drawn) < len(lines):
        caption = f"{caption} {OVER_SEEDS}"
    figure = LineFigure(name, (Panel(title, x_label, y_label, tuple(drawn), **look),))
    return [Plot(caption, figure, table or series_table(title, x_label, drawn))]


def series_table(title: str, x_label: str, lines: Sequence[Line]) -> Table:
    """The table has a row each x and a column each line."""
    cells = [dict(zip(line.x, (y.text(number) for y in line.y), strict=True)) for line in lines]
    places = sorted({x for line in lines for x in line.x})
    rows = tuple((f"{x:g}", *(column.get(x, DASH) for column in cells)) for x in places)
    columns = (Column(x_label), *(Column(line.label) for line in lines))
    return Table(f"{title}: all values", columns, rows, folded=True)
