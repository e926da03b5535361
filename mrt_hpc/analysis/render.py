"""The report of a run: ``report.md`` and its figures, from a ``RunSummary``.

The module decides the content and its order: outcome, evaluation, training, cost, set-up. A run
that is cut short or not evaluated gets a report as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jinja2
import numpy as np

from mrt_hpc.analysis import plots
from mrt_hpc.analysis.estimates import (
    majority_estimates,
    mean_of,
    pass_estimates,
    stage_estimates,
    without_interval,
)
from mrt_hpc.analysis.intervals import IntervalEstimate, clustered_mean, mean_paired_difference, paired_difference
from mrt_hpc.analysis.measures import (
    EvaluationSummary,
    IterationMetrics,
    Phase,
    RunSummary,
    few_answers,
    several_graders,
)
from mrt_hpc.analysis.plots import PhaseTimes, Series
from mrt_hpc.mrt.votes import RULE
from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

MOST_ROWS = 12
"""Rows of the training table: the first, the last, and others evenly between."""
MOST_STAGES = 5
"""Lines in the figure of progress by episode."""
LEAST_ITERATIONS = 3
"""A mean over fewer iterations than this has no interval: it would fill the figure."""
DASH = "–"
VOTES = f"maj@k is the chance that a vote of k samples is right: {RULE.removeprefix('votes: ')}."
"""What a table of maj@k says of its votes."""


@dataclass(frozen=True)
class EvaluationRow:
    """One line of the evaluation table."""

    evaluation: EvaluationSummary
    difference: IntervalEstimate | None
    """Gain over the first evaluated version, paired by problem; None for that version itself, and where the problems
    are not the same."""
    baseline: int
    """The version compared with."""


@dataclass(frozen=True)
class MeanRow:
    """The mean over several benchmarks, of one version evaluated on all of them."""

    version: int
    accuracy: IntervalEstimate
    difference: IntervalEstimate | None
    """As in EvaluationRow."""


@dataclass(frozen=True)
class RegretRow:
    """One line of the table of regret."""

    benchmark: str
    version: int
    budget: int
    """Tokens."""
    counted: str
    """Which tokens count."""
    regret: IntervalEstimate
    difference: IntervalEstimate | None
    """As in EvaluationRow; below zero is better."""


@dataclass(frozen=True)
class FigureFile:
    """A figure that was drawn."""

    title: str
    path: str
    """Relative to the report."""
    caption: str


def write_report(summary: RunSummary, directory: Path) -> Path:
    """Write ``report.md`` and ``plots/*.png`` into ``directory``; the report last, so that its figures are there.

    Args:
        summary: all values that the report shows.
        directory: the run directory.

    Returns:
        The path of the report.
    """
    figures = draw_figures(summary, directory / "plots")
    path = directory / "report.md"
    write_text(path, render(summary, figures))
    return path


def templates() -> jinja2.Environment:
    """The templates of reports in Markdown, with the filters that write their numbers."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mrt_hpc.analysis"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown, not HTML: cells are escaped by the filter
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        cell=cell, percent=percent, points=points, interval=interval, number=number, count=count, duration=duration,
        share=share_text, decimal=decimal_text, passes=pass_estimates, majorities=majority_estimates,
        by_stage=stage_estimates,
    )  # fmt: skip
    environment.globals["votes"] = VOTES
    return environment


def render(summary: RunSummary, figures: Sequence[FigureFile]) -> str:
    """The report as Markdown."""
    rows = evaluation_rows(summary.evaluations)
    return (
        templates()
        .get_template("report.md.j2")
        .render(
            summary=summary,
            rows=rows,
            outcomes=outcomes(rows),
            means=mean_rows(summary.evaluations),
            regrets=regret_rows(summary.evaluations),
            sampled=sample(summary.iterations, MOST_ROWS),
            phases=phase_totals(summary.iterations),
            figures=figures,
            few_answers=last_few_answers(summary),
            mixed_verdicts=mixed_verdicts(summary),
        )
    )


def last_few_answers(summary: RunSummary) -> str | None:
    """The warning of the last iteration, or else of the last evaluation, where nearly no trace has an answer."""
    training = [few_answers(m.answered_share, f"iteration {m.iteration}") for m in summary.iterations[-1:]]
    evaluations = [
        few_answers(e.answered_share, f"version {e.version} on {e.benchmark}") for e in summary.evaluations[-1:]
    ]
    return next((warning for warning in (*training, *evaluations) if warning), None)


def mixed_verdicts(summary: RunSummary) -> list[str]:
    """A warning for each evaluation whose samples several graders have judged."""
    found = (several_graders(e.graders, f"version {e.version} on {e.benchmark}") for e in summary.evaluations)
    return [warning for warning in found if warning is not None]


def evaluation_rows(evaluations: Sequence[EvaluationSummary]) -> list[EvaluationRow]:
    """All evaluations by benchmark and version, each with its gain over the benchmark's first version."""
    rows = []
    for versions in _by_benchmark(evaluations).values():
        first = versions[0]
        for evaluation in versions:
            same_problems = evaluation.per_problem.keys() == first.per_problem.keys() and len(first.per_problem) > 0
            compared = evaluation is not first and same_problems
            gain = paired_difference(first.per_problem, evaluation.per_problem) if compared else None
            rows.append(EvaluationRow(evaluation, gain, first.version))
    return rows


def mean_rows(evaluations: Sequence[EvaluationSummary]) -> list[MeanRow]:
    """The mean over benchmarks of the versions evaluated on all of them; empty for fewer than two benchmarks."""
    groups = list(_by_benchmark(evaluations).values())
    if len(groups) < 2:
        return []
    by_version = [{one.version: one for one in group} for group in groups]
    shared = sorted(set.intersection(*(set(versions) for versions in by_version)))
    rows = []
    for version in shared:
        firsts = [versions[shared[0]] for versions in by_version]
        these = [versions[version] for versions in by_version]
        pairs = [(first.per_problem, this.per_problem) for first, this in zip(firsts, these, strict=True)]
        compared = version != shared[0] and all(before and before.keys() == after.keys() for before, after in pairs)
        gain = mean_paired_difference(pairs) if compared else None
        rows.append(MeanRow(version, mean_of(*(one.per_problem for one in these)), gain))
    return [row for row in rows if row.difference or row.version == shared[0]]


def regret_rows(evaluations: Sequence[EvaluationSummary]) -> list[RegretRow]:
    """Normalised regret by benchmark, budget and version, each with its change from the benchmark's first version."""
    rows = []
    for versions in _by_benchmark(evaluations).values():
        for budget in sorted({budget for evaluation in versions for budget in evaluation.regret}):
            valued = [evaluation for evaluation in versions if evaluation.regret.get(budget)]
            for evaluation in valued:
                first, this = valued[0].regret[budget], evaluation.regret[budget]
                alike = this.keys() == first.keys() and evaluation.regret_tokens == valued[0].regret_tokens
                compared = evaluation is not valued[0] and alike
                change = paired_difference(first, this) if compared else None
                counted = evaluation.regret_tokens
                rows.append(RegretRow(evaluation.benchmark, evaluation.version, budget, counted, mean_of(this), change))
    return rows


def outcomes(rows: Sequence[EvaluationRow]) -> list[EvaluationRow]:
    """The last comparable version of each benchmark."""
    return list({row.evaluation.benchmark: row for row in rows if row.difference is not None}.values())


def phase_totals(iterations: Sequence[IterationMetrics]) -> list[tuple[Phase, float, float]]:
    """(phase, seconds, share of all phases) of the phases that took time, in the order of work."""
    totals = [(phase, sum(metrics.seconds.get(phase, 0.0) for metrics in iterations)) for phase in Phase]
    whole = sum(seconds for _, seconds in totals)
    return [(phase, seconds, seconds / whole) for phase, seconds in totals if seconds > 0]


def sample(iterations: Sequence[IterationMetrics], most: int) -> list[IterationMetrics]:
    """At most ``most`` of the iterations, the first and the last among them, evenly spaced."""
    if len(iterations) <= most:
        return list(iterations)
    return [iterations[round(i)] for i in np.linspace(0, len(iterations) - 1, most)]


# -- figures ----------------------------------------------------------------------------------------------------------


def draw_figures(summary: RunSummary, directory: Path) -> list[FigureFile]:
    """Draw every figure that there are numbers for into ``directory``."""
    drawn = []
    for name, title, caption, draw in _FIGURES:
        if draw(directory / f"{name}.png", summary):
            drawn.append(FigureFile(title, f"{directory.name}/{name}.png", caption))
    return drawn


def _accuracy(path: Path, summary: RunSummary) -> bool:
    lines = [
        Series(
            benchmark,
            tuple(float(one.version) for one in versions),
            tuple(one.accuracy for one in versions),
            tuple(one.low for one in versions),
            tuple(one.high for one in versions),
        )
        for benchmark, versions in _by_benchmark(summary.evaluations).items()
    ]
    if lines:
        plots.accuracy_by_iteration(path, lines)
    return bool(lines)


def _reward(path: Path, summary: RunSummary) -> bool:
    rewards = _metric("reward", summary.iterations, lambda m: m.reward_mean)
    if rewards.x:
        plots.reward_by_iteration(path, rewards)
    return bool(rewards.x)


def _likelihood(path: Path, summary: RunSummary) -> bool:
    """Where given samples are learnt: how well the policy knows them."""
    learnt = [m for m in summary.iterations if m.reward_mean is None]
    losses = _metric("negative log-likelihood", learnt, lambda m: m.trainer.get("nll"))
    if losses.x:
        plots.likelihood_by_iteration(path, losses)
    return bool(losses.x)


def _tokens(path: Path, summary: RunSummary) -> bool:
    if summary.iterations:
        plots.tokens_per_rollout(path, _metric("tokens", summary.iterations, lambda m: m.tokens_per_rollout))
    return bool(summary.iterations)


def _progress(path: Path, summary: RunSummary) -> bool:
    measured = [metrics for metrics in summary.iterations if metrics.progress_by_episode]
    if measured:
        plots.progress_by_episode(path, progress_stages(measured))
    return bool(measured)


def progress_stages(iterations: Sequence[IterationMetrics]) -> list[Series]:
    """Mean progress by episode index over up to ``MOST_STAGES`` equal stages of training, with intervals over the
    iterations of a stage, each of which has other problems.

    An iteration counts for an episode index when any of its traces has that episode.
    """
    stages = np.array_split(np.arange(len(iterations)), min(MOST_STAGES, len(iterations)))
    return [_progress_stage([iterations[i] for i in stage]) for stage in stages]


def _progress_stage(members: Sequence[IterationMetrics]) -> Series:
    longest = max(len(metrics.progress_by_episode) for metrics in members)
    by_episode = [[m.progress_by_episode[j] for m in members if j < len(m.progress_by_episode)] for j in range(longest)]
    first, last = members[0].iteration, members[-1].iteration
    label = f"iteration {first}" if first == last else f"iterations {first}–{last}"
    return series_of(label, range(longest), [_mean_of_iterations(means) for means in by_episode])


def _mean_of_iterations(means: Sequence[float]) -> IntervalEstimate:
    if len(means) < LEAST_ITERATIONS:
        return without_interval(float(np.mean(means)))
    return clustered_mean([[mean] for mean in means])


def series_of(label: str, x: Iterable[float], estimates: Sequence[IntervalEstimate]) -> Series:
    """A line of estimates, with the ends of their intervals where any has some."""
    low, high = tuple(one.low for one in estimates), tuple(one.high for one in estimates)
    ends = (low, high) if any(map(math.isfinite, low)) else (None, None)
    return Series(label, tuple(map(float, x)), tuple(one.mean for one in estimates), *ends)


def _time(path: Path, summary: RunSummary) -> bool:
    timed = [metrics for metrics in summary.iterations if any(metrics.seconds.values())]
    if timed:
        seconds = {phase: tuple(metrics.seconds.get(phase, 0.0) for metrics in timed) for phase in Phase}
        plots.time_by_phase(path, PhaseTimes(tuple(metrics.iteration for metrics in timed), seconds))
    return bool(timed)


def _quality(path: Path, summary: RunSummary) -> bool:
    names = sorted({name for metrics in summary.iterations for name in metrics.quality})
    lines = []
    for name in names:
        having = [metrics for metrics in summary.iterations if name in metrics.quality]
        x = tuple(float(metrics.iteration) for metrics in having)
        lines.append(Series(name.replace("_", " "), x, tuple(metrics.quality[name] for metrics in having)))
    if lines:
        plots.quality_by_iteration(path, lines)
    return bool(lines)


_FIGURES: tuple[tuple[str, str, str, Callable[[Path, RunSummary], bool]], ...] = (
    ("accuracy", "Accuracy", "pass@1 with 95 % intervals of each evaluated weights version.", _accuracy),
    ("reward", "Reward", "Mean reward of the rollouts of each iteration.", _reward),
    ("likelihood", "Likelihood", "Mean negative log-likelihood of the learnt tokens of each iteration.", _likelihood),
    (
        "progress",
        "Progress by episode",
        "Mean progress of the j-th episode, early to late in training; 95 % intervals are over iterations.",
        _progress,
    ),
    ("tokens", "Tokens per rollout", "Mean length of a trace with its answer.", _tokens),
    ("quality", "Quality of the traces", "Shares that the reward alone does not show.", _quality),
    ("time", "Time by phase", "Wall time of each iteration, by what the run was doing.", _time),
)


def _metric(
    label: str, iterations: Sequence[IterationMetrics], value: Callable[[IterationMetrics], float | None]
) -> Series:
    """A line of a measure, over the iterations that have it."""
    points = [(float(m.iteration), found) for m in iterations if (found := value(m)) is not None]
    return Series(label, tuple(x for x, _ in points), tuple(y for _, y in points))


def _by_benchmark(evaluations: Sequence[EvaluationSummary]) -> dict[str, list[EvaluationSummary]]:
    """Evaluations by benchmark in the order given, versions ascending."""
    groups: dict[str, list[EvaluationSummary]] = {}
    for evaluation in evaluations:
        groups.setdefault(evaluation.benchmark, []).append(evaluation)
    return {benchmark: sorted(group, key=lambda one: one.version) for benchmark, group in groups.items()}


# -- how numbers are written ------------------------------------------------------------------------------------------


def cell(value: object) -> str:
    """Text that cannot break a table."""
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def percent(share: float | None) -> str:
    """A share as ``28.1 %``."""
    return DASH if share is None else f"{100 * share:.1f} %"


def points(difference: float) -> str:
    """A difference of shares in percentage points: ``+1.3``."""
    tenths = round(100 * difference, 1) + 0.0  # no "−0.0"
    return f"{tenths:+.1f}".replace("-", "−")


def share_text(estimate: IntervalEstimate) -> str:
    """A share with its interval, where it has one: ``28.1 % (20.4 % to 37.3 %)``."""
    return _with_ends(estimate, percent)


def decimal_text(estimate: IntervalEstimate) -> str:
    """A number of three decimals with its interval, where it has one: ``0.281 (0.204 to 0.373)``."""
    return _with_ends(estimate, "{:.3f}".format)


def _with_ends(estimate: IntervalEstimate, written: Callable[[float], str]) -> str:
    told = written(estimate.mean)
    return f"{told} ({written(estimate.low)} to {written(estimate.high)})" if math.isfinite(estimate.low) else told


def interval(estimate: IntervalEstimate) -> str:
    """A difference with its interval in percentage points: ``+1.3 (−0.4 to +3.0)``."""
    return f"{points(estimate.mean)} ({points(estimate.low)} to {points(estimate.high)})"


def number(value: float | None) -> str:
    """Three significant digits, scientific where that is shorter to read."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        return str(value)
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def count(value: int | None) -> str:
    """A whole number with separators."""
    return DASH if value is None else f"{value:,}"


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter: ``3 h 12 min``."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
