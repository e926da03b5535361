"""``mrt-hpc analyze extrapolate``: accuracy against the budget of thinking, up to and past that of the training.

The value at an extension is how often a model stopped at this budget answers right. Thoughts that end earlier use fewer
tokens than the budget, so these stand beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.analysis import findings
from mrt_hpc.analysis.figures import LineFigure, Panel, line_of
from mrt_hpc.analysis.findings import Analysis, Cell, Curve, DataTable, Point
from mrt_hpc.analysis.intervals import SIGNIFICANCE, MeanGain, mean_gain
from mrt_hpc.analysis.model_samples import ModelSamples, require_same_budgets
from mrt_hpc.analysis.problem_measures import MeanMeasure, tokens_at
from mrt_hpc.recipe.choices import Boundaries

MEANT = (Boundaries.EXTENSIONS,)

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
    for model in models:
        model.require_boundaries(*MEANT)
        model.require_values()
    require_same_budgets(models)
    curves = [accuracy_by_budget(model) for model in models]
    columns = ("model", "budget_tokens", "accuracy", "low", "high", "tokens_used")
    table = findings.table_of_curves("extrapolation", columns, curves)
    gains: list[tuple[tuple[Cell, ...], MeanGain]] = [
        ((curve.model, *point.at), mean_gain([(curve.points[0].by_problem, point.by_problem)]))
        for curve in curves
        for point in curve.points[1:]
    ]
    of_gains, corrected = findings.gain_table("extrapolation_gains", ("model", "budget_tokens", "gain"), gains)
    at_last = {str(cells[0]): p for (cells, _), p in zip(gains, corrected, strict=True)}  # the last budget of each
    remarks = (USED, *findings.remark_on_correction("gains over the first budget", len(gains)))
    verdicts = _verdicts(models, curves, at_last)
    return Analysis((table, of_gains), (_figure(curves),), _summary(curves), verdicts, remarks)


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


def _figure(curves: Sequence[Curve]) -> LineFigure:
    used = tuple(line_of(c.model, (float(p.more[0]) for p in c.points), c.estimates) for c in curves)
    label, allowed = "accuracy when made to stop (95 % interval)", tuple(curve.line() for curve in curves)
    by_budget = Panel("Accuracy past the first budget", "budget (tokens)", label, allowed, percent=True)
    return LineFigure(
        "extrapolation", (by_budget, Panel("By tokens used", "tokens of a thought, mean", "", used, percent=True))
    )


def _summary(curves: Sequence[Curve]) -> DataTable:
    columns = ("model", *(f"budget {point.at[0]}" for point in curves[0].points), "gain")
    rows = [
        (
            curve.model,
            *(f"{point.estimate.mean:.3f}, {point.more[0]:.0f} used" for point in curve.points),
            _last_gain(curve).interval.decimals("+.3f"),
        )
        for curve in curves
    ]
    return DataTable("accuracy by budget", columns, tuple(rows))


def _last_gain(curve: Curve) -> MeanGain:
    """The accuracy at the last budget less that at the first, paired by problem."""
    return mean_gain([(curve.points[0].by_problem, curve.points[-1].by_problem)])


def _verdicts(
    models: Sequence[ModelSamples], curves: Sequence[Curve], corrected: Mapping[str, float]
) -> tuple[str, ...]:
    """Whether thinking longer helps each model, and how the models differ at the last budget. ``corrected`` holds
    p-values of gains there, if that is not the first budget.
    """
    longer = []
    for curve in curves:
        first, last, gain = curve.points[0], curve.points[-1], _last_gain(curve)
        longer.append(
            f"{curve.model}, a budget of {last.at[0]} against {first.at[0]} tokens "
            f"({last.more[0]:.0f} against {first.more[0]:.0f} used): "
            f"{gain.interval.decimals('+.3f')}, {_word(gain, corrected.get(curve.model, 1.0))}"
        )
    budgets = models[0].budgets
    return (*longer, *findings.comparisons_with_first(models, AccuracyAt(budgets[-1], len(budgets))))


def _word(gain: MeanGain, corrected_p: float) -> str:
    if corrected_p >= SIGNIFICANCE:
        return "no gain or loss is shown" + (" after the correction" if gain.p_value < SIGNIFICANCE else "")
    return "it gains" if gain.mean > 0 else "it loses"
