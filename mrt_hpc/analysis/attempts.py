"""``mrt-hpc analyze attempts``: how much better the last attempt of a sample is than the first, as a mean over
problems, and the number of problems by the difference (paper, Figures 13 and 16).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mrt_hpc.analysis.figures import LineFigure, Panel, line_of
from mrt_hpc.analysis.findings import Analysis, data_table, summary_table
from mrt_hpc.analysis.intervals import Means, paired_difference
from mrt_hpc.analysis.model_samples import EvaluatedTrace, ModelSamples
from mrt_hpc.analysis.number_formats import percent
from mrt_hpc.analysis.rows import bare_mean
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.recipe.choices import Boundaries

BINS = 5
"""Between a difference of 0 and one of 1; one more bin is around 0."""


@dataclass(frozen=True)
class ModelAttempts:
    name: str
    first: dict[str, float]
    last: dict[str, float]
    changes: dict[str, float]
    """Shares of samples by attempts right or wrong, as ``wrong, then right``."""

    @property
    def histogram(self) -> dict[float, float]:
        """The number of problems by the difference of the last attempts to the first, the middle of each bin. A
        difference between two bins counts one half in each.
        """
        counts = dict.fromkeys(range(-BINS, BINS + 1), 0.0)
        for problem in self.first:
            place = round((self.last[problem] - self.first[problem]) * BINS, 6)
            for side in (math.ceil(place - 0.5), math.floor(place + 0.5)):
                counts[side] += 0.5
        return {place / BINS: count for place, count in counts.items()}


def analyse_attempts(models: Sequence[ModelSamples]) -> Analysis:
    """The models' mode has attempts, as ``history_conditioned`` or ``linearised``."""
    for model in models:
        model.require_boundaries(Boundaries.LAST_ATTEMPT)
    by_model = [attempts_of_model(model) for model in models]
    rows = [(m.name, p, m.first[p], m.last[p], m.last[p] - m.first[p]) for m in by_model for p in m.first]
    histograms = [(m.name, middle, count) for m in by_model for middle, count in m.histogram.items()]
    tables = (
        data_table("attempts", "model problem first_attempt last_attempt difference", rows),
        data_table("attempts_histogram", "model difference problems", histograms),
    )
    panels = []
    for number, m in enumerate(by_model):
        bars = replace(line_of(m.name, m.histogram, map(bare_mean, m.histogram.values())), colour=number)
        title = f"Last less first attempt of {m.name}"
        panels.append(Panel(title, "difference of the mean rewards", "problems", (bars,), kind="stack"))
    ways = by_model[0].changes
    forms = {"model": "", "first attempt": ".3f", "last attempt": ".3f", "difference": "+.3f"}
    cells = [
        (m.name, _mean(m.first), _mean(m.last), paired_difference(m.first, m.last), *m.changes.values())
        for m in by_model
    ]
    summary = summary_table("first and last attempts", {**forms, **dict.fromkeys(ways, percent)}, cells)
    return Analysis(tables, (LineFigure("attempts", tuple(panels)),), summary)


def attempts_of_model(model: ModelSamples) -> ModelAttempts:
    first, last = (
        {p: float(np.mean([t.attempts[place].reward for t in traces])) for p, traces in model.problems.items()}
        for place in (0, -1)
    )
    traces = [trace for traces in model.problems.values() for trace in traces]
    words = [_words(trace) for trace in traces]
    ways = [f"{before}, then {after}" for before in ("wrong", "right") for after in ("right", "wrong")]
    return ModelAttempts(model.name, first, last, {way: words.count(way) / len(words) for way in ways})


def _words(trace: EvaluatedTrace) -> str:
    before, after = ("right" if is_right(trace.attempts[place].reward) else "wrong" for place in (0, -1))
    return f"{before}, then {after}"


def _mean(by_problem: Means) -> float:
    return float(np.mean(list(by_problem.values())))
