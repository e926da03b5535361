"""Normalised regret against the budget of tokens, for ``mrt-hpc analyze regret``: of the recipe's own traces, past the
budget of the training, and against voting.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mrt_hpc.analysis import findings, intervals
from mrt_hpc.analysis.findings import Analysis, Cell, Curve, Point, analysis_of_curves
from mrt_hpc.analysis.model_samples import EvaluatedTrace, ModelSamples, require_same_budgets
from mrt_hpc.analysis.problem_measures import Regret, curve_of, curves_of, require_budget
from mrt_hpc.analysis.scaling import forced_majority, require_few_draws
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.mrt.regret import (
    VOTES,
    TraceCurve,
    area_of_episodes,
    join_curves,
    regret_against_voting,
    regret_by_problem,
)
from mrt_hpc.mrt.votes import RULE
from mrt_hpc.recipe.choices import Boundaries

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
    measured = sorted(set(budgets)) or even_budgets(min([most_tokens(models, valued.values()), *limits]))
    for model in models:
        require_budget(model, measured[-1], Advice("--budgets "))
    regrets = [
        Curve((name,), tuple(Point((budget,), regret_by_problem(mine, budget)) for budget in measured))
        for name, mine in valued.items()
    ]
    areas = [
        Curve((name,), tuple(Point((j,), given=area) for j, area in enumerate(area_ratios(mine, measured[-1]))))
        for name, mine in valued.items()
    ]
    shown = {measured[round((len(measured) - 1) * part / 4)] for part in range(1, 5)}
    found = analysis_of_regret(regrets, shown)
    table, *differences = found.tables
    compared = [row for table in differences for row in table.rows]
    corrected = [float(row[-1] or 0) for row in compared if row[2] == measured[-1]]
    of_areas = analysis_of_curves(
        "areas_by_episode", "model episodes area_ratio low high", areas, "Area of the first episodes", "episodes kept",
        f"area / area of whole traces, {measured[-1]} tokens", "{} episodes", percent=True, whole_numbers=True,
        level=1.0,
    )  # fmt: skip
    left_out = [
        f"{curve.model}: no prefix has a value above 0, so no areas are compared. All values are 0 where the "
        "prover's forced text leads the model to no answer: take evaluation.prover from the recipe that trained it"
        for curve in areas
        if not curve.points
    ]
    return replace(
        found,
        tables=(table, *of_areas.tables, *differences),
        figures=(*found.figures, *of_areas.figures),
        verdicts=findings.comparisons_with_first(models, Regret(measured[-1]), corrected, len(compared)),
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


def analysis_of_regret(curves: Sequence[Curve], shown: Collection[float] = ()) -> Analysis:
    """The curves have the same budgets, of which the summary has those that are ``shown``."""
    found = analysis_of_curves(
        "regret", "model budget_tokens regret low high", curves, "Normalised regret", "budget (tokens)",
        "normalised regret (mean, 95 % interval)", "{} tokens", shown=shown,
    )  # fmt: skip
    first, *others = curves
    gains: list[tuple[tuple[Cell, ...], intervals.MeanGain]] = [
        ((curve.model, first.model, *after.at), intervals.mean_gain([(before.by_problem, after.by_problem)]))
        for curve in others
        for before, after in zip(first.points, curve.points, strict=True)
    ]
    differences, _ = findings.gain_table("regret_differences", "model against budget_tokens difference", gains)
    remarks = findings.remark_on_correction("differences of regret at the budgets", len(gains))
    if remarks and len(first.points) > 1:
        remarks = (*remarks, "fewer budgets that were chosen before (--budgets) are corrected for less")
    return replace(found, tables=(*found.tables, *([differences] if others else [])), remarks=remarks)


# -- past the budget of the training -----------------------------------------------------------------------------------
# ``mrt-hpc analyze regret RUN --beyond EXTRAPOLATED`` (paper, Figures 9 and 12): one evaluation cuts thoughts into
# episodes, another extends thoughts (mode ``extrapolation``). Trace i of a problem has the same thought in both, where
# the engine gives equal samples for equal seeds.


PARTS = 4
"""The number of budgets up to that of the training where none are named."""


@dataclass(frozen=True)
class Extended:
    samples: ModelSamples
    extensions: ModelSamples

    @property
    def same(self) -> list[bool]:
        """Whether the two thoughts are one sample, as their lengths show, of each trace that both evaluations have."""
        base = self.extensions.budgets[0]
        return [
            _is_same(trace, extension, base)
            for problem, traces in self.samples.problems.items()
            for trace, extension in zip(traces, self.extensions.problems[problem], strict=False)
        ]


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
    found = analysis_of_regret(curves)
    other_samples = [
        f"{pair.samples.name}: {same.count(False)} of {len(same)} thoughts that were extended are other samples than "
        "those that were cut into episodes, as their lengths show; such a curve joins two thoughts"
        for pair in pairs
        if not all(same := pair.same)
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
            advice=model.command_for(Boundaries.EXTENSIONS),
        )
    found.require_boundaries(Boundaries.EXTENSIONS)
    found.require_values()
    pair = Extended(model, replace(found, name=model.name, counted=model.counted))
    if not any(pair.same):
        raise UserError(
            f"{model.name}: none of the thoughts that were extended is one that was cut into episodes",
            where=found.source,
            expected="the same seed, prompt, sampling and token limit in both evaluations",
            advice=model.command_for(Boundaries.EPISODES),
        )
    return pair


def _regret_of(pair: Extended, up_to: Sequence[int], longer: Sequence[int]) -> Curve:
    whole, counted = curves_of(pair.samples), pair.samples.counted
    extended = {problem: [curve_of(trace, counted) for trace in pair.extensions.problems[problem]] for problem in whole}
    short = {p: curves[: len(extended[p])] for p, curves in whole.items()}
    points = [Point((budget,), regret_by_problem(short, budget)) for budget in up_to]
    for number, budget in enumerate(longer, start=2):  # boundary 1 is the end of the thought itself
        curves = {
            problem: [
                join_curves(curve, TraceCurve(more.tokens[2 : number + 1], more.values[2 : number + 1]))
                for curve, more in zip(mine, extended[problem], strict=False)
            ]
            for problem, mine in short.items()
        }
        points.append(Point((budget,), regret_by_problem(curves, budget)))
    return Curve((pair.samples.name,), tuple(points))


# -- against voting ----------------------------------------------------------------------------------------------------
# What thinking on loses to the better of thinking on and of voting, by the number of episodes (paper, Appendix E), for
# ``mrt-hpc analyze regret --against-voting``. The mean is over traces; its interval is clustered by problem.


def analyse_voting_regret(models: Sequence[ModelSamples]) -> Analysis:
    """Raises UserError where boundaries are not the ends of episodes, or have fewer than 8 forced answers."""
    curves = [voting_regret(model) for model in models]
    found = analysis_of_curves(
        "regret_against_voting", "model episodes regret low high traces", curves, "Regret against voting", "episodes",
        "regret against voting (mean, 95 % interval)", "{} episodes", whole_numbers=True,
    )  # fmt: skip
    return replace(found, remarks=(RULE,))


def voting_regret(model: ModelSamples) -> Curve:
    """Against voting over the first b episodes, for b = 1 .. the most of a trace; beside it the traces with an area to
    be compared.
    """
    model.require_boundaries(Boundaries.EPISODES)
    if model.fewest_forced < VOTES[-1]:
        raise UserError(
            f"{model.name}: regret against voting needs {VOTES[-1]} answers that were forced at each prefix",
            value=model.fewest_forced,
            where=model.source,
            expected=f"an evaluation whose prover draws at least {VOTES[-1]} branches",
            advice=model.command_for(Boundaries.EPISODES),
        )
    require_few_draws(model)
    votes = {
        problem: [np.array([[forced_majority(b, p) for p in VOTES] for b in trace.boundaries]) for trace in traces]
        for problem, traces in model.problems.items()
    }
    most = max(len(trace) for traces in votes.values() for trace in traces) - 1
    found = []
    for episodes in range(1, most + 1):
        by_trace = [[regret_against_voting(trace, episodes) for trace in traces] for traces in votes.values()]
        known = [[regret for regret in traces if regret is not None] for traces in by_trace]
        if any(known):
            mean = intervals.clustered_mean([regrets for regrets in known if regrets])
            found.append(Point((episodes,), given=mean, more=(sum(map(len, known)),)))
    return Curve((model.name,), tuple(found))
