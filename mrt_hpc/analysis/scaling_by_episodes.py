"""``mrt-hpc analyze scaling --by-episodes``: the scaling curves of the traces of each total number of episodes (paper,
Figure 3 and Appendix D). Beside them stand the complete samples of the same problems.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mrt_hpc.analysis.analysis_files import Analysis, Cell, DataTable, interval_cells, interval_text, name_of_file
from mrt_hpc.analysis.figures import LineFigure, Panel
from mrt_hpc.analysis.model_samples import ModelSamples
from mrt_hpc.analysis.scaling import ScalingCurve, direct_curves, line_of_curve, prefix_curve, require_votes, votes_of
from mrt_hpc.mrt.votes import RULE

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
    rows = [
        (t.model, t.episodes, t.traces, curve.model, curve.way, p.index, p.tokens, *interval_cells(p.accuracy))
        for t in totals
        for curve in t.curves
        for p in curve.points
    ]
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
