"""Does the model make progress while it thinks, or would a vote at an earlier episode have done as well? And would a
vote of complete samples of equal tokens? (paper, Section 5.)

The vote at the last prefix is compared with the votes at all earlier ones, by problem, with Holm's correction over
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.analysis.analysis_files import DataTable, interval_cells, interval_text
from mrt_hpc.analysis.comparing import can_show, quantity
from mrt_hpc.analysis.intervals import MeanGain, mean_gain
from mrt_hpc.analysis.power import SIGNIFICANCE, detectable, holm
from mrt_hpc.analysis.problem_measures import MajorityAtK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mrt_hpc.analysis.scaling_curves import ScalingCurve


@dataclass(frozen=True)
class EarlierVote:
    """A vote at an earlier prefix, beside the same vote at the last one."""

    episode: int
    """j."""
    tokens: float
    saved: float
    """The tokens that the vote at the last prefix takes more."""
    gain: MeanGain
    """Of the vote at the last prefix over this one, paired by problem."""
    corrected_p: float
    """The p-value with Holm's correction for all earlier votes."""
    together: int
    """The number of these."""
    problems: int

    @property
    def shown(self) -> bool:
        """Whether the two votes differ by more than chance gives."""
        return self.corrected_p < SIGNIFICANCE

    @property
    def is_beaten(self) -> bool:
        """Whether thinking on is shown to gain something."""
        return self.shown and self.gain.mean > 0

    @property
    def detectable(self) -> float:
        """The smallest gain that 80 % of such comparisons would show; infinite for a single problem."""
        return detectable(self.gain.error, self.gain.degrees, self.together)


@dataclass(frozen=True)
class EqualTokens:
    """A vote at the last prefix beside one of complete samples that takes as many tokens."""

    curve: ScalingCurve
    complete: float
    """The accuracy of complete samples."""
    gain: MeanGain
    """Of the vote at the last prefix over them, paired by problem."""


def earlier_votes(curve: ScalingCurve) -> list[EarlierVote]:
    """The votes at all prefixes but the last.

    Args:
        curve: of votes at prefixes.
    """
    *earlier, last = curve.points
    gains = [mean_gain([(point.by_problem, last.by_problem)]) for point in earlier]
    corrected = holm([gain.p_value for gain in gains])
    return [
        EarlierVote(point.index, point.tokens, last.tokens - point.tokens, gain, p, len(earlier), len(last.by_problem))
        for point, gain, p in zip(earlier, gains, corrected, strict=True)
    ]


def equal_tokens(curve: ScalingCurve, complete: ScalingCurve) -> EqualTokens | None:
    """The vote at the last prefix beside complete samples of equal tokens; None where there are none.

    Args:
        curve: of votes at prefixes.
        complete: of votes of complete samples. Between two numbers of samples each problem's accuracy is linear.
    """
    last, tokens = curve.points[-1], [point.tokens for point in complete.points]
    if not tokens[0] <= last.tokens <= tokens[-1]:
        return None
    by_problem = {
        problem: float(np.interp(last.tokens, tokens, [point.by_problem[problem] for point in complete.points]))
        for problem in last.by_problem
    }
    accuracy = float(np.mean(list(by_problem.values())))
    return EqualTokens(curve, accuracy, mean_gain([(by_problem, last.by_problem)]))


# -- in words


def progress_verdict(curve: ScalingCurve) -> str | None:
    """Whether thinking on pays, in one sentence; None where there is no earlier prefix."""
    votes, measure = earlier_votes(curve), MajorityAtK(curve.voters or 1)
    if not votes:
        return None
    head = f"{curve.model}, {measure.name} at the prefixes"
    enough = next((vote for vote in votes if not vote.is_beaten), None)
    if enough is None:
        return f"{head}: thinking on gains {_at_least(votes, measure)} over a vote at every earlier episode"
    saved = f"{enough.saved:,.0f} of {curve.points[-1].tokens:,.0f} tokens"
    if enough.shown:
        better = quantity(measure, -enough.gain.mean)
        return f"{head}: a vote at episode {enough.episode} is better by {better}, and would have saved {saved}"
    limit = can_show(measure, enough.problems, enough.detectable)
    if enough.detectable > 1:
        return f"{head}: whether thinking on gains anything cannot be told: {limit}"
    as_well = f"a vote at episode {enough.episode} would have done as well, and saved {saved}"
    return f"{head}: {as_well}: it cannot be told from the last one, and {limit}"


def _at_least(votes: Sequence[EarlierVote], measure: MajorityAtK) -> str:
    """The smallest of the gains."""
    text = quantity(measure, min(vote.gain.mean for vote in votes))
    return text if len(votes) == 1 else f"{text} or more"


def equal_tokens_verdict(curve: ScalingCurve, complete: ScalingCurve) -> str:
    """Whether complete samples of equal tokens would have done as well, in one sentence."""
    measure, last = MajorityAtK(curve.voters or 1), curve.points[-1]
    head = f"{curve.model}, {measure.name} at the last prefix against a vote of complete samples of equal tokens"
    found = equal_tokens(curve, complete)
    if found is None:
        return f"{head}: not compared, {_out_of_range(last.tokens, complete)}"
    gain, problems = found.gain, len(last.by_problem)
    told = f"{head}: {interval_text(gain.interval, signed=True)}"
    if gain.p_value < SIGNIFICANCE:
        return f"{told}, it is {'better' if gain.mean > 0 else 'worse'} by {quantity(measure, abs(gain.mean))}"
    limit = can_show(measure, problems, detectable(gain.error, gain.degrees))
    return f"{told}, cannot be told apart: {limit}"


def _out_of_range(tokens: float, complete: ScalingCurve) -> str:
    """Why there are no complete samples of so many tokens."""
    first, last = complete.points[0], complete.points[-1]
    if tokens < first.tokens:
        return f"it takes {tokens:,.0f} tokens, and one complete sample {first.tokens:,.0f}"
    return f"it takes {tokens:,.0f} tokens, and the complete samples ({last.index} of a problem) {last.tokens:,.0f}"


# -- as tables


def table_of_earlier_votes(curves: Sequence[ScalingCurve]) -> DataTable:
    """All earlier votes, a row each."""
    rows = [
        (
            curve.model, curve.way, vote.episode, vote.tokens, vote.saved,
            *interval_cells(vote.gain.interval), vote.gain.p_value, vote.corrected_p,
        )
        for curve in curves
        for vote in earlier_votes(curve)
    ]  # fmt: skip
    columns = (
        "model", "way", "episodes", "tokens", "tokens_saved", "gain_of_the_last", "low", "high", "p", "corrected_p",
    )  # fmt: skip
    return DataTable("earlier_votes", columns, tuple(rows))


def table_of_equal_tokens(pairs: Sequence[tuple[ScalingCurve, ScalingCurve]]) -> DataTable:
    """The votes at the last prefixes beside complete samples of equal tokens, where there are such.

    Args:
        pairs: votes at prefixes, and votes of complete samples of the same model.
    """
    found = [one for one in (equal_tokens(*pair) for pair in pairs) if one is not None]
    rows = [
        (
            one.curve.model, one.curve.way, one.curve.points[-1].tokens, one.curve.points[-1].accuracy.mean,
            one.complete, *interval_cells(one.gain.interval), one.gain.p_value,
        )
        for one in found
    ]  # fmt: skip
    columns = ("model", "way", "tokens", "accuracy", "complete_samples", "difference", "low", "high", "p")
    return DataTable("equal_tokens", columns, tuple(rows))
