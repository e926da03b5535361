"""``mrt-hpc analyze scaling``: does the model make progress while it thinks, or would a vote at an earlier episode have
done as well?

For every prefix j and several p, the success of a vote of p answers that are forced there, [maj@p]_j, against the
tokens that this takes: the prefix and p answers (paper, Section 5). A trace with fewer than j episodes takes part with
its whole thought, so that every point is over the same traces. Beside it stand complete samples that vote (maj@k), or
of which one has to be right (pass@k), at k times the mean tokens of a sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.analysis.analysis_files import Analysis, DataTable, interval_cells, interval_text, name_of_file
from mrt_hpc.analysis.earlier_votes import (
    equal_tokens_verdict,
    progress_verdict,
    table_of_earlier_votes,
    table_of_equal_tokens,
)
from mrt_hpc.analysis.intervals import paired_difference
from mrt_hpc.analysis.line_figures import Line, LineFigure, Panel
from mrt_hpc.analysis.model_samples import VALUED_SUITE
from mrt_hpc.analysis.scaling_curves import VOTE, VOTERS, ScalingCurve, direct_curves, prefix_curve, votes_of
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.votes import RULE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.analysis.line_figures import Dash
    from mrt_hpc.analysis.model_samples import ModelSamples


def analyse_scaling(models: Sequence[ModelSamples]) -> Analysis:
    """The scaling curves of several models; those without forced answers take part with their complete samples.

    Raises:
        UserError: no model has forced answers at all prefixes.
    """
    voting = [model for model in models if model.fewest_forced > 0]
    if not voting:
        raise UserError(
            f"{models[0].name}: the samples have no answers that were forced at all prefixes",
            where=models[0].source,
            expected="an evaluation whose prover draws branches, as forced_answer or boxed_answer does",
            advice=f"mrt-hpc eval {models[0].source} --suite {VALUED_SUITE}",
        )
    prefixes = {model.name: [prefix_curve(model, p) for p in votes_of(model)] for model in voting}
    direct = {model.name: direct_curves(model) for model in models}
    others = [curve for model in models if model not in voting for curve in direct[model.name]]
    figures = tuple(_figure(m.name, [*prefixes[m.name], *direct[m.name], *others], len(voting) > 1) for m in voting)
    table = _table([curve for model in models for curve in (*prefixes.get(model.name, ()), *direct[model.name])])
    pairs = [(curve, direct[model.name][0]) for model in voting for curve in prefixes[model.name]]
    largest = [(prefixes[model.name][-1], direct[model.name][0]) for model in voting]
    tables = (table, table_of_earlier_votes([curve for curve, _ in largest]), table_of_equal_tokens(pairs))
    summary = _summary([_summary_row(*pair) for pair in pairs])
    return Analysis(tables, figures, summary, _verdicts(largest), _remarks(models, voting))


def _verdicts(largest: Sequence[tuple[ScalingCurve, ScalingCurve]]) -> tuple[str, ...]:
    """Two sentences a model: on earlier votes, and on complete samples of equal tokens.

    Args:
        largest: of each model the largest vote at the prefixes, and the vote of complete samples.
    """
    found = [
        sentence
        for curve, votes in largest
        for sentence in (progress_verdict(curve), equal_tokens_verdict(curve, votes))
    ]
    return tuple(sentence for sentence in found if sentence is not None)


# -- what is shown


def accuracy_at(curve: ScalingCurve, tokens: float) -> float:
    """The accuracy of a curve at a number of tokens, linear between its points; NaN outside of them."""
    return float(
        np.interp(
            tokens,
            [point.tokens for point in curve.points],
            [point.accuracy.mean for point in curve.points],
            left=np.nan,
            right=np.nan,
        )
    )


def _table(curves: Sequence[ScalingCurve]) -> DataTable:
    rows = [
        (curve.model, curve.way, point.index, point.tokens, *interval_cells(point.accuracy))
        for curve in curves
        for point in curve.points
    ]
    columns = ("model", "way", "episodes_or_samples", "tokens", "accuracy", "low", "high")
    return DataTable("scaling", columns, tuple(rows))


def _figure(model: str, curves: Sequence[ScalingCurve], several: bool) -> LineFigure:
    """The votes at the prefixes of one model, and complete samples of this model and of those without prefixes."""
    most = max(curve.voters for curve in curves if curve.voters is not None)
    lines = tuple(_line(curve, number, model, most) for number, curve in enumerate(curves))
    title, x_label, y_label = f"Scaling of {model}", "tokens (logarithmic)", "accuracy (mean; bands: 95 % interval)"
    panel = Panel(title, x_label, y_label, lines, percent=True, logarithmic=True)
    return LineFigure(name_of_file("scaling", model) if several else "scaling", (panel,))


def _line(curve: ScalingCurve, number: int, model: str, most: int) -> Line:
    """Votes at prefixes are solid, complete samples broken. Only the largest vote at prefixes and the vote of complete
    samples have a band: more of them would hide each other.
    """
    name = curve.way if curve.voters is not None else f"{curve.way}, complete samples"
    label = name if curve.model == model else f"{name} of {curve.model}"
    x, y = tuple(point.tokens for point in curve.points), tuple(point.accuracy for point in curve.points)
    return Line(label, x, y, number, _dash(curve), band=curve.voters == most or curve.way == VOTE)


def _dash(curve: ScalingCurve) -> Dash:
    if curve.voters is not None:
        return "solid"
    return "dashed" if curve.way == VOTE else "dotted"


def _summary_row(curve: ScalingCurve, votes: ScalingCurve) -> tuple[str, ...]:
    first, last = curve.points[0], curve.points[-1]
    best = max(curve.points, key=lambda point: point.accuracy.mean)
    equal = accuracy_at(votes, last.tokens)
    return (
        curve.model,
        curve.way,
        interval_text(first.accuracy),
        interval_text(last.accuracy),
        f"{last.tokens:.0f}",
        interval_text(paired_difference(first.by_problem, last.by_problem), signed=True),
        f"{best.accuracy.mean:.3f} at j = {best.index}",
        "none" if np.isnan(equal) else f"{equal:.3f}",
    )


def _summary(rows: Sequence[tuple[str, ...]]) -> DataTable:
    columns = (
        "model", "vote", "before thinking", "after thinking", "tokens", "gain", "best", "maj@k of equal tokens",
    )  # fmt: skip
    return DataTable("votes at prefixes", columns, tuple(rows))


def _remarks(models: Sequence[ModelSamples], voting: Sequence[ModelSamples]) -> tuple[str, ...]:
    """How votes are counted, and what was left out."""
    remarks = [RULE]
    remarks += [
        f"{model.name}: no answers were forced at its prefixes, so only its complete samples are shown"
        for model in models
        if model not in voting
    ]
    for model in voting:
        if left := [voters for voters in VOTERS if voters not in votes_of(model)]:
            names = ", ".join(f"maj@{voters}" for voters in left)
            remarks.append(
                f"{model.name}: only {model.fewest_forced} answers were forced at a prefix, so {names} is left out"
            )
    return tuple(remarks)
