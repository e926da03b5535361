"""Normalised regret against the budget of tokens, for ``mrt-hpc analyze regret``."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.analysis_files import (
    Analysis,
    Curve,
    CurvePoint,
    DataTable,
    comparisons_with_first,
    figure_of_curves,
    gain_table,
    interval_text,
    remark_on_correction,
    table_of_curves,
    title_of,
)
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.problem_measures import Regret, curves_of, require_budget
from mrt_hpc.errors import Advice
from mrt_hpc.mrt.regret import TraceCurve, area_of_episodes, regret_by_problem
from mrt_hpc.recipe.choices import Boundaries

MEANT = (Boundaries.EPISODES,)
BUDGETS = 32
"""Where none are named."""

ValuedTraces = Mapping[str, Sequence[TraceCurve]]
"""By problem."""


def analyse_regret(models: Sequence[ModelSamples], budgets: Sequence[int]) -> Analysis:
    """``budgets`` in tokens; empty takes 32 up to the longest trace (see ``most_tokens``), or to the limit of an
    evaluation where that has fewer.

    Raises:
        UserError: boundaries are not the ends of episodes, prefixes were not valued, or a budget exceeds a limit.
    """
    valued = {model.name: curves_of(model) for model in models}
    limits = [model.limit for model in models if model.limit is not None]
    longest = min([most_tokens(models, valued.values()), *limits])
    measured = sorted(set(budgets)) or even_budgets(longest)
    for model in models:
        require_budget(model, measured[-1], Advice("--budgets "))
    regrets = [
        Curve((name,), tuple(CurvePoint((budget,), regret_by_problem(mine, budget)) for budget in measured))
        for name, mine in valued.items()
    ]
    areas = [
        Curve((name,), tuple(CurvePoint((j,), given=area) for j, area in enumerate(area_ratios(mine, measured[-1]))))
        for name, mine in valued.items()
    ]
    shown = sorted({round((len(measured) - 1) * part / 4) for part in range(1, 5)})
    found = analysis_of_regret(regrets, shown)
    table, *differences = found.tables
    compared = [row for table in differences for row in table.rows]
    corrected = [float(row[-1]) for row in compared if row[2] == measured[-1]]
    figure = figure_of_curves(
        "areas_by_episode", title_of("Area of the first episodes", areas), "episodes kept",
        f"area / area of whole traces, {measured[-1]} tokens", areas, percent=True, whole_numbers=True, level=1.0,
    )  # fmt: skip
    left_out = [
        f"{curve.model}: no prefix has a value above 0, so no areas are compared. All values are 0 where the "
        "prover's forced text leads the model to no answer: take evaluation.prover from the recipe that trained it"
        for curve in areas
        if not curve.points
    ]
    of_areas = table_of_curves("areas_by_episode", ("model", "episodes", "area_ratio", "low", "high"), areas)
    return replace(
        found,
        tables=(table, of_areas, *differences),
        figures=(*found.figures, figure),
        verdicts=comparisons_with_first(models, Regret(measured[-1]), corrected, len(compared)),
        remarks=(*left_out, *found.remarks),
    )


def most_tokens(models: Sequence[ModelSamples], valued: Iterable[ValuedTraces]) -> int:
    """The tokens of the longest trace, or of the last boundary where that has more: with all tokens counted, it has
    those of prompt and answer too.
    """
    last = max(curve.tokens[-1] for mine in valued for traces in mine.values() for curve in traces)
    return max(math.ceil(last), *(model.longest for model in models))


def even_budgets(longest: int) -> list[int]:
    return sorted({max(1, round(longest * part / BUDGETS)) for part in range(1, BUDGETS + 1)})


def area_ratios(curves: ValuedTraces, budget: int) -> tuple[intervals.IntervalEstimate, ...]:
    """[1 + episodes] the mean area of traces stopped after j episodes over that of whole traces; empty where all areas
    are 0.
    """
    most = max(len(curve.values) for traces in curves.values() for curve in traces) - 1
    areas = np.array(
        [
            [np.mean([area_of_episodes(curve, j, budget) for curve in traces]) for j in range(most + 1)]
            for traces in curves.values()
        ]
    )
    whole = areas[:, most]
    return tuple(intervals.ratio_interval(areas[:, j], whole) for j in range(most + 1)) if whole.any() else ()


def analysis_of_regret(curves: Sequence[Curve], shown: Iterable[int]) -> Analysis:
    """The curves have the same budgets, of which the summary has those at the places ``shown``."""
    tables = [table_of_curves("regret", ("model", "budget_tokens", "regret", "low", "high"), curves)]
    first, *others = curves
    differences = [
        ((curve.model, first.model, *after.at), intervals.mean_gain([(before.by_problem, after.by_problem)]))
        for curve in others
        for before, after in zip(first.points, curve.points, strict=True)
    ]
    if others:
        columns = ("model", "against", "budget_tokens", "difference")
        tables.append(gain_table("regret_differences", columns, differences)[0])
    places = [*shown]
    rows = [(curve.model, *(interval_text(curve.points[place].estimate) for place in places)) for curve in curves]
    names = ("model", *(f"{first.points[place].at[0]} tokens" for place in places))
    remarks = remark_on_correction("differences of regret at the budgets", len(differences))
    if remarks and len(first.points) > 1:
        remarks = (*remarks, "fewer budgets that were chosen before (--budgets) are corrected for less")
    figure = figure_of_curves(
        "regret", title_of("Normalised regret", curves), "budget (tokens)", "normalised regret (mean, 95 % interval)",
        curves,
    )  # fmt: skip
    return Analysis(tuple(tables), (figure,), DataTable("normalised regret", names, tuple(rows)), remarks=remarks)
