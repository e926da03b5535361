"""``mrt-hpc analyze progress``: the mean progress of each episode, of right and wrong traces and of hard and easy
problems. Intervals are clustered by problem.

Every second trace decides how hard a problem is for the others: a trace that counts in both would put the progress that
makes it right among the easy problems. Halves, and not all other traces, whose share of right ones depends
on the trace left out.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import rankdata

from mrt_hpc.analysis.analysis_files import Analysis, DataTable, interval_cells, interval_text, name_of_file
from mrt_hpc.analysis.figures import Line, LineFigure, Panel
from mrt_hpc.analysis.intervals import IntervalEstimate, clustered_mean
from mrt_hpc.analysis.model_samples import EvaluatedTrace, ModelSamples
from mrt_hpc.analysis.problem_measures import curve_of
from mrt_hpc.mrt.progress import progress
from mrt_hpc.mrt.votes import RIGHT
from mrt_hpc.recipe.choices import Boundaries

MEANT = (Boundaries.EPISODES,)
HALVES = (0, 1)
"""The traces of even and of odd number."""
FEW_PROBLEMS = 5
"""Means over fewer problems are in the table alone: their intervals would fill the figure."""


class Difficulty(StrEnum):
    HARD = "hard"
    MEDIUM = "medium"
    EASY = "easy"


COLOURS = {"right": 2, "wrong": 1, Difficulty.HARD: 3, Difficulty.MEDIUM: 4, Difficulty.EASY: 5}
Y_LABEL = "mean progress V(j+1) − V(j), 95 % interval"


@dataclass(frozen=True)
class EpisodeProgress:
    episode: int
    """j, from 0."""
    mean: IntervalEstimate
    traces: int
    problems: int


@dataclass(frozen=True)
class ProgressCurve:
    model: str
    split: str
    """None, outcome or difficulty."""
    part: str
    episodes: tuple[EpisodeProgress, ...]


def analyse_progress(models: Sequence[ModelSamples]) -> Analysis:
    """The models have values at the ends of episodes."""
    for model in models:
        model.require_boundaries(*MEANT)
        model.require_values()
    halves = difficulty_by_halves(models)
    curves = [curve for model in models for curve in progress_curves(model, halves)]
    shown = min(FEW_PROBLEMS, len(models[0].problems))
    figures = _figures(curves, [model.name for model in models], shown)
    return Analysis((_table(curves),), figures, _summary(curves), remarks=_remarks(curves, halves, shown))


def difficulty_by_halves(models: Sequence[ModelSamples]) -> tuple[Mapping[str, Difficulty], ...]:
    """Each problem's difficulty by the traces of even and of odd number, the same for all models; empty where a problem
    has a single trace of each model.
    """
    if any(all(len(model.problems[problem]) < len(HALVES) for model in models) for problem in models[0].problems):
        return ()
    return tuple(difficulties(mean_accuracy(models, half)) for half in HALVES)


def mean_accuracy(models: Sequence[ModelSamples], half: int) -> dict[str, float]:
    """pass@1 of each problem by one half of its traces, as a mean over the models that have some."""
    return {
        problem: float(np.mean([np.mean([t.reward for t in mine]) for mine in _halves(models, problem, half)]))
        for problem in models[0].problems
    }


def _halves(models: Sequence[ModelSamples], problem: str, half: int) -> list[tuple[EvaluatedTrace, ...]]:
    traces = [model.problems[problem][half :: len(HALVES)] for model in models]
    return [mine for mine in traces if mine]


def difficulties(accuracy: Mapping[str, float]) -> dict[str, Difficulty]:
    """The third of the problems in which each is, by the rank of its pass@1.

    Equal pass@1 share the mean of their ranks, so thirds may differ in size or be empty. The lowest pass@1 is always
    hard and the highest easy. Where all are equal, all are medium.
    """
    shares = np.array(list(accuracy.values()))
    ranks = rankdata(shares, method="average") / (len(shares) + 1)
    if np.ptp(shares) == 0:
        return dict.fromkeys(accuracy, Difficulty.MEDIUM)
    ranks[shares == shares.min()], ranks[shares == shares.max()] = 0.0, 1.0
    return {problem: _difficulty(rank) for problem, rank in zip(accuracy, ranks.tolist(), strict=True)}


def _difficulty(rank: float) -> Difficulty:
    if rank <= 1 / 3:
        return Difficulty.HARD
    return Difficulty.MEDIUM if rank < 2 / 3 else Difficulty.EASY


def progress_curves(model: ModelSamples, halves: Sequence[Mapping[str, Difficulty]]) -> Iterator[ProgressCurve]:
    """Curves of all traces, by outcome and by difficulty; parts without a trace are left out. One half of the traces
    decides the difficulty for the other.
    """
    yield ProgressCurve(model.name, "none", "all", progress_by_episode(model.problems))
    for outcome, is_right in (("right", True), ("wrong", False)):
        those = {p: [t for t in traces if (t.reward >= RIGHT) == is_right] for p, traces in model.problems.items()}
        if episodes := progress_by_episode(those):
            yield ProgressCurve(model.name, "outcome", outcome, episodes)
    for level in Difficulty if halves else ():
        those = {
            p: [trace for n, trace in enumerate(traces) if halves[1 - n % 2][p] is level]
            for p, traces in model.problems.items()
        }
        if episodes := progress_by_episode(those):
            yield ProgressCurve(model.name, "difficulty", level, episodes)


def progress_by_episode(problems: Mapping[str, Sequence[EvaluatedTrace]]) -> tuple[EpisodeProgress, ...]:
    by_episode: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for problem, traces in problems.items():
        for trace in traces:
            for episode, gain in enumerate(progress(curve_of(trace).values)):
                by_episode[episode][problem].append(float(gain))
    return tuple(
        EpisodeProgress(episode, clustered_mean(list(gains.values())), sum(map(len, gains.values())), len(gains))
        for episode, gains in sorted(by_episode.items())
    )


# -- what is shown


def _table(curves: Sequence[ProgressCurve]) -> DataTable:
    rows = [
        (curve.model, curve.split, curve.part, e.episode, *interval_cells(e.mean), e.traces, e.problems)
        for curve in curves
        for e in curve.episodes
    ]
    columns = ("model", "split", "part", "episode", "progress", "low", "high", "traces", "problems")
    return DataTable("progress", columns, tuple(rows))


def _figures(curves: Sequence[ProgressCurve], models: Sequence[str], fewest: int) -> tuple[LineFigure, ...]:
    return (_figure_of_all(curves, fewest), *(_figure_of_parts(curves, m, len(models) > 1, fewest) for m in models))


def _figure_of_all(curves: Sequence[ProgressCurve], fewest: int) -> LineFigure:
    whole = [curve for curve in curves if curve.split == "none"]
    lines = tuple(_line(curve, curve.model, None, fewest) for curve in whole)
    title = "Progress by episode" if len(lines) > 1 else f"Progress by episode of {lines[0].label}"
    return LineFigure("progress", (Panel(title, "episode j", Y_LABEL, lines, whole_numbers=True, level=0.0),))


def _figure_of_parts(curves: Sequence[ProgressCurve], model: str, several: bool, fewest: int) -> LineFigure:
    mine = [curve for curve in curves if curve.model == model]
    titles = {"outcome": f"Right and wrong traces of {model}", "difficulty": "Hard and easy problems"}
    panels = tuple(
        _panel(mine, split, title, fewest)
        for split, title in titles.items()
        if any(curve.split == split for curve in mine)
    )
    return LineFigure(name_of_file("progress_of_parts", model) if several else "progress_of_parts", panels)


def _panel(curves: Sequence[ProgressCurve], split: str, title: str, fewest: int) -> Panel:
    lines = tuple(_line(c, c.part, COLOURS[c.part], fewest) for c in curves if c.split == split)
    y_label = Y_LABEL if split == "outcome" else ""  # the panels share it
    return Panel(title, "episode j", y_label, lines, whole_numbers=True, level=0.0)


def _line(curve: ProgressCurve, label: str, colour: int | None, fewest: int) -> Line:
    shown = [episode for episode in curve.episodes if episode.problems >= fewest]
    return Line(label, tuple(float(e.episode) for e in shown), tuple(e.mean for e in shown), colour)


def _summary(curves: Sequence[ProgressCurve]) -> DataTable:
    most = max((len(curve.episodes) for curve in curves), default=0)
    rows = [(curve.model, curve.part, *(_cell(curve, episode) for episode in range(most))) for curve in curves]
    return DataTable("mean progress", ("model", "traces", *(f"episode {j}" for j in range(most))), tuple(rows))


def _cell(curve: ProgressCurve, episode: int) -> str:
    return interval_text(curve.episodes[episode].mean, 2, signed=True) if episode < len(curve.episodes) else ""


def _remarks(
    curves: Sequence[ProgressCurve], halves: Sequence[Mapping[str, Difficulty]], fewest: int
) -> tuple[str, ...]:
    remarks = [_remark_on_difficulty(halves)]
    if any(episode.problems < fewest for curve in curves for episode in curve.episodes):
        remarks.append(f"means over fewer than {fewest} problems are in the table only, not in the figure")
    return tuple(remarks)


def _remark_on_difficulty(halves: Sequence[Mapping[str, Difficulty]]) -> str:
    if not halves:
        return "not split by difficulty: a problem has a single trace, and other traces would have to decide"
    counts = [", ".join(f"{list(half.values()).count(level)} {level}" for level in Difficulty) for half in halves]
    return (
        "problems are hard or easy by the pass@1 of other traces than those shown, mean over the models: every second "
        f"trace decides for those between, both ways ({'; '.join(counts)}; all are medium where pass@1 is the same)"
    )
