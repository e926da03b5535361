"""``mrt-hpc analyze progress``: the mean progress of each episode, of right and wrong traces and of hard and easy
problems. Intervals are clustered by problem.

Every second trace decides how hard a problem is for the others: a trace that counts in both would put the progress that
makes it right among the easy problems.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np
from scipy.stats import rankdata

from mrt_hpc.analysis import findings
from mrt_hpc.analysis.figures import LineFigure, Panel
from mrt_hpc.analysis.findings import Analysis, Curve, Point, analysis_of_curves
from mrt_hpc.analysis.intervals import clustered_mean
from mrt_hpc.analysis.model_samples import EvaluatedTrace, ModelSamples, require_values
from mrt_hpc.analysis.problem_measures import curve_of
from mrt_hpc.mrt.progress import progress
from mrt_hpc.mrt.rewards import is_right as counts_right
from mrt_hpc.recipe.choices import Boundaries

HALVES = (0, 1)
"""The traces of even and of odd number."""
FEW_PROBLEMS = 5
"""Means over fewer problems are in the table alone: their intervals would fill the figure."""


class Difficulty(StrEnum):
    HARD = "hard"
    MEDIUM = "medium"
    EASY = "easy"


COLOURS = {"right": 2, "wrong": 1, Difficulty.HARD: 3, Difficulty.MEDIUM: 4, Difficulty.EASY: 5}
TITLE, X_LABEL = "Progress by episode", "episode j"
Y_LABEL = "mean progress V(j+1) − V(j), 95 % interval"


def analyse_progress(models: Sequence[ModelSamples]) -> Analysis:
    """The models have values at the ends of episodes."""
    require_values(models, Boundaries.EPISODES)
    halves = difficulty_by_halves(models)
    curves = [curve for model in models for curve in progress_curves(model, halves)]
    columns = "model split part episode progress low high traces problems"
    found = analysis_of_curves("progress", columns, curves, TITLE, X_LABEL, Y_LABEL, "episode {}", "+.2f")
    fewest = min(FEW_PROBLEMS, len(models[0].problems))
    shown = [replace(curve, points=frequent_episodes(curve.points, fewest)) for curve in curves]
    remarks = [_remark_on_difficulty(halves)]
    if shown != curves:
        remarks.append(f"means over fewer than {fewest} problems are in the table only, not in the figure")
    return replace(found, figures=tuple(_figures(shown, models)), remarks=tuple(remarks))


def difficulty_by_halves(models: Sequence[ModelSamples]) -> tuple[Mapping[str, Difficulty], ...]:
    """Each problem's difficulty by the traces of even and of odd number, the same for all models; empty where a problem
    has a single trace of each model.
    """
    if any(all(len(model.problems[problem]) < len(HALVES) for model in models) for problem in models[0].problems):
        return ()
    return tuple(difficulties(mean_accuracy(models, half)) for half in HALVES)


def mean_accuracy(models: Sequence[ModelSamples], half: int) -> dict[str, float]:
    """pass@1 of each problem by one half of its traces, as a mean over the models that have some."""
    found = {}
    for problem in models[0].problems:
        traces = [model.problems[problem][half :: len(HALVES)] for model in models]
        found[problem] = float(np.mean([np.mean([t.reward for t in mine]) for mine in traces if mine]))
    return found


def difficulties(accuracy: Mapping[str, float]) -> dict[str, Difficulty]:
    """The third of the problems in which each is, by the rank of its pass@1.

    Equal pass@1 share the mean of their ranks. The lowest is always hard, the highest easy; all equal are medium.
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


def progress_curves(model: ModelSamples, halves: Sequence[Mapping[str, Difficulty]]) -> Iterator[Curve]:
    """Curves of all traces, by outcome and by difficulty, each with its split and part; parts without a trace are left
    out. One half of the traces decides the difficulty for the other.
    """
    yield Curve((model.name, "none", "all"), progress_by_episode(model.problems))
    for outcome, is_right in (("right", True), ("wrong", False)):
        those = {p: [t for t in traces if counts_right(t.reward) == is_right] for p, traces in model.problems.items()}
        if episodes := progress_by_episode(those):
            yield Curve((model.name, "outcome", outcome), episodes)
    for level in Difficulty if halves else ():
        those = {
            p: [trace for n, trace in enumerate(traces) if halves[1 - n % 2][p] is level]
            for p, traces in model.problems.items()
        }
        if episodes := progress_by_episode(those):
            yield Curve((model.name, "difficulty", level), episodes)


def progress_by_episode(problems: Mapping[str, Sequence[EvaluatedTrace]]) -> tuple[Point, ...]:
    """The mean progress of episode j, from 0, with the numbers of traces and of problems that have one."""
    by_episode: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for problem, traces in problems.items():
        for trace in traces:
            for episode, gain in enumerate(progress(curve_of(trace).values)):
                by_episode[episode][problem].append(float(gain))
    return tuple(
        Point((j,), given=clustered_mean([*gains.values()]), more=(sum(map(len, gains.values())), len(gains)))
        for j, gains in sorted(by_episode.items())
    )


def frequent_episodes(points: Sequence[Point], fewest: int) -> tuple[Point, ...]:
    """Those that at least so many problems have."""
    return tuple(point for point in points if point.more[-1] >= fewest)


# -- what is shown


def _figures(curves: Sequence[Curve], models: Sequence[ModelSamples]) -> Iterator[LineFigure]:
    look: dict[str, Any] = {"whole_numbers": True, "level": 0.0}
    whole = [curve for curve in curves if curve.names[1] == "none"]
    yield findings.figure_of_curves("progress", TITLE, X_LABEL, Y_LABEL, whole, **look)
    for model in models:
        panels = []
        titles = {"outcome": f"Right and wrong traces of {model.name}", "difficulty": "Hard and easy problems"}
        for split, title in titles.items():
            mine = [curve for curve in curves if curve.names[:2] == (model.name, split)]
            lines = tuple(curve.line(curve.names[-1], colour=COLOURS[curve.names[-1]]) for curve in mine)
            if mine:
                panels.append(Panel(title, X_LABEL, Y_LABEL, lines, **look))
        yield LineFigure(findings.name_of_file("progress_of_parts", model.name, models), tuple(panels))


def _remark_on_difficulty(halves: Sequence[Mapping[str, Difficulty]]) -> str:
    if not halves:
        return "not split by difficulty: a problem has a single trace, and other traces would have to decide"
    counts = [", ".join(f"{list(half.values()).count(level)} {level}" for level in Difficulty) for half in halves]
    return (
        "problems are hard or easy by the pass@1 of other traces than those shown, mean over the models: every second "
        f"trace decides for those between, both ways ({'; '.join(counts)}; all are medium where pass@1 is the same)"
    )
