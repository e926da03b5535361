"""Normalised regret against the budget of tokens, for ``mrt-hpc analyze regret``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.analysis_files import (
    Analysis,
    DataTable,
    comparisons_with_first,
    gain_table,
    interval_cells,
    interval_text,
    remark_on_correction,
)
from mrt_hpc.analysis.figures import LineFigure, Panel, line_of
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.problem_measures import Regret, curves_of, require_budget
from mrt_hpc.errors import Advice
from mrt_hpc.mrt.regret import TraceCurve, area_of_episodes, regret_by_problem
from mrt_hpc.recipe.choices import Boundaries

MEANT = (Boundaries.EPISODES,)
BUDGETS = 32
"""Where none are named."""

Curves = dict[str, "list[TraceCurve]"]


@dataclass(frozen=True)
class ModelRegret:
    name: str
    budgets: tuple[int, ...]
    by_problem: tuple[dict[str, float], ...]
    """[budgets] by problem."""
    areas: tuple[intervals.IntervalEstimate, ...]
    """[1 + episodes] the area of the first j episodes over that of whole traces, up to the largest budget; empty where
    all are 0.
    """

    @property
    def regret(self) -> tuple[intervals.IntervalEstimate, ...]:
        """[budgets] the mean over problems."""
        return tuple(intervals.mean_of_shares(regret) for regret in self.by_problem)

    def difference_to(self, other: "ModelRegret") -> tuple[intervals.MeanGain, ...]:
        """[budgets] the difference to another model's, paired by problem; below 0 it is better."""
        return tuple(intervals.mean_gain([pair]) for pair in zip(other.by_problem, self.by_problem, strict=True))


def analyse_regret(models: Sequence[ModelSamples], budgets: Sequence[int]) -> Analysis:
    """``budgets`` in tokens; empty takes 32 up to the longest trace (see ``most_tokens``), or to the limit of an
    evaluation where that has fewer.

    Raises:
        UserError: boundaries are not the ends of episodes, prefixes were not valued, or a budget exceeds a limit.
    """
    curves = {model.name: curves_of(model) for model in models}
    limits = [model.limit for model in models if model.limit is not None]
    longest = min([most_tokens(models, curves.values()), *limits])
    measured = sorted(set(budgets)) or even_budgets(longest)
    for model in models:
        require_budget(model, measured[-1], Advice("--budgets "))
    by_model = [regret_of(name, mine, measured) for name, mine in curves.items()]
    figures = (figure_of_regret(by_model), _figure_of_areas(by_model))
    table, *differences = tables_of_regret(by_model)
    tables = (table, _table_of_areas(by_model), *differences)
    shown = sorted({round((len(measured) - 1) * part / 4) for part in range(1, 5)})
    compared = [row for table in differences for row in table.rows]
    corrected = [float(row[-1]) for row in compared if row[2] == measured[-1]]
    verdicts = comparisons_with_first(models, Regret(measured[-1]), corrected, len(compared))
    return Analysis(tables, figures, summary_of_regret(by_model, shown), verdicts, _remarks(by_model))


def most_tokens(models: Sequence[ModelSamples], curves: Iterable[Curves]) -> int:
    """The tokens of the longest trace, or of the last boundary where that has more: with all tokens counted, it has
    those of prompt and answer too.
    """
    last = max(curve.tokens[-1] for mine in curves for traces in mine.values() for curve in traces)
    return max(math.ceil(last), *(model.longest for model in models))


def even_budgets(longest: int) -> list[int]:
    return sorted({max(1, round(longest * part / BUDGETS)) for part in range(1, BUDGETS + 1)})


def regret_of(name: str, curves: Curves, budgets: Sequence[int]) -> ModelRegret:
    by_problem = tuple(regret_by_problem(curves, budget) for budget in budgets)
    return ModelRegret(name, tuple(budgets), by_problem, area_ratios(curves, budgets[-1]))


def area_ratios(curves: Mapping[str, Sequence[TraceCurve]], budget: int) -> tuple[intervals.IntervalEstimate, ...]:
    """[1 + episodes] the mean area of traces stopped after j episodes over that of whole traces."""
    most = max(len(curve.values) for traces in curves.values() for curve in traces) - 1
    areas = np.array([_mean_areas(traces, most, budget) for traces in curves.values()])
    whole = areas[:, most]
    return tuple(intervals.ratio_interval(areas[:, j], whole) for j in range(most + 1)) if whole.any() else ()


def _mean_areas(traces: Sequence[TraceCurve], most: int, budget: int) -> list[float]:
    """[1 + most] of a problem's traces stopped after j episodes."""
    return [float(np.mean([area_of_episodes(curve, j, budget) for curve in traces])) for j in range(most + 1)]


def tables_of_regret(by_model: Sequence[ModelRegret]) -> tuple[DataTable, ...]:
    rows = [
        (model.name, budget, *interval_cells(regret))
        for model in by_model
        for budget, regret in zip(model.budgets, model.regret, strict=True)
    ]
    table = DataTable("regret", ("model", "budget_tokens", "regret", "low", "high"), tuple(rows))
    return (table, _table_of_differences(by_model)) if len(by_model) > 1 else (table,)


def _table_of_differences(by_model: Sequence[ModelRegret]) -> DataTable:
    first, *others = by_model
    differences = [
        ((model.name, first.name, budget), difference)
        for model in others
        for budget, difference in zip(model.budgets, model.difference_to(first), strict=True)
    ]
    return gain_table("regret_differences", ("model", "against", "budget_tokens", "difference"), differences)[0]


def _table_of_areas(by_model: Sequence[ModelRegret]) -> DataTable:
    rows = [(model.name, j, *interval_cells(area)) for model in by_model for j, area in enumerate(model.areas)]
    return DataTable("areas_by_episode", ("model", "episodes", "area_ratio", "low", "high"), tuple(rows))


def figure_of_regret(by_model: Sequence[ModelRegret]) -> LineFigure:
    lines = tuple(line_of(m.name, m.budgets, m.regret) for m in by_model)
    title = "Normalised regret" if len(by_model) > 1 else f"Normalised regret of {by_model[0].name}"
    return LineFigure("regret", (Panel(title, "budget (tokens)", "normalised regret (mean, 95 % interval)", lines),))


def _figure_of_areas(by_model: Sequence[ModelRegret]) -> LineFigure:
    lines = tuple(line_of(m.name, range(len(m.areas)), m.areas) for m in by_model)
    title = "Area of the first episodes" if len(by_model) > 1 else f"Area of the first episodes of {by_model[0].name}"
    y_label = f"area / area of whole traces, {by_model[0].budgets[-1]} tokens"
    panel = Panel(title, "episodes kept", y_label, lines, percent=True, whole_numbers=True, level=1.0)
    return LineFigure("areas_by_episode", (panel,))


def summary_of_regret(by_model: Sequence[ModelRegret], shown: Sequence[int]) -> DataTable:
    """``shown`` are the places of some budgets among all."""
    budgets = by_model[0].budgets
    rows = [(model.name, *(interval_text(model.regret[index]) for index in shown)) for model in by_model]
    return DataTable("normalised regret", ("model", *(f"{budgets[i]} tokens" for i in shown)), tuple(rows))


def _remarks(by_model: Sequence[ModelRegret]) -> tuple[str, ...]:
    left_out = [
        f"{m.name}: no prefix has a value above 0, so no areas are compared. All values are 0 where the "
        "prover's forced text leads the model to no answer: take evaluation.prover from the recipe that trained it"
        for m in by_model
        if not m.areas
    ]
    return (*left_out, *remark_on_differences(by_model))


def remark_on_differences(by_model: Sequence[ModelRegret]) -> tuple[str, ...]:
    count = (len(by_model) - 1) * len(by_model[0].budgets)
    remarks = remark_on_correction("differences of regret at the budgets", count)
    if len(by_model[0].budgets) == 1 or not remarks:
        return remarks
    return (*remarks, "fewer budgets that were chosen before (--budgets) are corrected for less")
