"""Votes in other curves than those of ``scaling``.

``mrt-hpc analyze scaling --by-episodes``: the scaling curves of the traces of each total number of episodes (paper,
Figure 3 and Appendix D). Beside them stand the complete samples of the same problems.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mrt_hpc.analysis.analysis_files import Analysis, Cell, DataTable, interval_text, name_of_file
from mrt_hpc.analysis.figures import Line, LineFigure, Panel
from mrt_hpc.analysis.model_samples import ModelSamples, SampleAttempt
from mrt_hpc.analysis.problem_measures import MajorityAtK
from mrt_hpc.analysis.scaling import (
    ScalingCurve,
    ScalingPoint,
    direct_curves,
    line_of_curve,
    prefix_curve,
    require_votes,
    votes_of,
)
from mrt_hpc.mrt.votes import RULE, AnswerCounts, majority_at_k
from mrt_hpc.recipe.choices import Boundaries

PANELS = 4
"""The most totals that a figure shows, those of most traces; the table has all."""


@dataclass(frozen=True)
class TotalCurves:
    """The curves of the traces of one model that have the same number of episodes."""

    model: str
    episodes: int
    """k, of each trace."""
    traces: int
    problems: int
    curves: tuple[ScalingCurve, ...]


def analyse_scaling_by_episodes(models: Sequence[ModelSamples]) -> Analysis:
    """The scaling curves of several models by the total number of episodes of a trace. Models without forced answers
    take part with their complete samples.

    Raises:
        UserError: no model has forced answers at all prefixes, or one has them elsewhere than at the ends of episodes.
    """
    voting = require_votes(models)
    totals = [total for model in voting for total in by_total(model, [m for m in models if m not in voting])]
    rows = [(t.model, t.episodes, t.traces, *row) for t in totals for curve in t.curves for row in curve.rows]
    columns = (
        "model", "total_episodes", "traces", "samples_of", "way", "episodes_or_samples", "tokens", "accuracy", "low",
        "high",
    )  # fmt: skip
    table = DataTable("scaling_by_episodes", columns, tuple(rows))
    figures = tuple(_figure(m.name, [t for t in totals if t.model == m.name], len(voting) > 1) for m in voting)
    return Analysis((table,), figures, _summary(totals), remarks=(RULE,))


def by_total(model: ModelSamples, others: Sequence[ModelSamples]) -> Iterator[TotalCurves]:
    """The curves of the traces of one model, for each number of episodes that a trace has.

    Args:
        model: with forced answers.
        others: models whose complete samples of the same problems are shown as well.
    """
    counts = Counter(len(trace.boundaries) - 1 for traces in model.problems.values() for trace in traces)
    for episodes, count in sorted(counts.items()):
        those = {
            problem: kept
            for problem, traces in model.problems.items()
            if (kept := tuple(trace for trace in traces if len(trace.boundaries) - 1 == episodes))
        }
        part = replace(model, problems=those)
        prefixes = [prefix_curve(part, voters) for voters in votes_of(part)]
        direct = [curve for m in (model, *others) for curve in direct_curves(_on(m, those))]
        yield TotalCurves(model.name, episodes, count, len(those), (*prefixes, *direct))


def _on(model: ModelSamples, problems: Mapping[str, object]) -> ModelSamples:
    """All samples of a model on some of its problems."""
    return replace(model, problems={problem: model.problems[problem] for problem in problems})


def _figure(model: str, totals: Sequence[TotalCurves], several: bool) -> LineFigure:
    most = sorted(sorted(totals, key=lambda t: t.traces, reverse=True)[:PANELS], key=lambda t: t.episodes)
    panels = tuple(
        Panel(
            f"{t.episodes} episodes: {t.traces} traces of {t.problems} problems", "tokens (logarithmic)",
            "" if number else "accuracy (mean; bands: 95 % interval)",
            tuple(line_of_curve(curve, model, max(c.voters or 0 for c in t.curves)) for curve in t.curves),
            percent=True, logarithmic=True,
        )
        for number, t in enumerate(most)
    )  # fmt: skip
    return LineFigure(name_of_file("scaling_by_episodes", model) if several else "scaling_by_episodes", panels)


def _summary(totals: Sequence[TotalCurves]) -> DataTable:
    """The vote of one answer before the first and after the last episode, by the total number of episodes."""
    rows: list[tuple[Cell, ...]] = [
        (
            t.model, t.episodes, t.traces, t.problems,
            *(interval_text(t.curves[0].points[place].accuracy) for place in (0, t.episodes)),
        )
        for t in totals
    ]  # fmt: skip
    columns = ("model", "episodes", "traces", "problems", "maj@1 before thinking", "maj@1 after thinking")
    return DataTable("scaling by the number of episodes", columns, tuple(rows))


# -- votes by tokens ---------------------------------------------------------------------------------------------------
# ``mrt-hpc analyze votes``: the vote of k complete samples against the tokens that they take, k = 1 to 10 (paper,
# Figures 7 and 8). Of an evaluation in attempts, as of mode ``linearised``, the first k attempts of a sample vote.


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
    rows = tuple(row for curve in curves for row in curve.rows)
    table = DataTable("votes", ("model", "voters", "k", "tokens", "accuracy", "low", "high"), rows)
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
    return curve.line(f"{curve.model}, {curve.way}", "dashed" if curve.way == ATTEMPTS else "solid")


def _cells(point: ScalingPoint) -> tuple[str, str, str]:
    return str(point.index), interval_text(point.accuracy), f"{point.tokens:,.0f}"
