"""Figures of what a prover found at the prefixes of evaluated traces: votes against tokens, and progress by episode.

Of one run they show the last evaluated version and, for comparison, the first one; of several runs the last version of
each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mrt_hpc.analysis import plots
from mrt_hpc.analysis.episode_progress import FEW_PROBLEMS
from mrt_hpc.analysis.estimates import majority_estimates
from mrt_hpc.analysis.number_formats import count, share_text
from mrt_hpc.analysis.page.content import Column, Table
from mrt_hpc.analysis.page.figures import labelled, plotted
from mrt_hpc.analysis.page.side_by_side import last_by_benchmark
from mrt_hpc.analysis.plots import Series
from mrt_hpc.analysis.report_figures import series_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mrt_hpc.analysis.intervals import IntervalEstimate
    from mrt_hpc.analysis.page.content import Plot, PrefixCurves, RunRecord
    from mrt_hpc.analysis.plots import Target
    from mrt_hpc.analysis.scaling_curves import ScalingCurve


def prefix_vote_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    """[maj@p]_j against tokens, a figure each benchmark whose prefixes have forced answers."""
    named = dict.fromkeys(one.benchmark for record in records for one in record.prefixes if one.votes)
    return tuple(filter(None, (_votes(records, benchmark) for benchmark in named)))


def prefix_progress_plots(records: Sequence[RunRecord]) -> tuple[Plot, ...]:
    """Progress by episode of evaluated traces, a figure each benchmark whose prefixes have values."""
    named = dict.fromkeys(one.benchmark for record in records for one in record.prefixes if one.progress)
    return tuple(filter(None, (_progress(records, benchmark) for benchmark in named)))


def _shown(records: Sequence[RunRecord], benchmark: str) -> Iterator[tuple[RunRecord, PrefixCurves]]:
    """The last version of each record, and before it the first one where there is a single record."""
    for record in records:
        found = [one for one in record.prefixes if one.benchmark == benchmark]
        yield from ((record, one) for one in (found if len(records) == 1 else found[-1:]))


def _version(record: RunRecord, version: int) -> str:
    return f"version {version}" if record.trained else ""


# -- votes against tokens


@dataclass(frozen=True)
class _VoteLine:
    """One line of a figure of votes."""

    label: str
    points: tuple[tuple[int, float, IntervalEstimate], ...]
    """j, the number of episodes, or k, the number of samples; tokens; accuracy."""
    complete: bool
    """Whether complete samples vote."""
    banded: bool
    """Whether the figure shows its intervals; those of all lines would hide each other."""

    @property
    def series(self) -> Series:
        """The line as figures take it."""
        return series_of(self.label, (tokens for _, tokens, _ in self.points), [found for _, _, found in self.points])


def _votes(records: Sequence[RunRecord], benchmark: str) -> Plot | None:
    lines = [*_at_prefixes(records, benchmark), *_complete(records, benchmark)]
    complete = {line.label for line in lines if line.complete}
    bare = {line.label for line in lines if not line.banded}

    def draw(target: Target, drawn: Sequence[Series]) -> None:
        seen = [replace(line, low=None, high=None) if line.label in bare else line for line in drawn]
        prefixes, samples = ([line for line in seen if (line.label in complete) is which] for which in (False, True))
        plots.votes_by_tokens(target, "Scaling with tokens", prefixes, samples)

    caption = (
        "Accuracy of a vote of p answers that are forced after j episodes, [maj@p]_j, and of k complete samples, "
        "against the tokens that this takes, with 95 % intervals over problems; the figure shows those of the largest "
        "p and of complete samples. Where thinking helps, votes at later prefixes are more accurate, also than votes "
        "of complete samples of as many tokens."
    )
    plot = plotted(f"Scaling with tokens: {benchmark}", caption, "tokens", [line.series for line in lines], draw)
    return None if plot is None else replace(plot, table=_vote_table(plot.title, lines))


def _at_prefixes(records: Sequence[RunRecord], benchmark: str) -> Iterator[_VoteLine]:
    """All votes of a single run or model, and the largest one of its first version; of several the largest that all of
    them have.
    """
    shown = [(record, one) for record, one in _shown(records, benchmark) if one.votes]
    if not shown:
        return
    shared = set.intersection(*({curve.voters or 0 for curve in one.votes} for _, one in shown))
    for record, one in shown:
        is_last = one is shown[-1][1]
        for curve in one.votes:
            most = curve.voters == max(shared, default=0)
            if most or (len(records) == 1 and is_last):
                yield _line_of(records, record, one, curve, banded=(most and is_last) or len(records) > 1)


def _line_of(
    records: Sequence[RunRecord], record: RunRecord, one: PrefixCurves, curve: ScalingCurve, *, banded: bool
) -> _VoteLine:
    told = ", ".join(filter(None, (curve.way, _version(record, one.version))))
    points = tuple((point.index, point.tokens, point.accuracy) for point in curve.points)
    return _VoteLine(labelled(records, record, told), points, complete=False, banded=banded)


def _complete(records: Sequence[RunRecord], benchmark: str) -> Iterator[_VoteLine]:
    """maj@k of the last version of each run or model, by its summary."""
    for record in records:
        one = last_by_benchmark(record).get(benchmark)
        if one is None or one.tokens_per_rollout is None or not (found := majority_estimates(one)):
            continue
        told = ", ".join(filter(None, ("maj@k of complete samples", _version(record, one.version))))
        points = tuple((k, k * one.tokens_per_rollout, estimate) for k, estimate in found.items())
        yield _VoteLine(labelled(records, record, told), points, complete=True, banded=True)


def _vote_table(title: str, lines: Sequence[_VoteLine]) -> Table:
    rows = tuple(
        (line.label, count(index), count(round(tokens)), share_text(found))
        for line in lines
        for index, tokens, found in line.points
    )
    names = ("episodes j or samples k", "tokens", "accuracy (95 % interval)")
    return Table(f"{title}: all values", (Column("vote"), *map(Column, names)), rows, folded=True)


# -- progress by episode


def _progress(records: Sequence[RunRecord], benchmark: str) -> Plot | None:
    shown = [(record, one) for record, one in _shown(records, benchmark) if one.progress]
    lines = [_progress_line(records, record, one) for record, one in shown]
    frequent = {line.label: _frequent(one) for line, (_, one) in zip(lines, shown, strict=True)}

    def draw(target: Target, drawn: Sequence[Series]) -> None:
        plots.progress_compared(target, [_first(line, frequent[line.label]) for line in drawn])

    caption = (
        "Mean progress V(j+1) − V(j) of the j-th episode over the evaluated traces that have one, with 95 % intervals "
        f"clustered by problem. Episodes of fewer than {FEW_PROBLEMS} problems are in the table alone."
    )
    return plotted(f"Progress by episode: {benchmark}", caption, "episode", lines, draw)


def _progress_line(records: Sequence[RunRecord], record: RunRecord, one: PrefixCurves) -> Series:
    label = labelled(records, record, _version(record, one.version), record.name)
    return series_of(label, (e.episode for e in one.progress), [e.mean for e in one.progress])


def _frequent(one: PrefixCurves) -> int:
    """The number of first episodes that enough problems have; every later one has as many problems, or fewer."""
    least = min(FEW_PROBLEMS, one.problems)
    return sum(episode.problems >= least for episode in one.progress)


def _first(line: Series, points: int) -> Series:
    low, high = (None if ends is None else ends[:points] for ends in (line.low, line.high))
    return Series(line.label, line.x[:points], line.y[:points], low, high)
