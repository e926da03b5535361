"""``mrt-hpc analyze extrapolate``: accuracy against the budget of thinking, up to and past that of the training.

The value at an extension is how often a model stopped at this budget answers right. Thoughts that end earlier use fewer
tokens than the budget, so these stand beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
from mrt_hpc.analysis.intervals import SIGNIFICANCE, IntervalEstimate, MeanGain, mean_gain, share_interval
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


@dataclass(frozen=True)
class ModelExtrapolation:
    name: str
    budgets: tuple[int, ...]
    by_problem: tuple[dict[str, float], ...]
    """[budgets] by problem."""
    used: tuple[float, ...]
    """[budgets] the thoughts' tokens up to there, the mean over the traces of a problem, then over problems."""

    @property
    def accuracy(self) -> tuple[IntervalEstimate, ...]:
        """[budgets] the mean over problems."""
        return tuple(share_interval(np.array(list(values.values()))) for values in self.by_problem)

    @property
    def gain(self) -> tuple[MeanGain, ...]:
        """[budgets] the accuracy less that at the first budget, paired by problem."""
        return tuple(mean_gain([(self.by_problem[0], values)]) for values in self.by_problem)


def analyse_extrapolation(models: Sequence[ModelSamples]) -> Analysis:
    """The models' mode is ``extrapolation``, with values at the same budgets."""
    for model in models:
        model.require_boundaries(*MEANT)
        model.require_values()
    require_same_budgets(models)
    by_model = [extrapolation_of(model) for model in models]
    gains = [
        ((model.name, budget), gain)
        for model in by_model
        for budget, gain in zip(model.budgets[1:], model.gain[1:], strict=True)
    ]
    table, corrected = gain_table("extrapolation_gains", ("model", "budget_tokens", "gain"), gains)
    at_last = {model: p for ((model, _), _), p in zip(gains, corrected, strict=True)}  # the last budget of each
    remarks = (USED, *remark_on_correction("gains over the first budget", len(gains)))
    tables = (_table(by_model), table)
    return Analysis(tables, (_figure(by_model),), _summary(by_model), _verdicts(models, by_model, at_last), remarks)


def extrapolation_of(model: ModelSamples) -> ModelExtrapolation:
    """Boundary j stands for budget j - 1."""
    measures = [AccuracyAt(budget, number + 1) for number, budget in enumerate(model.budgets)]
    values = tuple(measure.values(model) for measure in measures)
    return ModelExtrapolation(
        model.name, model.budgets, values, tuple(tokens_used(model, m.boundary) for m in measures)
    )


def tokens_used(model: ModelSamples, boundary: int) -> float:
    """A budget limits the thoughts, and not the answer forced there."""
    used = [[tokens_at(t.boundaries[boundary], "sampled", 0) for t in traces] for traces in model.problems.values()]
    return float(np.mean([np.mean(mine) for mine in used]))


def _table(by_model: Sequence[ModelExtrapolation]) -> DataTable:
    rows = [
        (model.name, budget, *interval_cells(accuracy), used)
        for model in by_model
        for budget, accuracy, used in zip(model.budgets, model.accuracy, model.used, strict=True)
    ]
    return DataTable("extrapolation", ("model", "budget_tokens", "accuracy", "low", "high", "tokens_used"), tuple(rows))


def _figure(by_model: Sequence[ModelExtrapolation]) -> LineFigure:
    allowed = tuple(line_of(m.name, m.budgets, m.accuracy) for m in by_model)
    used = tuple(line_of(m.name, m.used, m.accuracy) for m in by_model)
    label = "accuracy when made to stop (95 % interval)"
    by_budget = Panel("Accuracy past the first budget", "budget (tokens)", label, allowed, percent=True)
    return LineFigure(
        "extrapolation", (by_budget, Panel("By tokens used", "tokens of a thought, mean", "", used, percent=True))
    )


def _summary(by_model: Sequence[ModelExtrapolation]) -> DataTable:
    columns = ("model", *(f"budget {budget}" for budget in by_model[0].budgets), "gain")
    rows = [
        (
            model.name,
            *(f"{one.mean:.3f}, {used:.0f} used" for one, used in zip(model.accuracy, model.used, strict=True)),
            interval_text(model.gain[-1].interval, signed=True),
        )
        for model in by_model
    ]
    return DataTable("accuracy by budget", columns, tuple(rows))


def _verdicts(
    models: Sequence[ModelSamples], by_model: Sequence[ModelExtrapolation], corrected: Mapping[str, float]
) -> tuple[str, ...]:
    """Whether thinking longer helps each model, and how the models differ at the last budget. ``corrected`` holds
    p-values of gains there, if that is not the first budget.
    """
    at_last = [(model, model.gain[-1]) for model in by_model]
    longer = [
        f"{model.name}, a budget of {model.budgets[-1]} against {model.budgets[0]} tokens "
        f"({model.used[-1]:.0f} against {model.used[0]:.0f} used): "
        f"{interval_text(gain.interval, signed=True)}, {_word(gain, corrected.get(model.name, 1.0))}"
        for model, gain in at_last
    ]
    return (*longer, *comparisons_with_first(models, AccuracyAt(by_model[0].budgets[-1], len(by_model[0].budgets))))


def _word(gain: MeanGain, corrected_p: float) -> str:
    if corrected_p >= SIGNIFICANCE:
        return "no gain or loss is shown" + (" after the correction" if gain.p_value < SIGNIFICANCE else "")
    return "it gains" if gain.mean > 0 else "it loses"
