"""The figures of a run's report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.analysis import plots
from mrt_hpc.analysis.estimates import without_interval
from mrt_hpc.analysis.intervals import IntervalEstimate, clustered_mean
from mrt_hpc.analysis.measures import IterationMetrics, Phase, RunSummary
from mrt_hpc.analysis.plots import PhaseTimes, Series
from mrt_hpc.analysis.result_rows import by_benchmark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

MOST_STAGES = 5
"""Lines in the figure of progress by episode."""
LEAST_ITERATIONS = 3
"""A mean over fewer iterations than this has no interval: it would fill the figure."""


@dataclass(frozen=True)
class FigureFile:
    """A figure that was drawn."""

    title: str
    path: str
    """Relative to the report."""
    caption: str


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
        for benchmark, versions in by_benchmark(summary.evaluations).items()
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
