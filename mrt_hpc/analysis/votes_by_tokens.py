"""``mrt-hpc analyze votes``: the vote of k complete samples against the tokens that they take, k = 1 to 10 (paper,
Figures 7 and 8). Of an evaluation in attempts, as of mode ``linearised``, the first k attempts of a sample vote.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mrt_hpc.analysis.analysis_files import Analysis, DataTable, interval_cells, interval_text
from mrt_hpc.analysis.figures import Line, LineFigure, Panel
from mrt_hpc.analysis.model_samples import ModelSamples, SampleAttempt
from mrt_hpc.analysis.problem_measures import MajorityAtK
from mrt_hpc.analysis.scaling import ScalingCurve, ScalingPoint
from mrt_hpc.mrt.votes import RULE, AnswerCounts, majority_at_k
from mrt_hpc.recipe.choices import Boundaries

MEANT = tuple(Boundaries)
"""The samples that this analysis makes sense of: it reads answers and tokens alone."""
MOST_VOTERS = 10
"""The largest k (paper, Figure 7)."""
SAMPLES, ATTEMPTS = "samples", "attempts of a sample"
"""What votes."""


def analyse_votes(models: Sequence[ModelSamples]) -> Analysis:
    """maj@k against tokens of several models.

    Args:
        models: on the same problems; of one with attempts, these vote.
    """
    curves = [votes_of_attempts(model) if _has_attempts(model) else votes_of_samples(model) for model in models]
    rows = [
        (curve.model, curve.way, point.index, point.tokens, *interval_cells(point.accuracy))
        for curve in curves
        for point in curve.points
    ]
    table = DataTable("votes", ("model", "voters", "k", "tokens", "accuracy", "low", "high"), tuple(rows))
    label = "accuracy of the vote (mean, 95 % interval)"
    panel = Panel("Votes against tokens", "tokens of all voters", label, tuple(map(_line, curves)), percent=True)
    ends = [(c.model, c.way, *(cell for p in (c.points[0], c.points[-1]) for cell in _cells(p))) for c in curves]
    columns = ("model", "voters", "maj@1", "tokens", "k", "maj@k", "tokens of all")
    summary = DataTable("votes", columns, tuple((m, w, a, t, k, v, s) for m, w, _, a, t, k, v, s in ends))
    return Analysis((table,), (LineFigure("votes", (panel,)),), summary, remarks=(RULE,))


def votes_of_samples(model: ModelSamples) -> ScalingCurve:
    """maj@k of complete samples, at k times the mean tokens of a sample."""
    sizes = range(1, min(MOST_VOTERS, model.fewest) + 1)
    points = [ScalingPoint(k, k * model.mean_tokens, MajorityAtK(k).values(model)) for k in sizes]
    return ScalingCurve(model.name, SAMPLES, tuple(points))


def votes_of_attempts(model: ModelSamples) -> ScalingCurve:
    """The vote of the first k attempts of a sample, at the tokens of these."""
    attempts = {p: [trace.attempts for trace in traces] for p, traces in model.problems.items()}
    most = min(MOST_VOTERS, min(len(mine) for samples in attempts.values() for mine in samples))
    points = []
    for k in range(1, most + 1):
        accuracy = {p: float(np.mean([_vote(mine[:k]) for mine in samples])) for p, samples in attempts.items()}
        tokens = [np.mean([sum(a.tokens for a in mine[:k]) for mine in samples]) for samples in attempts.values()]
        points.append(ScalingPoint(k, float(np.mean(tokens)), accuracy))
    return ScalingCurve(model.name, ATTEMPTS, tuple(points))


def _vote(attempts: Sequence[SampleAttempt]) -> float:
    return majority_at_k(AnswerCounts.of((a.answer, a.reward) for a in attempts), len(attempts))


def _has_attempts(model: ModelSamples) -> bool:
    return model.boundaries is Boundaries.LAST_ATTEMPT


def _line(curve: ScalingCurve) -> Line:
    """Attempts are dashed."""
    x, y = tuple(point.tokens for point in curve.points), tuple(point.accuracy for point in curve.points)
    return Line(f"{curve.model}, {curve.way}", x, y, dash="dashed" if curve.way == ATTEMPTS else "solid")


def _cells(point: ScalingPoint) -> tuple[str, str, str]:
    return str(point.index), interval_text(point.accuracy), f"{point.tokens:,.0f}"
