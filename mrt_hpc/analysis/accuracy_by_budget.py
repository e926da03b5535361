"""``mrt-hpc analyze extrapolate``: accuracy against the budget of thinking, up to and past that of the training.

The evaluation continues each thought by words in place of its end (mode ``extrapolation``) and asks for values at some
of the extensions. The value there is how often a model answers right that is made to stop at this budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.analysis.analysis_files import Analysis, DataTable, against_first, budget_table, interval_text
from mrt_hpc.analysis.figures import LineFigure, Panel, line_of
from mrt_hpc.analysis.intervals import IntervalEstimate, paired_difference, share_interval
from mrt_hpc.analysis.model_samples import SUITE_WITH, ModelSamples
from mrt_hpc.analysis.problem_measures import MeanMeasure
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.choices import Boundaries

MEANT = (Boundaries.EXTENSIONS,)
"""The samples that this analysis makes sense of."""


@dataclass(frozen=True)
class AccuracyAt(MeanMeasure):
    """How often a model answers right that is made to stop at a budget."""

    budget: int
    boundary: int
    """Its number among the boundaries of each trace."""

    @property
    def name(self) -> str:
        """The name, with the budget."""
        return f"accuracy at {self.budget} tokens"

    def terms(self, model: ModelSamples) -> dict[str, NDArray[np.float64]]:
        """[n] the value at the boundary of each trace, by problem."""
        return {
            problem: np.array([trace.boundaries[self.boundary].value for trace in traces], float)
            for problem, traces in model.problems.items()
        }


@dataclass(frozen=True)
class ModelExtrapolation:
    """The accuracy of one model at each budget."""

    name: str
    budgets: tuple[int, ...]
    by_problem: tuple[dict[str, float], ...]
    """[budgets] the accuracy of each problem."""

    @property
    def accuracy(self) -> tuple[IntervalEstimate, ...]:
        """[budgets] the mean over problems."""
        return tuple(share_interval(np.array(list(values.values()))) for values in self.by_problem)

    @property
    def gain(self) -> tuple[IntervalEstimate, ...]:
        """[budgets] the accuracy less that at the first budget, paired by problem."""
        return tuple(paired_difference(self.by_problem[0], values) for values in self.by_problem)


def analyse_extrapolation(models: Sequence[ModelSamples]) -> Analysis:
    """The accuracy of several models past the budget of their training.

    Args:
        models: on the same benchmark, whose mode is ``extrapolation``.

    Raises:
        UserError: a model was evaluated in another way, without values, or at other budgets than the first.
    """
    budgets = models[0].budgets
    for model in models:
        _require(model, budgets)
    by_model = [extrapolation_of(model) for model in models]
    accuracies = [(model.name, model.budgets, model.accuracy) for model in by_model]
    gains = [(model.name, model.budgets[1:], model.gain[1:]) for model in by_model]
    tables = (budget_table("extrapolation", "accuracy", accuracies), budget_table("extrapolation_gains", "gain", gains))
    return Analysis(tables, (_figure(by_model),), _summary(by_model), _verdicts(models, by_model))


def _require(model: ModelSamples, budgets: tuple[int, ...]) -> None:
    """Refuse a model that was not extrapolated to these budgets.

    Raises:
        UserError: see there.
    """
    model.require_boundaries(*MEANT)
    model.require_values()
    if model.budgets != budgets:
        raise UserError(
            f"{model.name} was extrapolated to other budgets than the first model",
            value=list(model.budgets),
            where=model.source,
            expected=", ".join(map(str, budgets)),
            advice=f"mrt-hpc eval {model.source} --suite {SUITE_WITH[MEANT[0]]}",
        )


def extrapolation_of(model: ModelSamples) -> ModelExtrapolation:
    """The accuracy of a model at each of its budgets; boundary j stands for budget j - 1."""
    measures = [AccuracyAt(budget, number + 1) for number, budget in enumerate(model.budgets)]
    return ModelExtrapolation(model.name, model.budgets, tuple(measure.values(model) for measure in measures))


def _figure(by_model: Sequence[ModelExtrapolation]) -> LineFigure:
    lines = tuple(line_of(m.name, m.budgets, m.accuracy) for m in by_model)
    title = "Accuracy past the first budget"
    label = "accuracy when made to stop (95 % interval)"
    return LineFigure("extrapolation", (Panel(title, "budget (tokens)", label, lines, percent=True),))


def _summary(by_model: Sequence[ModelExtrapolation]) -> DataTable:
    columns = ("model", *(f"{budget} tokens" for budget in by_model[0].budgets), "gain")
    rows = [
        (
            model.name,
            *(f"{estimate.mean:.3f}" for estimate in model.accuracy),
            interval_text(model.gain[-1], signed=True),
        )
        for model in by_model
    ]
    return DataTable("accuracy by budget", columns, tuple(rows))


def _verdicts(models: Sequence[ModelSamples], by_model: Sequence[ModelExtrapolation]) -> tuple[str, ...]:
    """Whether thinking longer helps each model, and whether the models can be distinguished at the last budget."""
    longer = [
        f"{model.name}, {model.budgets[-1]} against {model.budgets[0]} tokens: "
        f"{interval_text(model.gain[-1], signed=True)}, {_word(model.gain[-1])}"
        for model in by_model
    ]
    return (*longer, *against_first(models, AccuracyAt(by_model[0].budgets[-1], len(by_model[0].budgets))))


def _word(gain: IntervalEstimate) -> str:
    if not gain.excludes_zero:
        return "no gain or loss is shown"
    return "it gains" if gain.mean > 0 else "it loses"
