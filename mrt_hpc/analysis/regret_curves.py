"""Normalised regret against the budget of tokens, past the budget of the training, and against voting."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mrt_hpc.analysis import intervals
from mrt_hpc.analysis.analysis_files import (
    Analysis,
    DataTable,
    against_first,
    gain_table,
    interval_cells,
    interval_text,
    remark_on_correction,
)
from mrt_hpc.analysis.figures import LineFigure, Panel, line_of
from mrt_hpc.analysis.model_samples import SUITE_WITH, EvaluatedTrace, ModelSamples, require_same_budgets
from mrt_hpc.analysis.problem_measures import Regret, curve_of, curves_of, require_budget
from mrt_hpc.analysis.scaling import forced_majority, require_few_draws
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.regret import VOTES, TraceCurve, area_of_episodes, joined, regret_against_voting, regret_by_problem
from mrt_hpc.mrt.votes import RULE
from mrt_hpc.recipe.choices import Boundaries

MEANT = (Boundaries.EPISODES,)
"""The samples that this analysis makes sense of."""
BUDGETS = 32
"""The number of budgets that are measured where none are named."""

Curves = dict[str, "list[TraceCurve]"]


@dataclass(frozen=True)
class ModelRegret:
    """The regret of one model."""

    name: str
    budgets: tuple[int, ...]
    by_problem: tuple[dict[str, float], ...]
    """[budgets] the normalised regret of each problem."""
    areas: tuple[intervals.IntervalEstimate, ...]
    """[1 + episodes] the area of the first j episodes, divided by that of whole traces, up to the largest budget; empty
    where all areas are 0.
    """

    @property
    def regret(self) -> tuple[intervals.IntervalEstimate, ...]:
        """[budgets] normalised regret: the mean over problems."""
        return tuple(intervals.mean_of_shares(regret) for regret in self.by_problem)

    def above(self, other: "ModelRegret") -> tuple[intervals.MeanGain, ...]:
        """[budgets] the difference of its regret to another model's, paired by problem; below 0 it is better."""
        return tuple(intervals.mean_gain([pair]) for pair in zip(other.by_problem, self.by_problem, strict=True))


def analyse_regret(models: Sequence[ModelSamples], budgets: Sequence[int]) -> Analysis:
    """Normalised regret of several models.

    Args:
        models: on the same benchmark.
        budgets: in tokens; empty takes 32 up to the longest trace, or to the last boundary where that has more tokens,
            or to the limit of an evaluation where that has fewer.

    Raises:
        UserError: the boundaries of a model are not the ends of episodes, its prefixes were not valued, or a budget
            exceeds the limit of an evaluation.
    """
    curves = {model.name: curves_of(model) for model in models}
    limits = [model.limit for model in models if model.limit is not None]
    longest = min([most_tokens(models, curves.values()), *limits])
    measured = sorted(set(budgets)) or even_budgets(longest)
    for model in models:
        require_budget(model, measured[-1], "--budgets ")
    by_model = [regret_of(name, mine, measured) for name, mine in curves.items()]
    figures = (figure_of_regret(by_model), _figure_of_areas(by_model))
    table, *differences = tables_of_regret(by_model)
    tables = (table, _table_of_areas(by_model), *differences)
    shown = sorted({round((len(measured) - 1) * part / 4) for part in range(1, 5)})
    compared = [row for table in differences for row in table.rows]
    corrected = [float(row[-1]) for row in compared if row[2] == measured[-1]]
    verdicts = against_first(models, Regret(measured[-1]), corrected, len(compared))
    return Analysis(tables, figures, summary_of_regret(by_model, shown), verdicts, _remarks(by_model))


def most_tokens(models: Sequence[ModelSamples], curves: Iterable[Curves]) -> int:
    """The tokens of the longest trace of all, or of the last boundary where that has more: with all tokens counted, it
    has those of the prompt and of the answer as well.
    """
    last = max(curve.tokens[-1] for mine in curves for traces in mine.values() for curve in traces)
    return max(math.ceil(last), *(model.longest for model in models))


def even_budgets(longest: int) -> list[int]:
    """Budgets at even distances up to the longest trace."""
    return sorted({max(1, round(longest * part / BUDGETS)) for part in range(1, BUDGETS + 1)})


def regret_of(name: str, curves: Curves, budgets: Sequence[int]) -> ModelRegret:
    """The regret of one model at all budgets, with intervals over problems."""
    by_problem = tuple(regret_by_problem(curves, budget) for budget in budgets)
    return ModelRegret(name, tuple(budgets), by_problem, area_ratios(curves, budgets[-1]))


def area_ratios(curves: Mapping[str, Sequence[TraceCurve]], budget: int) -> tuple[intervals.IntervalEstimate, ...]:
    """[1 + episodes] for j = 0 .. the most episodes of a trace, the mean area of traces that are stopped after their
    first j episodes, divided by the mean area of whole traces; both are means over problems.
    """
    most = max(len(curve.values) for traces in curves.values() for curve in traces) - 1
    areas = np.array([_mean_areas(traces, most, budget) for traces in curves.values()])
    whole = areas[:, most]
    return tuple(intervals.ratio_interval(areas[:, j], whole) for j in range(most + 1)) if whole.any() else ()


def _mean_areas(traces: Sequence[TraceCurve], most: int, budget: int) -> list[float]:
    """[1 + most] the mean area of a problem's traces when they are stopped after j episodes."""
    return [float(np.mean([area_of_episodes(curve, j, budget) for curve in traces])) for j in range(most + 1)]


def tables_of_regret(by_model: Sequence[ModelRegret]) -> tuple[DataTable, ...]:
    """The regret of all models at all budgets, and of several models the differences to the first."""
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
        for budget, difference in zip(model.budgets, model.above(first), strict=True)
    ]
    return gain_table("regret_differences", ("model", "against", "budget_tokens", "difference"), differences)[0]


def _table_of_areas(by_model: Sequence[ModelRegret]) -> DataTable:
    rows = [(model.name, j, *interval_cells(area)) for model in by_model for j, area in enumerate(model.areas)]
    return DataTable("areas_by_episode", ("model", "episodes", "area_ratio", "low", "high"), tuple(rows))


def figure_of_regret(by_model: Sequence[ModelRegret]) -> LineFigure:
    """The regret against the budget, a line each model."""
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
    """The regret at some of the budgets, which are named by their place among all."""
    budgets = by_model[0].budgets
    rows = [(model.name, *(interval_text(model.regret[index]) for index in shown)) for model in by_model]
    return DataTable("normalised regret", ("model", *(f"{budgets[i]} tokens" for i in shown)), tuple(rows))


def _remarks(by_model: Sequence[ModelRegret]) -> tuple[str, ...]:
    """What was left out, and for how many comparisons the table of differences is corrected."""
    left_out = [
        f"{m.name}: no prefix has a value above 0, so no areas are compared. All values are 0 where the "
        "prover's forced text leads the model to no answer: take evaluation.prover from the recipe that trained it"
        for m in by_model
        if not m.areas
    ]
    return (*left_out, *remark_on_differences(by_model))


def remark_on_differences(by_model: Sequence[ModelRegret]) -> tuple[str, ...]:
    """For how many comparisons the table of differences is corrected; nothing for one model."""
    count = (len(by_model) - 1) * len(by_model[0].budgets)
    remarks = remark_on_correction("differences of regret at the budgets", count)
    if len(by_model[0].budgets) == 1 or not remarks:
        return remarks
    return (*remarks, "fewer budgets that were chosen before (--budgets) are corrected for less")


# -- regret beyond -----------------------------------------------------------------------------------------------------
# ``mrt-hpc analyze regret RUN --beyond EXTRAPOLATED``: normalised regret up to the budget of the training and past
# it, from the episodes of thoughts and from their extensions in one curve (paper, Figures 9 and 12).
#
# Two evaluations have the parts of a curve: one cuts thoughts into episodes, the other extends thoughts (mode
# ``extrapolation``). A thought that is extended is sampled with the seed of a direct evaluation, so trace i of a
# problem has the same thought in both, where the engine gives equal samples for equal seeds.


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
    require_same_budgets([pair.extensions for pair in pairs])
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
    remarks = (*_on_other_samples(pairs), *remark_on_differences(by_model))
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


def _on_other_samples(pairs: Sequence[Extended]) -> tuple[str, ...]:
    """Where two thoughts were joined instead of one."""
    return tuple(
        f"{pair.samples.name}: {others} of {sum(1 for _ in pair.pairs)} thoughts that were extended are other samples "
        "than those that were cut into episodes, as their lengths show; such a curve joins two thoughts"
        for pair in pairs
        if (others := pair.others)
    )


# -- voting regret -----------------------------------------------------------------------------------------------------
# ``mrt-hpc analyze regret --against-voting``: what thinking on loses to the better of thinking on and of voting, by
# the number of episodes (paper, Appendix E). The mean is over traces, its interval is clustered by problem.


@dataclass(frozen=True)
class VotingRegret:
    """The regret of one model against voting over its first episodes."""

    episodes: int
    """b."""
    regret: intervals.IntervalEstimate
    traces: int
    """Those with an area to be compared."""


def analyse_voting_regret(models: Sequence[ModelSamples]) -> Analysis:
    """Regret against voting of several models.

    Args:
        models: on the same benchmark, with at least 8 forced answers at the end of each episode.

    Raises:
        UserError: the boundaries of a model are not the ends of episodes, or it has fewer forced answers.
    """
    by_model = {model.name: voting_regret(model) for model in models}
    rows = [
        (name, one.episodes, *interval_cells(one.regret), one.traces) for name, mine in by_model.items() for one in mine
    ]
    table = DataTable("regret_against_voting", ("model", "episodes", "regret", "low", "high", "traces"), tuple(rows))
    lines = tuple(line_of(n, [r.episodes for r in mine], [r.regret for r in mine]) for n, mine in by_model.items())
    label = "regret against voting (mean, 95 % interval)"
    panel = Panel("Regret against voting", "episodes", label, lines, whole_numbers=True)
    most = max((len(mine) for mine in by_model.values()), default=0)
    cells = [
        (name, *[interval_text(r.regret) for r in mine], *[""] * (most - len(mine))) for name, mine in by_model.items()
    ]
    columns = ("model", *(f"{b + 1} episodes" for b in range(most)))
    summary = DataTable("regret against voting", columns, tuple(cells))
    return Analysis((table,), (LineFigure("regret_against_voting", (panel,)),), summary, remarks=(RULE,))


def voting_regret(model: ModelSamples) -> list[VotingRegret]:
    """The regret against voting for b = 1 .. the most episodes of a trace.

    Raises:
        UserError: the boundaries are not the ends of episodes, or have too few forced answers.
    """
    model.require_boundaries(*MEANT)
    if model.fewest_forced < VOTES[-1]:
        raise UserError(
            f"{model.name}: regret against voting needs {VOTES[-1]} answers that were forced at each prefix",
            value=model.fewest_forced,
            where=model.source,
            expected=f"an evaluation whose prover draws at least {VOTES[-1]} branches",
            advice=f"mrt-hpc eval {model.source} --suite {SUITE_WITH[MEANT[0]]}",
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
            found.append(VotingRegret(episodes, mean, sum(map(len, known))))
    return found
