"""``mrt-hpc analyze regret RUN --beyond EXTRAPOLATED``: normalised regret up to the budget of the training and past
it, from the episodes of thoughts and from their extensions in one curve (paper, Figures 9 and 12).

Two evaluations have the parts of a curve: one cuts thoughts into episodes, the other extends thoughts (mode
``extrapolation``). A thought that is extended is sampled with the seed of a direct evaluation, so trace i of a problem
has the same thought in both, where the engine gives equal samples for equal seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrt_hpc.analysis.analysis_files import Analysis
from mrt_hpc.analysis.model_samples import SUITE_WITH, EvaluatedTrace, ModelSamples
from mrt_hpc.analysis.problem_measures import curve_of, curves_of
from mrt_hpc.analysis.regret_by_budget import (
    ModelRegret,
    figure_of_regret,
    remark_on_differences,
    summary_of_regret,
    tables_of_regret,
)
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.regret import TraceCurve, joined, regret_by_problem
from mrt_hpc.recipe.choices import Boundaries

PARTS = 4
"""The number of budgets up to that of the training where none are named."""


@dataclass(frozen=True)
class Extended:
    """The samples of one model in both evaluations."""

    samples: ModelSamples
    extensions: ModelSamples

    @property
    def pairs(self) -> Iterator[tuple[EvaluatedTrace, EvaluatedTrace]]:
        """Each trace with its extension, of the traces that both evaluations have."""
        for problem, traces in self.samples.problems.items():
            yield from zip(traces, self.extensions.problems[problem], strict=False)

    @property
    def others(self) -> int:
        """The number of pairs whose thoughts are different samples: they have different lengths."""
        base = self.extensions.budgets[0]
        return sum(not _is_same(trace, extension, base) for trace, extension in self.pairs)


def _is_same(trace: EvaluatedTrace, extension: EvaluatedTrace, base: int) -> bool:
    """Whether both have the same thought. One that the limit cut is extended from its last whole paragraph."""
    end, extended = trace.boundaries[-1].tokens, extension.boundaries[1].tokens
    return extended == end or (end == base and extended < end)


def analyse_regret_beyond(
    models: Sequence[ModelSamples], beyond: Sequence[ModelSamples], budgets: Sequence[int]
) -> Analysis:
    """Normalised regret of several models up to the budget of the training and past it.

    At a budget past it, the curve of a trace goes on through its extensions up to this budget, and no further.

    Args:
        models: on the same benchmark, with values at the ends of episodes.
        beyond: the same models and perhaps others, on the same benchmark, with values at the ends of extensions.
        budgets: up to that of the training, in tokens; empty takes four.

    Raises:
        UserError: samples are of another kind, a model was not extended, no thought of it is the one that was extended,
            or a budget exceeds that of the training.
    """
    pairs = [_extended(model, beyond) for model in models]
    _require_same_budgets(pairs)
    base, *longer = pairs[0].extensions.budgets
    up_to = sorted(set(budgets)) or [base * part // PARTS for part in range(1, PARTS + 1)]
    if up_to[-1] > base:
        raise UserError(
            "past the budget of the training, the budgets are those of the extensions",
            value=up_to[-1],
            where="--budgets",
            expected=f"at most {base}",
            advice=f"--budgets {base}",
        )
    by_model = [_regret_of(pair, up_to, longer) for pair in pairs]
    places = range(len(by_model[0].budgets))
    summary, tables = summary_of_regret(by_model, places), tables_of_regret(by_model)
    remarks = (*_remarks(pairs), *remark_on_differences(by_model))
    return Analysis(tables, (figure_of_regret(by_model),), summary, remarks=remarks)


def _extended(model: ModelSamples, beyond: Sequence[ModelSamples]) -> Extended:
    """A model with its extensions.

    Raises:
        UserError: there are none, they are of another kind, or of other thoughts.
    """
    curves_of(model)  # it refuses samples that have no regret
    found = next((other for other in beyond if other.weights == model.weights), None)
    if found is None or not model.problems.keys() <= found.problems.keys():
        raise UserError(
            f"{model.name} was not extended on these problems of {model.benchmark}",
            value=[other.name for other in beyond],
            where="--beyond",
            expected=f"an evaluation of {model.source}",
            advice=f"mrt-hpc eval {model.source} --suite {SUITE_WITH[Boundaries.EXTENSIONS]}",
        )
    found.require_boundaries(Boundaries.EXTENSIONS)
    found.require_values()
    pair = Extended(model, replace(found, name=model.name, counted=model.counted))
    if pair.others == sum(1 for _ in pair.pairs):
        raise UserError(
            f"{model.name}: none of the thoughts that were extended is one that was cut into episodes",
            where=found.source,
            expected="the same seed, prompt, sampling and token limit in both evaluations",
            advice=f"mrt-hpc eval {model.source} --suite {SUITE_WITH[Boundaries.EPISODES]}",
        )
    return pair


def _require_same_budgets(pairs: Sequence[Extended]) -> None:
    """Refuse models that were extended to different budgets.

    Raises:
        UserError: there are such models.
    """
    first = pairs[0].extensions
    for pair in pairs[1:]:
        if pair.extensions.budgets != first.budgets:
            raise UserError(
                f"{pair.samples.name} was extended to other budgets than {pairs[0].samples.name}",
                value=list(pair.extensions.budgets),
                where="--beyond",
                expected=", ".join(map(str, first.budgets)),
                advice=f"mrt-hpc eval {first.source} {pair.extensions.source} "
                f"--suite {SUITE_WITH[Boundaries.EXTENSIONS]}",
            )


def _regret_of(pair: Extended, up_to: Sequence[int], longer: Sequence[int]) -> ModelRegret:
    """The regret of one model, over the traces that both evaluations have."""
    whole, counted = curves_of(pair.samples), pair.samples.counted
    extended = {problem: [curve_of(trace, counted) for trace in pair.extensions.problems[problem]] for problem in whole}
    short = {p: curves[: len(extended[p])] for p, curves in whole.items()}
    by_problem = [regret_by_problem(short, budget) for budget in up_to]
    for number, budget in enumerate(longer, start=2):  # boundary 1 is the end of the thought itself
        curves = {
            problem: [
                joined(curve, TraceCurve(more.tokens[2 : number + 1], more.values[2 : number + 1]))
                for curve, more in zip(mine, extended[problem], strict=False)
            ]
            for problem, mine in short.items()
        }
        by_problem.append(regret_by_problem(curves, budget))
    return ModelRegret(pair.samples.name, (*up_to, *longer), tuple(by_problem), ())


def _remarks(pairs: Sequence[Extended]) -> tuple[str, ...]:
    """Where two thoughts were joined instead of one."""
    return tuple(
        f"{pair.samples.name}: {others} of {sum(1 for _ in pair.pairs)} thoughts that were extended are other samples "
        "than those that were cut into episodes, as their lengths show; such a curve joins two thoughts"
        for pair in pairs
        if (others := pair.others)
    )
