"""``mrt-hpc analyze scaling --by-episodes``: does voting from a prefix gain more than thinking on? In panels of five
total numbers of episodes (paper, Figure 3 and Appendix D), the blue line is one answer at each prefix; from its points
start branches of votes of 1, 2, 4 and 8 forced answers. Where a branch rises above the line, a vote does better than
the episodes that follow.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mrt_hpc.analysis import findings
from mrt_hpc.analysis.figures import Line, LineFigure, Panel
from mrt_hpc.analysis.findings import Analysis, Curve, Point, data_table, summary_table
from mrt_hpc.analysis.model_samples import EvaluatedTrace, ModelSamples, SampleAttempt
from mrt_hpc.analysis.problem_measures import MajorityAtK
from mrt_hpc.analysis.scaling import ScalingCurve, direct_curves, prefix_curve, require_votes, votes_left_out, votes_of
from mrt_hpc.mrt.votes import RULE, AnswerCounts, majority_at_k
from mrt_hpc.recipe.choices import Boundaries

BIN = 5
"""The total numbers of episodes of a panel: 1 to 5, 6 to 10 and so on, and none by itself."""
PANELS = 4
"""The panels of most traces; the table has all."""


@dataclass(frozen=True)
class BinCurves:
    """The traces of one model with about the same number of episodes."""

    model: str
    name: str
    """The numbers of episodes, from the least to the largest."""
    traces: int
    problems: int
    prefixes: tuple[ScalingCurve, ...]
    """Votes of p answers, p = 1 first."""
    complete: tuple[ScalingCurve, ...]
    """Of the same problems, of this model and of those without forced answers."""


def analyse_scaling_by_episodes(models: Sequence[ModelSamples]) -> Analysis:
    voting = require_votes(models)
    bins = [each for model in voting for each in curves_by_episodes(model, [m for m in models if m not in voting])]
    rows = [
        (b.model, b.name, b.traces, *curve.names, *point.row)
        for b in bins
        for curve in (*b.prefixes, *b.complete)
        for point in curve.points
    ]
    columns = "model total_episodes traces samples_of way episodes_or_samples tokens accuracy low high"
    table = data_table("scaling_by_episodes", columns, rows)
    figures = [_figure(name, m.name, [b for b in bins if b.model == m.name], voting) for m in voting for name in AXES]
    forms = {
        "model": "", "episodes": "", "traces": "", "problems": "", "maj@1 before thinking": ".3f",
        "maj@1 after thinking": ".3f",
    }  # fmt: skip
    cells = [
        (b.model, b.name, b.traces, b.problems, *(b.prefixes[0].points[place].estimate for place in (0, -1)))
        for b in bins
    ]
    summary = summary_table("scaling by the number of episodes", forms, cells)
    return Analysis((table,), tuple(figures), summary, remarks=(RULE, *votes_left_out(voting)))


def curves_by_episodes(model: ModelSamples, others: Sequence[ModelSamples]) -> Iterator[BinCurves]:
    """One model with forced answers, for each five numbers of episodes, beside complete samples of the same problems of
    ``others``.
    """
    counts = Counter(_bin(trace) for traces in model.problems.values() for trace in traces)
    for number, count in sorted(counts.items()):
        those = {
            problem: kept
            for problem, traces in model.problems.items()
            if (kept := tuple(trace for trace in traces if _bin(trace) == number))
        }
        part = replace(model, problems=those)
        prefixes = tuple(prefix_curve(part, voters) for voters in votes_of(part))
        restricted = (
            replace(m, problems={problem: m.problems[problem] for problem in those}) for m in (model, *others)
        )
        complete = tuple(curve for m in restricted for curve in direct_curves(m))
        name = f"{BIN * (number - 1) + 1} - {BIN * number}" if number else "0"
        yield BinCurves(model.name, name, count, len(those), prefixes, complete)


def _bin(trace: EvaluatedTrace) -> int:
    """The bin is 0 for no episode, 1 for 1 to 5, 2 for 6 to 10."""
    return -(-(len(trace.boundaries) - 1) // BIN)


AXES = {"scaling_by_episodes": "episodes, and further answers", "scaling_by_episodes_in_tokens": "tokens (logarithmic)"}
IN_TOKENS = "scaling_by_episodes_in_tokens"


def _figure(name: str, model: str, bins: Sequence[BinCurves], voting: Sequence[ModelSamples]) -> LineFigure:
    most = sorted(bins, key=lambda b: b.traces, reverse=True)[:PANELS]
    panels = tuple(
        Panel(
            f"Total episodes = {b.name}\n{b.traces} traces of {b.problems} problems", AXES[name],
            "accuracy (mean; bands: 95 % interval)", tuple(_lines(b, name)), percent=True, doubling=name == IN_TOKENS,
        )
        for b in bins
        if b in most
    )  # fmt: skip
    return LineFigure(findings.name_of_file(name, model, voting), panels)


def _lines(found: BinCurves, axis: str) -> Iterator[Line]:
    curves = [found.prefixes[0], *(curve for curve in found.complete if curve.model != found.model)]
    votes = found.prefixes
    if axis != IN_TOKENS:
        curves, votes = list(map(_by_episodes, curves)), tuple(map(_by_episodes, votes))
    label = f"maj@p from a prefix, p = {', '.join(str(curve.voters) for curve in votes)}"
    for branch in zip(*(curve.points for curve in votes), strict=True) if len(votes) > 1 else ():
        yield Curve((label,), branch).line(colour=1, dash="dashed", band=False)
    for number, curve in enumerate(curves):
        name = f"{curve.way} of {curve.model}" if number else "maj@1 at the prefixes"
        yield curve.line(name, colour=number + 1 if number else 0)  # that of branches is 1


def _by_episodes(curve: ScalingCurve) -> ScalingCurve:
    """A vote of p answers after j episodes stands at j + p - 1, as if each further answer were an episode; k complete
    samples stand at k.
    """
    further = (curve.voters or 1) - 1
    return replace(curve, points=tuple(replace(p, at=(float(p.index + further),)) for p in curve.points))


# -- votes by tokens ---------------------------------------------------------------------------------------------------
# ``mrt-hpc analyze votes``: the vote of k complete samples against the tokens that they take, k = 1 to 10 (paper,
# Figures 7 and 8). Of an evaluation in attempts, as of mode ``linearised``, the first k attempts of a sample vote.


MOST_VOTERS = 10
"""The largest k (paper, Figure 7)."""
SAMPLES, ATTEMPTS = "samples", "attempts of a sample"


def analyse_votes(models: Sequence[ModelSamples]) -> Analysis:
    """maj@k against tokens on the same problems; where a model has attempts, these vote."""
    curves = [
        votes_of_attempts(model) if model.boundaries is Boundaries.LAST_ATTEMPT else votes_of_samples(model)
        for model in models
    ]
    table = findings.table_of_curves("votes", "model voters k tokens accuracy low high", curves)
    lines = tuple(c.line(f"{c.model}, {c.way}", dash="dashed" if c.way == ATTEMPTS else "solid") for c in curves)
    label = "accuracy of the vote (mean, 95 % interval)"
    panel = Panel("Votes against tokens", "tokens of all voters", label, lines, percent=True)
    forms = {
        "model": "", "voters": "", "maj@1": ".3f", "tokens": ",.0f", "k": "", "maj@k": ".3f", "tokens of all": ",.0f",
    }  # fmt: skip
    ends = [(curve, curve.points[0], curve.points[-1]) for curve in curves]
    rows = [(*curve.names, one.estimate, one.x, last.index, last.estimate, last.x) for curve, one, last in ends]
    return Analysis((table,), (LineFigure("votes", (panel,)),), summary_table("votes", forms, rows), remarks=(RULE,))


def votes_of_samples(model: ModelSamples) -> ScalingCurve:
    """maj@k of complete samples, at k times the mean tokens of a sample."""
    sizes = range(1, min(MOST_VOTERS, model.fewest) + 1)
    points = [Point((k, k * model.mean_tokens), MajorityAtK(k).values(model)) for k in sizes]
    return ScalingCurve((model.name, SAMPLES), tuple(points))


def votes_of_attempts(model: ModelSamples) -> ScalingCurve:
    """The first k attempts of a sample vote, at their tokens."""
    attempts = {p: [trace.attempts for trace in traces] for p, traces in model.problems.items()}
    most = min(MOST_VOTERS, min(len(mine) for samples in attempts.values() for mine in samples))
    points = []
    for k in range(1, most + 1):
        accuracy = {p: float(np.mean([_vote(mine[:k]) for mine in samples])) for p, samples in attempts.items()}
        tokens = [np.mean([sum(a.tokens for a in mine[:k]) for mine in samples]) for samples in attempts.values()]
        points.append(Point((k, float(np.mean(tokens))), accuracy))
    return ScalingCurve((model.name, ATTEMPTS), tuple(points))


def _vote(attempts: Sequence[SampleAttempt]) -> float:
    return majority_at_k(AnswerCounts.of((a.answer, a.reward) for a in attempts), len(attempts))
