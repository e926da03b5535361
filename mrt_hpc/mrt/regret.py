"""Normalised regret: the distance of a trace from an oracle that is right from the start (paper, Sections 4 and 8.5.1).

For one trace: the area under its values against its tokens from (0, 0) to a budget C, by trapezoids, interpolated at C,
or with the last value held where the trace ends earlier; divided by C. Regret is 1 less its mean over the traces of a
problem, then over problems. Where V_0 is known, the area begins with it.

The tokens of a boundary are the sampled tokens before it; or, as the authors count, prompt, prefix, the prover's text
and the answer there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9
"""The largest rounding error of a mean of shares."""


def area_under_values(tokens: NDArray[np.float64], values: NDArray[np.float64], budget: float) -> float:
    """The mean value of a trace over the budget, in [0, 1].

    Args:
        tokens: [k + 1] before each boundary, ascending.
        values: [k + 1] V_0 .. V_k.
        budget: C, in tokens.

    Raises:
        ValueError: the lengths differ, or the budget is not positive.

    Source: paper, Section 8.5.1 (Figures 9 and 12), and the authors' code (regret.ipynb, areas by cutoff).
    """
    if len(tokens) != len(values) or not len(tokens):
        raise ValueError(f"{len(tokens)} boundaries do not match {len(values)} values")
    if budget <= 0:
        raise ValueError(f"a budget of {budget} tokens is not positive")
    at = np.concatenate([[0.0], tokens])
    height = np.concatenate([[0.0], values])
    last = np.interp(budget, at, height)  # this is the last value where the trace ended earlier
    inside = at <= budget  # boundaries at the budget itself: of several the first ends the area, the others add none
    return float(np.trapezoid(np.append(height[inside], last), np.append(at[inside], budget)) / budget)


@dataclass(frozen=True)
class TraceCurve:
    """The values of a trace by token."""

    tokens: NDArray[np.float64]
    """[k + 1] of each boundary, ascending."""
    values: NDArray[np.float64]
    """[k + 1] V_0 .. V_k."""


def join_curves(curve: TraceCurve, extensions: TraceCurve) -> TraceCurve:
    """The values of a trace, and after them those of its extensions past the budget, as one curve.

    An extension with fewer tokens than the boundary before it counts no fewer, so that the area has a base.

    Source: paper, Section 8.5.1 (Figures 9 and 12), and the authors' code (regret.ipynb, areas by extrapolation).
    """
    tokens = np.maximum.accumulate(np.concatenate([curve.tokens, extensions.tokens]))
    return TraceCurve(tokens, np.concatenate([curve.values, extensions.values]))


def area_of_episodes(curve: TraceCurve, episodes: int, budget: float) -> float:
    """The area of a trace stopped after its first ``episodes`` j, with its value there held. Divided by the area of the
    whole trace: how much of the success comes from these episodes.

    Raises:
        ValueError: the lengths of the curve differ, or the budget is not positive.

    Source: the project's own. The paper's Appendix E shows another quantity, see :func:`regret_against_voting`.
    """
    kept = slice(0, episodes + 1)
    return area_under_values(curve.tokens[kept], curve.values[kept], budget)


def regret_by_problem(traces: Mapping[str, Sequence[TraceCurve]], budget: float) -> dict[str, float]:
    """1 less the mean area of each problem's traces; normalised regret is the mean over problems.

    Raises:
        ValueError: a problem has no trace.

    Source: paper, Section 4 (cumulative regret) and Section 8.5.1 (normalised).
    """
    if not all(traces.values()):
        raise ValueError("regret needs at least one trace of every problem")
    return {
        problem: 1.0 - float(np.mean([area_under_values(t.tokens, t.values, budget) for t in mine]))
        for problem, mine in traces.items()
    }


VOTES = (1, 2, 4, 8)
"""p: the sizes of the votes that thinking on is measured against (paper, Appendix E)."""
_ANSWERS = (1.0, 2.0, 4.0, 6.0)
"""The answers that one more episode is taken to cost, up to 6: there the vote is the mean of those of 4 and of 8."""


def regret_against_voting(votes: NDArray[np.float64], episodes: int) -> float | None:
    """The loss of thinking on to the better of thinking on and of voting, over the first b episodes of a trace, in [0,
    1].

    From boundary i, one more episode is taken to cost as much as 6 answers, and to raise the accuracy evenly from
    [maj@1]_i to [maj@1]_(i+1). A vote at boundary i is [maj@p]_i. The area between the better of both, point by point,
    and thinking on, summed over i, is divided by the area below the better. None where that is 0, and for a trace
    without an episode.

    Args:
        votes: [k + 1, 4] of each boundary, [maj@p]_j for p = 1, 2, 4 and 8.
        episodes: b; a trace with fewer has all of its episodes.

    Source: paper, Appendix E, and the authors' code (regret_additional.ipynb).
    """
    kept = votes[: episodes + 1]
    now, later = kept[:-1], kept[1:, :1]
    at = np.array(_ANSWERS)
    voting = np.column_stack([now[:, :3], now[:, 2:].mean(axis=1)])
    thinking = now[:, :1] + (at - at[0]) / (at[-1] - at[0]) * (later - now[:, :1])
    optimum = np.maximum(voting, thinking)
    whole = float(np.trapezoid(optimum, at).sum())
    return float(np.trapezoid(optimum - thinking, at).sum()) / whole if whole else None


def reward_within(
    allowed: NDArray[np.float64], tokens: float, reward: float, curve: TraceCurve | None
) -> NDArray[np.float64]:
    """[C] the expected reward, in [0, 1], of one trace when it is stopped after a number of tokens.

    A trace that has ended by then has its reward. Before that, an answer is forced early enough to fit: its expected
    reward is the value of the prefix, interpolated between boundaries and held after the last one. Where not even an
    answer at the first boundary fits, and without values, it counts as wrong.

    Args:
        allowed: [C] tokens.
        tokens: of the whole trace with its answer.
        reward: of its own answer.
        curve: its values by the tokens of an answer at each boundary; None where its prefixes were not valued.

    Source: paper, Section 5 (token efficiency).
    """
    stopped = np.zeros_like(allowed) if curve is None else np.interp(allowed, curve.tokens, curve.values, left=0.0)
    return np.where(allowed >= tokens, reward, stopped)


def first_reached(allowed: NDArray[np.float64], accuracy: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """[N] tokens at which each curve first reaches a level, linear between its points; infinity for one that stays
    below.

    Args:
        allowed: [C] tokens, ascending.
        accuracy: [N, C] one curve a row.

    Source: paper, Section 5 (tokens to a given accuracy).
    """
    reached = accuracy >= level - ROUNDING  # a mean of 420 of 600 may be 0.6999999999999998
    after = reached.argmax(axis=1)
    before = np.maximum(after - 1, 0)
    rows = np.arange(len(accuracy))
    low, high = accuracy[rows, before], accuracy[rows, after]
    rise = np.where(high > low, high - low, 1.0)
    share = np.where(after > 0, np.minimum((level - low) / rise, 1.0), 0.0)
    tokens = allowed[before] + share * (allowed[after] - allowed[before])
    return np.where(reached.any(axis=1), tokens, np.inf)
