"""Normalised regret: the distance of a trace from an oracle that is right from the start (paper, Sections 4 and 5).

For one trace, the area under its values against its tokens from (0, 0) to a budget C, by trapezoids, with linear
interpolation at C, or the last value held to C where the trace ends earlier; divided by C. Regret is 1 less the mean of
that over the traces of a problem, then over problems. V_0, the value of the empty prefix, also belongs to token 0:
where it is known, the area begins there.

The tokens of a boundary are the sampled tokens before it; or, as the authors count, all tokens of an answer there:
prompt, prefix, the prover's text and the answer (``tokens_at`` in :mod:`mrt_hpc.analysis.problem_measures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def area_under_values(tokens: NDArray[np.float64], values: NDArray[np.float64], budget: float) -> float:
    """Return the mean value of a trace over the budget.

    Args:
        tokens: [k + 1] tokens before each boundary, ascending.
        values: [k + 1] V_0 .. V_k.
        budget: C, in tokens.

    Returns:
        In [0, 1].

    Raises:
        ValueError: the lengths differ, or the budget is not positive.

    Source: paper, Section 5 (normalised regret).
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
    """The values of a trace by token, from which regret is computed."""

    tokens: NDArray[np.float64]
    """[k + 1] the tokens of each boundary, ascending."""
    values: NDArray[np.float64]
    """[k + 1] V_0 .. V_k."""


def area_of_episodes(curve: TraceCurve, episodes: int, budget: float) -> float:
    """Return the area of a trace that is stopped after its first episodes, with the value held that it has there.

    Divided by the area of the whole trace it says how much of the success comes from these episodes.

    Args:
        curve: the values of the trace.
        episodes: j, the number of episodes that are kept; a trace with fewer is kept whole.
        budget: C, in tokens.

    Raises:
        ValueError: the lengths of the curve differ, or the budget is not positive.

    Source: the authors' code (areas by episode budget).
    """
    kept = slice(0, episodes + 1)
    return area_under_values(curve.tokens[kept], curve.values[kept], budget)


def regret_by_problem(traces: Mapping[str, Sequence[TraceCurve]], budget: float) -> dict[str, float]:
    """Return 1 less the mean area of each problem's traces; normalised regret is the mean over problems.

    Args:
        traces: by problem.
        budget: C, in tokens.

    Raises:
        ValueError: a problem has no trace.

    Source: paper, Section 4 (cumulative regret) and Section 5.
    """
    if not all(traces.values()):
        raise ValueError("regret needs at least one trace of every problem")
    return {
        problem: 1.0 - float(np.mean([area_under_values(t.tokens, t.values, budget) for t in mine]))
        for problem, mine in traces.items()
    }


def reward_within(
    allowed: NDArray[np.float64], tokens: float, reward: float, curve: TraceCurve | None
) -> NDArray[np.float64]:
    """Return the expected reward of one trace when it is stopped after a number of tokens.

    A trace that has ended by then has its reward. Before that, an answer is forced early enough to fit: its expected
    reward is the value of the prefix, interpolated between the boundaries and held after the last one. Where not even
    an answer at the first boundary fits, and without values, a trace that has not ended counts as wrong.

    Args:
        allowed: [C] the numbers of tokens.
        tokens: of the whole trace with its answer.
        reward: of its own answer.
        curve: its values by the tokens of an answer at each boundary; None where its prefixes were not valued.

    Returns:
        [C] in [0, 1].

    Source: paper, Section 5 (token efficiency).
    """
    stopped = np.zeros_like(allowed) if curve is None else np.interp(allowed, curve.tokens, curve.values, left=0.0)
    return np.where(allowed >= tokens, reward, stopped)


def first_reached(allowed: NDArray[np.float64], accuracy: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Return the tokens at which each curve first reaches a level, by linear interpolation between its points.

    Args:
        allowed: [C] tokens, ascending.
        accuracy: [N, C] one curve a row.
        level: the accuracy asked for.

    Returns:
        [N] tokens; infinity for a curve that stays below the level.

    Source: paper, Section 5 (tokens to a given accuracy).
    """
    reached = accuracy >= level
    after = reached.argmax(axis=1)
    before = np.maximum(after - 1, 0)
    rows = np.arange(len(accuracy))
    low, high = accuracy[rows, before], accuracy[rows, after]
    rise = np.where(high > low, high - low, 1.0)
    share = np.where(after > 0, (level - low) / rise, 0.0)
    tokens = allowed[before] + share * (allowed[after] - allowed[before])
    return np.where(reached.any(axis=1), tokens, np.inf)
