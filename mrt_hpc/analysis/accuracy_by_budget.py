"""``mrt-hpc analyze extrapolate``: accuracy against the budget of thinking, up to and past that of the training.

The value at an extension is how often a model stopped at this budget answers right. Thoughts that end earlier use fewer
tokens than the budget, so these stand beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.analysis import findings
from mrt_hpc.analysis.figures import LineFigure, Panel, line_of
from mrt_hpc.analysis.findings import Analysis, Cell, Curve, Point
from mrt_hpc.analysis.intervals import MeanGain, mean_gain
from mrt_hpc.analysis.model_samples import ModelSamples, require_same_budgets, require_values
from mrt_hpc.analysis.problem_measures import MeanMeasure, tokens_at
from mrt_hpc.recipe.choices import Boundaries

USED = "tokens used are those of the thought up to the budget; the answer that is forced there is not counted"


@dataclass(frozen=True)
class AccuracyAt(MeanMeasure):
    """How often a model stopped at a budget answers right."""

    budget: int
    boundary: int
    """Its number among the boundaries of each trace."""

    @property
    def name(self) -> str:
        return f"accuracy at {self.budget} tokens"

    def terms(self, model: ModelSamples) -> dict[str, NDArray[np.float64]]:
        return {
            problem: np.array([trace.boundaries[self.boundary].value for trace in traces], float)
            for problem, traces in model.problems.items()
        }


def analyse_extrapolation(models: Sequence[ModelSamples]) -> Analysis:
    """The models' mode is ``extrapolation``, with values at the same budgets."""
    require_values(models, Boundaries.EXTENSIONS)
    require_same_budgets(models)
    curves = [accuracy_by_budget(model) for model in models]
    found = findings.analysis_of_curves(
        "extrapolation", "model budget_tokens accuracy low high tokens_used", curves, "Accuracy past the first budget",
        "budget (tokens)", "accuracy when made to stop (95 % interval)", "budget {}", percent=True,
    )  # fmt: skip
    used = tuple(line_of(c.model, (float(p.more[0]) for p in c.points), c.estimates) for c in curves)
    panels = (*found.figures[0].panels, Panel("By tokens used", "tokens of a thought, mean", "", used, percent=True))
    gains: list[tuple[tuple[Cell, ...], MeanGain]] = [
        ((curve.model, *point.at), mean_gain([(curve.points[0].by_problem, point.by_problem)]))
        for curve in curves
        for point in curve.points[1:]
    ]
    of_gains, corrected = findings.gain_table("extrapolation_gains", "model budget_tokens gain", gains)
    budgets = models[0].budgets
    last = AccuracyAt(budgets[-1], len(budgets))
    longer = [
        findings.gain_sentence(_about(curve), last, gain, len(curve.points[0].by_problem), p, len(gains))
        for curve in curves
        for ((name, budget), gain), p in zip(gains, corrected, strict=True)
        if (name, budget) == (curve.model, budgets[-1])
    ]
    return replace(
        found,
        tables=(*found.tables, of_gains),
        figures=(LineFigure("extrapolation", panels),),
        verdicts=(*longer, *findings.comparisons_with_first(models, last)),
        remarks=(USED, *findings.remark_on_correction("gains over the first budget", len(gains))),
    )


def _about(curve: Curve) -> str:
    first, last = curve.points[0], curve.points[-1]
    used = f"({last.more[0]:.0f} against {first.more[0]:.0f} used)"
    return f"{curve.model}, a budget of {last.at[0]} against {first.at[0]} tokens {used}"


def accuracy_by_budget(model: ModelSamples) -> Curve:
    """Boundary j stands for budget j - 1. Beside each accuracy stand the thoughts' tokens up to there, the mean over
    the traces of a problem, then over problems: a budget limits the thoughts, and not the answer forced there.
    """
    points = []
    for boundary, budget in enumerate(model.budgets, start=1):
        used = [[tokens_at(t.boundaries[boundary], "sampled", 0) for t in mine] for mine in model.problems.values()]
        tokens = float(np.mean([np.mean(mine) for mine in used]))
        points.append(Point((budget,), AccuracyAt(budget, boundary).values(model), more=(tokens,)))
    return Curve((model.name,), tuple(points))
