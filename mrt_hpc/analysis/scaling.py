"""``mrt-hpc analyze scaling``: does thinking on pay, or does a vote at an earlier episode do as well?

For every prefix j and several p: the success of a vote of p answers forced there, [maj@p]_j, against the tokens of the
prefix and the p answers (paper, Section 5). A trace with fewer than j episodes takes part with its whole thought.

A vote is as good as the last one only where its loss is shown to lie within a margin (Schuirmann 1987;
``benchmarks/bench_equivalence.py``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from operator import and_

import numpy as np
from scipy.special import stdtrit

from mrt_hpc.analysis import findings, intervals
from mrt_hpc.analysis.comparing import quantity
from mrt_hpc.analysis.figures import LineFigure, Panel
from mrt_hpc.analysis.findings import Analysis, Curve, DataTable, Point, data_table
from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, GradedAnswer, ModelSamples
from mrt_hpc.analysis.problem_measures import MajorityAtK, PassAtK, tokens_at
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.rewards import is_right
from mrt_hpc.mrt.values import Vote
from mrt_hpc.mrt.votes import RULE, AnswerCounts, cleaned_answer, majority_at_k, weighted_majority_at_k
from mrt_hpc.recipe.choices import Boundaries

# -- the points of the curves


VOTE = "maj@k"
MOST_WEIGHTED = 12
"""The most answers at a prefix for a weighted vote: up to 495 draws."""
VOTERS = (1, 2, 4, 8)
"""p, the sizes of the votes at a prefix (paper, Section 5)."""


@dataclass(frozen=True)
class ScalingCurve(Curve):
    """A vote of p at the prefixes, or complete samples; its names are those of the model and of the way, as ``maj@4 at
    prefix`` or ``pass@k``. A point is at j, the number of episodes, or k, of samples, and at its tokens.
    """

    voters: int | None = None
    """p of a vote at the prefixes."""

    @property
    def way(self) -> str:
        return self.names[1]

    @property
    def measure(self) -> MajorityAtK:
        return MajorityAtK(self.voters or 1)


# -- votes at prefixes


def votes_of(model: ModelSamples) -> list[int]:
    """The p for which every boundary has enough answers."""
    fewest = model.fewest_forced
    return [voters for voters in VOTERS if voters <= fewest]


def prefix_curve(model: ModelSamples, voters: int) -> ScalingCurve:
    """[maj@p]_j for j = 0 .. the most episodes of a trace, each over all traces."""
    most = max(len(trace.boundaries) for traces in model.problems.values() for trace in traces)
    points = [_prefix_point(model, voters, j) for j in range(most)]
    return ScalingCurve((model.name, f"maj@{voters} at prefix"), tuple(points), voters)


def _prefix_point(model: ModelSamples, voters: int, j: int) -> Point:
    accuracy = _means(model, lambda trace: forced_majority(_boundary(trace, j), voters))
    tokens = _means(model, lambda trace: tokens_at(_boundary(trace, j), "sampled", voters))
    return Point((j, float(np.mean(list(tokens.values())))), accuracy)


def _boundary(trace: EvaluatedTrace, j: int) -> EvaluatedBoundary:
    """The last one where a trace has fewer episodes."""
    return trace.boundaries[min(j, len(trace.boundaries) - 1)]


def _means(model: ModelSamples, of: Callable[[EvaluatedTrace], float]) -> dict[str, float]:
    return {problem: float(np.mean([of(trace) for trace in traces])) for problem, traces in model.problems.items()}


def forced_majority(boundary: EvaluatedBoundary, voters: int) -> float:
    """The success of a vote of p forced answers, weighted where they have weights."""
    weighted = [_vote(f, f.weight) for f in boundary.forced if f.weight is not None]
    if weighted:
        return weighted_majority_at_k(weighted, voters)
    return majority_at_k(AnswerCounts.of((f.answer, f.reward) for f in boundary.forced), voters)


def _vote(forced: GradedAnswer, weight: float) -> Vote:
    """Right answers vote together, wrong ones by their cleaned text."""
    wrong = None if forced.answer is None else f"wrong: {cleaned_answer(forced.answer)}"
    return Vote("right" if is_right(forced.reward) else wrong, forced.reward, weight)


# -- complete samples


def direct_curves(model: ModelSamples) -> tuple[ScalingCurve, ScalingCurve]:
    """maj@k and pass@k, for k = 1, 2, 4 .. the fewest samples of a problem."""
    sizes = [1 << exponent for exponent in range(model.fewest.bit_length())]
    votes, passes = (
        tuple(Point((k, k * model.mean_tokens), of(k).values(model)) for k in sizes) for of in (MajorityAtK, PassAtK)
    )
    return ScalingCurve((model.name, VOTE), votes), ScalingCurve((model.name, "pass@k"), passes)


# -- the vote at the last prefix against all earlier ones, by problem, and against complete samples of as many tokens


MARGIN = 0.02
"""The loss below which a vote counts as good as the last one."""


@dataclass(frozen=True)
class EarlierVote:
    episode: int
    tokens: float
    saved: float
    """The additional tokens of the vote at the last prefix."""
    gain: intervals.MeanGain
    """Of the vote at the last prefix over this one, paired by problem."""
    corrected_p: float
    """With Holm's correction for all earlier votes."""
    loss: intervals.IntervalEstimate
    """The same gain with the interval of equivalence, see ``guarded_gain``."""
    as_good: bool
    """Whether its loss, and that of all later votes, is shown to be less than the margin."""

    @property
    def is_significant(self) -> bool:
        return self.corrected_p < intervals.SIGNIFICANCE

    @property
    def is_beaten(self) -> bool:
        return self.is_significant and self.gain.mean > 0

    @property
    def is_better(self) -> bool:
        return self.is_significant and self.gain.mean < 0


@dataclass(frozen=True)
class EqualTokens:
    complete: float
    """The accuracy of complete samples."""
    gain: intervals.MeanGain
    """Of the vote at the last prefix over complete samples of as many tokens, paired by problem."""


def earlier_votes(curve: ScalingCurve, margin: float = MARGIN) -> list[EarlierVote]:
    """The votes at all prefixes but the last. They are tested from the last one back, until one is not shown to be as
    good: such a fixed order needs no correction (Maurer, Hothorn and Lehmacher 1995). ``margin`` is a share.
    """
    *earlier, last = curve.points
    gains = [intervals.mean_gain([(point.by_problem, last.by_problem)]) for point in earlier]
    corrected = intervals.holm([gain.p_value for gain in gains])
    losses = [guarded_gain(point, last) for point in earlier]
    within = [max(-loss.low, loss.high) < margin for loss in losses]
    as_good = reversed(list(accumulate(reversed(within), and_)))
    return [
        EarlierVote(point.index, point.x, last.x - point.x, *found)
        for point, *found in zip(earlier, gains, corrected, losses, as_good, strict=True)
    ]


def guarded_gain(earlier: Point, last: Point) -> intervals.IntervalEstimate:
    """The gain of the last vote with a 95 % interval; within a margin, it passes two one-sided tests of 2.5 % each.

    One more problem that gains 1 and one that loses 1 are added (Bonett and Price 2012), because problems that seldom
    differ would otherwise count as problems that never do.
    """
    after = {str(number): gain for number, gain in enumerate([*_gains(earlier, last), 1.0, -1.0])}
    return intervals.mean_gain([(dict.fromkeys(after, 0.0), after)]).interval


def _gains(earlier: Point, last: Point) -> list[float]:
    return [last.by_problem[problem] - before for problem, before in earlier.by_problem.items()]


def problems_to_show(variance: float, margin: float) -> int:
    """The problems with which 80 % of samples show that a vote without any loss is as good."""
    power = 1 - (1 - intervals.POWER) / 2  # of each of the two tests
    problems = 2
    while True:
        error = math.sqrt((problems * variance + 2) / (problems + 1) / (problems + 2))
        if (intervals.t_quantile(problems + 1) + float(stdtrit(problems + 1, power))) * error <= margin:
            return problems
        problems += 1 + problems // 1000  # the number is told in two digits


def equal_tokens(curve: ScalingCurve, complete: ScalingCurve) -> EqualTokens | None:
    """The vote at the last prefix beside complete samples of equal tokens, if there are any. Between two numbers of
    samples each problem's accuracy is linear.
    """
    last, tokens = curve.points[-1], [point.x for point in complete.points]
    if not tokens[0] <= last.x <= tokens[-1]:
        return None
    by_problem = {
        problem: float(np.interp(last.x, tokens, [point.by_problem[problem] for point in complete.points]))
        for problem in last.by_problem
    }
    accuracy = float(np.mean(list(by_problem.values())))
    return EqualTokens(accuracy, intervals.mean_gain([(by_problem, last.by_problem)]))


# -- in words


def progress_verdict(curve: ScalingCurve, margin: float = MARGIN) -> str | None:
    votes, measure = earlier_votes(curve, margin), curve.measure
    if not votes:
        return None
    head = f"{curve.model}, {measure.name} at the prefixes"
    if better := next((vote for vote in votes if vote.is_better), None):
        found = f"is better by {quantity(measure, -better.gain.mean)}, and saves {_saved_tokens(better, curve)}"
        return f"{head}: a vote at episode {better.episode} {found}"
    if good := next((vote for vote in votes if vote.as_good), None):
        found = f"is as good as the last one within {quantity(measure, margin)}, and saves {_saved_tokens(good, curve)}"
        return f"{head}: a vote at episode {good.episode} {found}: {_loss(good)}"
    if all(vote.is_beaten for vote in votes):
        return f"{head}: thinking on gains {_smallest(votes, measure)} over a vote at every earlier episode"
    return f"{head}: {_not_known(curve, votes, margin)}"


def _not_known(curve: ScalingCurve, votes: Sequence[EarlierVote], margin: float) -> str:
    """Why these samples do not show it, how many would, and which votes are worse."""
    measure, problems = curve.measure, len(curve.points[-1].by_problem)
    question = "whether a vote at an earlier episode does as well cannot be told from these samples"
    if problems == 1:
        return f"{question}: a single problem shows nothing of others"
    near = [vote for vote in votes if not vote.is_beaten][-1]
    variance = float(np.var(_gains(curve.points[votes.index(near)], curve.points[-1]), ddof=1))
    needed = problems_to_show(variance, margin)
    count = f"about {float(f'{needed:.2g}'):,.0f}" if needed > problems else "so many"
    would = f"{count} problems would show that it is below {quantity(measure, margin)}, if there were none"
    text = f"{question}: at episode {near.episode} {_loss(near)}, over {problems} problems; {would}"
    worse = list(takewhile(lambda vote: vote.is_beaten, votes))
    if not worse:
        return text
    return (
        f"{text}; over votes before episode {votes[len(worse)].episode}, thinking on gains {_smallest(worse, measure)}"
    )


def _saved_tokens(vote: EarlierVote, curve: ScalingCurve) -> str:
    return f"{vote.saved:,.0f} of {curve.points[-1].x:,.0f} tokens"


def _loss(vote: EarlierVote) -> str:
    low, high = 100 * vote.loss.low, 100 * vote.loss.high
    return f"the loss is {100 * vote.gain.mean:+.1f} points ({low:+.1f} to {high:+.1f})"


def _smallest(votes: Sequence[EarlierVote], measure: MajorityAtK) -> str:
    text = quantity(measure, min(vote.gain.mean for vote in votes))
    return text if len(votes) == 1 else f"{text} or more"


def equal_tokens_verdict(curve: ScalingCurve, complete: ScalingCurve) -> str:
    measure, last = curve.measure, curve.points[-1]
    head = f"{curve.model}, {measure.name} at the last prefix against a vote of complete samples of equal tokens"
    equal = equal_tokens(curve, complete)
    if equal is None:
        few, most = complete.points[0], complete.points[-1]
        told = f"the complete samples ({most.index} of a problem) {most.x:,.0f}"
        if last.x < few.x:
            told = f"one complete sample {few.x:,.0f}"
        return f"{head}: not compared, it takes {last.x:,.0f} tokens, and {told}"
    return findings.gain_sentence(head, measure, equal.gain, len(last.by_problem))


# -- as tables


def table_of_earlier_votes(curves: Sequence[ScalingCurve], margin: float = MARGIN) -> DataTable:
    columns = (
        "model way episodes tokens tokens_saved gain_of_the_last low high p corrected_p loss_low loss_high as_good"
    )
    rows = [
        (
            *curve.names, vote.episode, vote.tokens, vote.saved, vote.gain, vote.corrected_p,
            vote.loss.low, vote.loss.high, "yes" if vote.as_good else "not shown",
        )
        for curve in curves
        for vote in earlier_votes(curve, margin)
    ]  # fmt: skip
    return data_table("earlier_votes", columns, rows)


def table_of_equal_tokens(pairs: Sequence[tuple[ScalingCurve, ScalingCurve]]) -> DataTable:
    rows = [
        (*curve.names, curve.points[-1].x, curve.points[-1].estimate.mean, equal.complete, equal.gain)
        for curve, complete in pairs
        if (equal := equal_tokens(curve, complete)) is not None
    ]
    return data_table("equal_tokens", "model way tokens accuracy complete_samples difference low high p", rows)


def analyse_scaling(models: Sequence[ModelSamples], margin: float = MARGIN) -> Analysis:
    """Models without forced answers take part with their complete samples.

    Raises:
        UserError: no model has forced answers at all prefixes, or boundaries are not the ends of episodes.
    """
    voting = require_votes(models)
    prefixes = {model.name: [prefix_curve(model, p) for p in votes_of(model)] for model in voting}
    direct = {model.name: direct_curves(model) for model in models}
    others = [curve for model in models if model not in voting for curve in direct[model.name]]
    figures = tuple(_figure(m.name, [*prefixes[m.name], *direct[m.name], *others], voting) for m in voting)
    curves = [curve for model in models for curve in (*prefixes.get(model.name, ()), *direct[model.name])]
    pairs = [(curve, direct[model.name][0]) for model in voting for curve in prefixes[model.name]]
    largest = [(prefixes[model.name][-1], direct[model.name][0]) for model in voting]
    tables = (
        findings.table_of_curves("scaling", "model way episodes_or_samples tokens accuracy low high", curves),
        table_of_earlier_votes([curve for curve, _ in largest], margin),
        table_of_equal_tokens(pairs),
    )
    verdicts = (
        sentence
        for curve, votes in largest
        for sentence in (progress_verdict(curve, margin), equal_tokens_verdict(curve, votes))
    )
    remarks = _remarks(models, voting, margin)
    return Analysis(tables, figures, _summary(pairs), tuple(filter(None, verdicts)), remarks)


def require_votes(models: Sequence[ModelSamples]) -> list[ModelSamples]:
    """At least one model must have votes; the others have complete samples alone."""
    voting = [model for model in models if model.fewest_forced > 0]
    for model in voting:
        model.require_boundaries(Boundaries.EPISODES)
        require_few_draws(model)
    if not voting:
        raise UserError(
            f"{models[0].name}: the samples have no answers that were forced at all prefixes",
            where=models[0].source,
            expected="an evaluation whose prover draws branches, as forced_answer or boxed_answer does",
            advice=models[0].command_with_prover,
        )
    return voting


def require_few_draws(model: ModelSamples) -> None:
    """Refuse a model whose draws cannot be counted out."""
    forced = [b.forced for traces in model.problems.values() for trace in traces for b in trace.boundaries]
    weighted = [len(answers) for answers in forced if any(f.weight is not None for f in answers)]
    if max(weighted, default=0) > MOST_WEIGHTED:
        raise UserError(
            f"{model.name}: a weighted vote is the mean over all draws, which are too many of so many answers",
            value=max(weighted),
            where="--weighted",
            expected=f"at most {MOST_WEIGHTED} forced answers at a prefix",
            advice=model.command_with_prover,
        )


# -- what is shown


def _figure(model: str, curves: Sequence[ScalingCurve], voting: Sequence[ModelSamples]) -> LineFigure:
    """Votes at prefixes are solid, complete samples broken. Only the largest vote and maj@k have a band: more would
    hide each other.
    """
    most = max(curve.voters for curve in curves if curve.voters is not None)
    lines = []
    for curve in curves:
        name = curve.way if curve.voters is not None else f"{curve.way}, complete samples"
        label = name if curve.model == model else f"{name} of {curve.model}"
        dash = "solid" if curve.voters is not None else "dashed" if curve.way == VOTE else "dotted"
        lines.append(curve.line(label, dash=dash, band=curve.voters == most or curve.way == VOTE))
    title, x_label, y_label = f"Scaling of {model}", "tokens (logarithmic)", "accuracy (mean; bands: 95 % interval)"
    panel = Panel(title, x_label, y_label, tuple(lines), percent=True, logarithmic=True)
    return LineFigure(findings.name_of_file("scaling", model, voting), (panel,))


def _summary(pairs: Sequence[tuple[ScalingCurve, ScalingCurve]]) -> DataTable:
    forms = {
        "model": "", "vote": "", "before thinking": ".3f", "after thinking": ".3f", "tokens": ".0f", "gain": "+.3f",
        "best": ".3f", "at j": "", "maj@k of equal tokens": ".3f",
    }  # fmt: skip
    rows = []
    for curve, votes in pairs:
        first, last = curve.points[0], curve.points[-1]
        best = max(curve.points, key=lambda point: point.estimate.mean)
        gain, equal = intervals.paired_difference(first.by_problem, last.by_problem), equal_tokens(curve, votes)
        shown = first.estimate, last.estimate, last.x, gain, best.estimate.mean, best.index
        rows.append((*curve.names, *shown, None if equal is None else equal.complete))
    return findings.summary_table("votes at prefixes", forms, rows)


def _remarks(models: Sequence[ModelSamples], voting: Sequence[ModelSamples], margin: float) -> tuple[str, ...]:
    remarks = [
        RULE,
        "earlier votes of a model: that one is worse or better is corrected for all of them (Holm); that one is as "
        f"good is shown where the 95 % interval of its loss lies within {100 * margin:g} points on both sides, from "
        "the last episode back until one does not (a fixed order, which needs no correction)",
    ]
    remarks += [
        f"{model.name}: no answers were forced at its prefixes, so only its complete samples are shown"
        for model in models
        if model not in voting
    ]
    return (*remarks, *votes_left_out(voting))


def votes_left_out(voting: Sequence[ModelSamples]) -> list[str]:
    left = [(model, [p for p in VOTERS if p not in votes_of(model)]) for model in voting]
    return [
        f"{model.name}: only {model.fewest_forced} answers were forced at a prefix, so "
        f"{', '.join(f'maj@{p}' for p in sizes)} is left out"
        for model, sizes in left
        if sizes
    ]
