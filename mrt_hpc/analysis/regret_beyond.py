"""Normalised regret up to the training's budget and past it (paper, Figures 9 and 12), for ``mrt-hpc analyze regret RUN
--beyond EXTRAPOLATED``.

One evaluation cuts thoughts into episodes, another extends thoughts (mode ``extrapolation``). Trace i of a problem has
the same thought in both, where the engine gives equal samples for equal seeds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mrt_hpc.analysis.analysis_files import Analysis, Curve, CurvePoint
from mrt_hpc.analysis.model_samples import SUITE_WITH, EvaluatedTrace, ModelSamples, require_same_budgets
from mrt_hpc.analysis.problem_measures import curve_of, curves_of
from mrt_hpc.analysis.regret_curves import analysis_of_regret
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.mrt.regret import TraceCurve, join_curves, regret_by_problem
from mrt_hpc.recipe.choices import Boundaries

PARTS = 4
"""The number of budgets up to that of the training where none are named."""


@dataclass(frozen=True)
class Extended:
    samples: ModelSamples
    extensions: ModelSamples

    @property
    def pairs(self) -> Iterator[tuple[EvaluatedTrace, EvaluatedTrace]]:
        """Each trace with its extension, of those that both evaluations have."""
        for problem, traces in self.samples.problems.items():
            yield from zip(traces, self.extensions.problems[problem], strict=False)

    @property
    def others(self) -> int:
        """Pairs whose thoughts are different samples, as their lengths show."""
        base = self.extensions.budgets[0]
        return sum(not _is_same(trace, extension, base) for trace, extension in self.pairs)


def _is_same(trace: EvaluatedTrace, extension: EvaluatedTrace, base: int) -> bool:
    """Whether the thoughts agree. One that the limit cut is extended from its last whole paragraph."""
    end, extended = trace.boundaries[-1].tokens, extension.boundaries[1].tokens
    return extended == end or (end == base and extended < end)


def analyse_regret_beyond(
    models: Sequence[ModelSamples], beyond: Sequence[ModelSamples], budgets: Sequence[int]
) -> Analysis:
    """Normalised regret up to the training's budget; past it a trace's curve goes on through its extensions.

    Args:
        models: with values at the ends of episodes.
        beyond: the same models and perhaps others, with values at the ends of extensions.
        budgets: up to that of the training, in tokens; empty takes four.
    """
    pairs = [_extend(model, beyond) for model in models]
    require_same_budgets([pair.extensions for pair in pairs])
    base, *longer = pairs[0].extensions.budgets
    up_to = sorted(set(budgets)) or [base * part // PARTS for part in range(1, PARTS + 1)]
    if up_to[-1] > base:
        raise UserError(
            "past the budget of the training, the budgets are those of the extensions",
            value=up_to[-1],
            where="--budgets",
            expected=f"at most {base}",
            advice=Advice("--budgets {base}", base=base),
        )
    curves = [_regret_of(pair, up_to, longer) for pair in pairs]
    found = analysis_of_regret(curves, range(len(curves[0].points)))
    other_samples = [
        f"{pair.samples.name}: {others} of {sum(1 for _ in pair.pairs)} thoughts that were extended are other samples "
        "than those that were cut into episodes, as their lengths show; such a curve joins two thoughts"
        for pair in pairs
        if (others := pair.others)
    ]
    return replace(found, remarks=(*other_samples, *found.remarks))


def _extend(model: ModelSamples, beyond: Sequence[ModelSamples]) -> Extended:
    curves_of(model)  # it refuses samples that have no regret
    found = next((other for other in beyond if other.weights == model.weights), None)
    if found is None or not model.problems.keys() <= found.problems.keys():
        raise UserError(
            f"{model.name} was not extended on these problems of {model.benchmark}",
            value=[other.name for other in beyond],
            where="--beyond",
            expected=f"an evaluation of {model.source}",
            advice=Advice(
                "mrt-hpc eval {source} --suite {suite_with}",
                source=model.source,
                suite_with=SUITE_WITH[Boundaries.EXTENSIONS],
            ),
        )
    found.require_boundaries(Boundaries.EXTENSIONS)
    found.require_values()
    pair = Extended(model, replace(found, name=model.name, counted=model.counted))
    if pair.others == sum(1 for _ in pair.pairs):
        raise UserError(
            f"{model.name}: none of the thoughts that were extended is one that was cut into episodes",
            where=found.source,
            expected="the same seed, prompt, sampling and token limit in both evaluations",
            advice=Advice(
                "mrt-hpc eval {source} --suite {suite_with}",
                source=model.source,
                suite_with=SUITE_WITH[Boundaries.EPISODES],
            ),
        )
    return pair


def _regret_of(pair: Extended, up_to: Sequence[int], longer: Sequence[int]) -> Curve:
    whole, counted = curves_of(pair.samples), pair.samples.counted
    extended = {problem: [curve_of(trace, counted) for trace in pair.extensions.problems[problem]] for problem in whole}
    short = {p: curves[: len(extended[p])] for p, curves in whole.items()}
    points = [CurvePoint((budget,), regret_by_problem(short, budget)) for budget in up_to]
    for number, budget in enumerate(longer, start=2):  # boundary 1 is the end of the thought itself
        curves = {
            problem: [
                join_curves(curve, TraceCurve(more.tokens[2 : number + 1], more.values[2 : number + 1]))
                for curve, more in zip(mine, extended[problem], strict=False)
            ]
            for problem, mine in short.items()
        }
        points.append(CurvePoint((budget,), regret_by_problem(curves, budget)))
    return Curve((pair.samples.name,), tuple(points))
