"""``mrt-hpc analyze efficiency``: accuracy against allowed tokens, the tokens to an accuracy, and their ratio between
models. The tokens of a forced answer count too: else a model whose thoughts are stopped would seem cheaper than it is.

Intervals are percentiles of a bootstrap over problems, the same draws for all models, further out the fewer problems
there are (Hesterberg 2015, *The American Statistician* 69, 371-386). With 30 problems they hold the truth in 93 to 96 %
of simulated evaluations (``tests/unit/test_coverage.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.analysis import findings
from mrt_hpc.analysis.comparing import FEW
from mrt_hpc.analysis.findings import Analysis, Curve, DataTable, Point, data_table, summary_table
from mrt_hpc.analysis.intervals import SIGNIFICANCE, IntervalEstimate, holm, share_interval, t_quantile, two_sided_p
from mrt_hpc.analysis.model_samples import SUITE_WITH, Counted, EvaluatedTrace, ModelSamples
from mrt_hpc.analysis.number_formats import plural
from mrt_hpc.analysis.problem_measures import curve_of, tokens_at
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.regret import TraceCurve, first_reached, reward_within
from mrt_hpc.recipe.choices import Boundaries

POINTS = 256
DRAWS = 10_000
"""They take two seconds for three models and accuracies on 500 problems. Draws limit how small p may be: with 8
problems 0.010, and 0.018 with 2,000 draws.
"""
TENTHS = (0.5, 0.7, 0.9)
"""The default accuracies, as shares of the best one that all models reach."""
NOT_REACHED = "not reached"
COUNTED: dict[Counted, str] = {
    "sampled": "tokens counted: the sampled ones of the thought and of the answer, the trace's own or a forced one",
    "all": "tokens counted: prompt, thought, the prover's text, and the answer, the trace's own or a forced one",
}


@dataclass(frozen=True)
class LimitedTrace:
    """The reward of one trace within a limit of tokens."""

    tokens: float
    """Of the complete trace with its own answer, or a forced one where the limit cut it."""
    reward: float
    curve: TraceCurve | None
    """By the tokens of an answer forced at each boundary; None where it was not valued."""

    @property
    def most(self) -> float:
        """The tokens from which on more change nothing."""
        return self.tokens if self.curve is None else max(self.tokens, float(self.curve.tokens[-1]))


@dataclass(frozen=True)
class ModelEfficiency:
    name: str
    allowed: NDArray[np.float64]
    """[C] tokens, ascending from 0."""
    accuracy: NDArray[np.float64]
    """[P, C] in the order of the first model's problems."""

    @property
    def mean(self) -> NDArray[np.float64]:
        return self.accuracy.mean(axis=0)

    @property
    def curve(self) -> Curve:
        shares = map(share_interval, self.accuracy.T)
        points = zip(self.allowed.tolist(), shares, strict=True)
        return Curve((self.name,), tuple(Point((tokens,), given=share) for tokens, share in points))


@dataclass(frozen=True)
class TokensTo:
    """The tokens to an accuracy; infinite where a model does not reach it."""

    model: str
    level: float
    tokens: IntervalEstimate
    ratio: IntervalEstimate
    """To the tokens of the first model; NaN where neither reaches the accuracy."""
    undefined: float
    """Draws in which neither reaches it, which the ratio's interval leaves out."""
    p: float
    corrected_p: float = 1.0
    """By Holm, for all ratios that are shown."""


def analyse_efficiency(models: Sequence[ModelSamples], levels: Sequence[float], seed: int) -> Analysis:
    """Tokens to given accuracies of several models, on the same problems; ratios are to the first one. Empty ``levels``
    take shares of the best accuracy that all models reach.

    Raises:
        UserError: thoughts were cut or continued at given budgets, so that their lengths are not the models' own; a
            sample is several attempts; or answers count that no prover drew.
    """
    for model in models:  # of several attempts, a finished one would count as nothing until the last one ends
        model.require_boundaries(Boundaries.EPISODES)
    by_model = efficiencies(models)
    asked = sorted(set(levels)) or default_levels(by_model)
    results = correct_ratios([result for level in asked for result in tokens_to(by_model, level, seed)])
    curves = [model.curve for model in by_model]
    table = findings.table_of_curves("accuracy_by_tokens", "model allowed_tokens accuracy low high", curves)
    x_label, y_label = f"tokens allowed ({models[0].counted})", "accuracy (mean, 95 % interval)"
    figure = findings.figure_of_curves(
        "efficiency", "Accuracy within a number of tokens", x_label, y_label, curves, percent=True
    )
    remarks = _remarks(models, by_model, results)
    return Analysis((table, _table_of_tokens(results)), (figure,), _summary(results), remarks=remarks)


def efficiencies(models: Sequence[ModelSamples]) -> list[ModelEfficiency]:
    """All models have the same numbers of allowed tokens, up to the most tokens of a trace."""
    limited = [limited_traces(model) for model in models]
    most = max(trace.most for problems in limited for traces in problems.values() for trace in traces)
    allowed, order = np.linspace(0.0, most, POINTS + 1), list(models[0].problems)
    return [
        ModelEfficiency(model.name, allowed, np.array([accuracy_within(problems[p], allowed) for p in order]))
        for model, problems in zip(models, limited, strict=True)
    ]


def limited_traces(model: ModelSamples) -> dict[str, list[LimitedTrace]]:
    if model.counted == "all" and model.fewest_forced == 0:
        raise UserError(
            f"{model.name}: no answers were forced at its prefixes, so all tokens cannot be counted",
            where="--tokens",
            expected=f"--tokens sampled, or an evaluation such as suite {SUITE_WITH[Boundaries.EPISODES]} has",
            advice="--tokens sampled",
        )
    return {p: [limited_trace(trace, model.counted) for trace in traces] for p, traces in model.problems.items()}


def limited_trace(trace: EvaluatedTrace, counted: Counted) -> LimitedTrace:
    """A trace with its tokens, see ``tokens_at``: those before its last boundary, and its own answer.

    By ``all`` the own answer follows the prover's text, and earlier attempts count before the last one's prompt.
    Answers that a prover does not draw count nothing. A forced answer stands for the own answer of a trace that the
    limit cut.
    """
    if not trace.is_valued:
        return LimitedTrace(trace.tokens, trace.reward, None)
    curve = curve_of(trace, counted, 1 if all(boundary.forced for boundary in trace.boundaries) else 0)
    if trace.is_cut:
        return LimitedTrace(float(curve.tokens[-1]), float(curve.values[-1]), curve)
    last = trace.boundaries[-1]
    return LimitedTrace(tokens_at(last, counted, 0) + trace.tokens - last.tokens, trace.reward, curve)


def accuracy_within(traces: Sequence[LimitedTrace], allowed: NDArray[np.float64]) -> NDArray[np.float64]:
    """[C] the mean expected reward of traces within the allowed tokens."""
    rewards = [reward_within(allowed, trace.tokens, trace.reward, trace.curve) for trace in traces]
    return np.asarray(np.mean(rewards, axis=0))


def default_levels(by_model: Sequence[ModelEfficiency]) -> list[float]:
    """Shares of the best accuracy that all models reach; none where it is 0. Two significant digits change a number by
    5 % at most, so none of up to 0.9 exceeds the best accuracy.
    """
    best = min(float(model.mean.max()) for model in by_model)
    return sorted({float(f"{best * share:.2g}") for share in TENTHS} - {0.0})


def tokens_to(by_model: Sequence[ModelEfficiency], level: float, seed: int) -> list[TokensTo]:
    """All models have the same problems in the same order."""
    problems = len(by_model[0].accuracy)
    weights = bootstrap_weights(problems, seed)
    reached = [
        first_reached(model.allowed, np.vstack([model.mean, weights @ model.accuracy]), level) for model in by_model
    ]  # [1 + draws] each, the estimate first
    results = []
    for model, tokens in zip(by_model, reached, strict=True):
        ratios = ratio_of_tokens(tokens, reached[0])
        estimates = (
            percentiles(float(tokens[0]), tokens[1:], problems),
            percentiles(float(ratios[0]), ratios[1:], problems),
        )
        undefined, p = float(np.mean(np.isnan(ratios[1:]))), p_of_ratio(ratios[1:], problems)
        results.append(TokensTo(model.name, level, *estimates, undefined, p))
    return results


def p_of_ratio(draws: NDArray[np.float64], problems: int) -> float:
    """The two-sided p-value of a ratio other than 1: twice the share of the draws on the other side of 1, the estimate
    counted as one more draw (Davison and Hinkley 1997, *Bootstrap Methods*, Section 4.2), widened by Student's t for
    the number of problems; 1 for a single problem.
    """
    defined = draws[~np.isnan(draws)]
    if problems == 1 or not len(defined):
        return 1.0
    beyond = min(int((defined <= 1).sum()), int((defined >= 1).sum()))
    p = min(1.0, 2 * (beyond + 1) / (len(defined) + 1))
    deviates = -NormalDist().inv_cdf(p / 2)
    return two_sided_p(deviates * math.sqrt((problems - 1) / problems), problems - 1)


def correct_ratios(results: Sequence[TokensTo]) -> list[TokensTo]:
    """Holm's correction, for all ratios."""
    first = results[0].model if results else ""
    corrected = iter(holm([result.p for result in results if result.model != first]))
    return [result if result.model == first else replace(result, corrected_p=next(corrected)) for result in results]


def bootstrap_weights(problems: int, seed: int) -> NDArray[np.float64]:
    """[draws, P] the share of each problem in each draw of P problems with replacement."""
    shares = np.full(problems, 1.0 / problems)
    return np.random.default_rng(seed).multinomial(problems, shares, size=DRAWS) / problems


def ratio_of_tokens(tokens: NDArray[np.float64], first: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N] tokens / first: 1 where both reach an accuracy at once, NaN where neither reaches it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((tokens == 0) & (first == 0), 1.0, tokens / first)


def percentiles(estimate: float, draws: NDArray[np.float64], problems: int) -> IntervalEstimate:
    """An estimate with the percentile interval of its draws, wider for few problems. Ends are draws, not between draws,
    since some may be infinite; NaN draws are left out. A single problem gives no interval.
    """
    defined = draws[~np.isnan(draws)]
    if problems == 1 or not len(defined):
        return IntervalEstimate(estimate, float("nan"), float("nan"))
    tail = NormalDist().cdf(-t_quantile(problems - 1) * math.sqrt(problems / (problems - 1)))
    low, high = np.quantile(defined, [tail, 1 - tail], method="inverted_cdf")
    return IntervalEstimate(estimate, float(low), float(high))


# -- what is shown


def _table_of_tokens(results: Sequence[TokensTo]) -> DataTable:
    columns = (
        "model accuracy tokens tokens_low tokens_high ratio_to_first ratio_low ratio_high share_of_draws_without_ratio "
        "p corrected_p"
    )
    rows = []
    for r in results:
        cells = (NOT_REACHED if np.isinf(number) else number for number in (*r.tokens.cells, *r.ratio.cells))
        rows.append((r.model, r.level, *cells, r.undefined, r.p, r.corrected_p))
    return data_table("tokens_to_accuracy", columns, rows)


def _summary(results: Sequence[TokensTo]) -> DataTable:
    first = results[0].model if results else ""
    forms: dict[str, findings.Form] = {"model": "", "accuracy": level_text, "tokens": tokens_text}
    forms |= {f"ratio to {first}": ratio_text, "p, corrected": ".2g"}
    compared = [(None, None) if r.model == first else (r.ratio, r.corrected_p) for r in results]
    rows = [(r.model, r.level, r.tokens, *ratio) for r, ratio in zip(results, compared, strict=True)]
    return summary_table("tokens to an accuracy", forms, rows)


def level_text(level: float) -> str:
    """A small accuracy keeps three digits."""
    return f"{level:.1%}" if level >= 0.1 else f"{100 * level:.3g}%"


def tokens_text(estimate: IntervalEstimate) -> str:
    return _text_of_infinite(estimate, ".0f", NOT_REACHED)


def ratio_text(estimate: IntervalEstimate) -> str:
    return "neither reaches it" if np.isnan(estimate.mean) else _text_of_infinite(estimate, ".2f", "infinite")


def _text_of_infinite(estimate: IntervalEstimate, form: str, infinite: str) -> str:
    text = estimate.text(lambda number: infinite if np.isinf(number) else f"{number:{form}}")
    return f"{text} (no interval)" if np.isnan(estimate.low) else text


def _remarks(
    models: Sequence[ModelSamples], by_model: Sequence[ModelEfficiency], results: Sequence[TokensTo]
) -> tuple[str, ...]:
    remarks = [COUNTED[models[0].counted]]
    remarks += [
        f"{model.name}: its prefixes were not valued, so a trace that is stopped before its end counts as wrong"
        for model in models
        if not model.is_valued
    ]
    remarks += [
        f"{model.name}: its prover draws no answers, so those that are forced count no tokens, which are too few"
        for model in models
        if model.is_valued and model.fewest_forced == 0
    ]
    ratios, problems = sum(r.model != results[0].model for r in results), len(models[0].problems)
    remarks += findings.remark_on_correction("ratios other than 1", ratios)
    if problems > 1 and (least := ratios * p_of_ratio(np.zeros(DRAWS), problems)) >= SIGNIFICANCE:
        remarks.append(
            f"{problems} problems cannot show that a ratio is not 1: with {plural(ratios, 'ratio')} shown together, p "
            f"is {min(least, 1):.2g} or more; evaluate more problems, or name fewer models or levels (--accuracy)"
        )
    remarks += [
        f"{result.model} at {level_text(result.level)}: in {result.undefined:.1%} of the draws neither model reaches "
        "it; the interval of the ratio leaves these out"
        for result in results
        if result.undefined > 0 and result.model != results[0].model
    ]
    if results and 1 < len(models[0].problems) < FEW:
        remarks.append(f"with fewer than {FEW} problems an interval assumes much of how they differ")
    if results and len(models[0].problems) == 1:
        remarks.append("tokens and ratios have no interval: a single problem shows nothing of others")
    return (*remarks, *(() if results else _remark_on_levels(by_model)))


def _remark_on_levels(by_model: Sequence[ModelEfficiency]) -> tuple[str, ...]:
    never = [model.name for model in by_model if not model.mean.any()]
    names = " and ".join(never)
    return (f"{names} {'has' if len(never) == 1 else 'have'} no accuracy above 0: name levels with --accuracy 0.1,0.2",)
