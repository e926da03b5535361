"""The points of ``mrt-hpc analyze scaling``: votes of answers that were forced at each prefix, and votes of complete
samples, each with the accuracy of every problem and the tokens that it takes (paper, Section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.analysis.intervals import mean_of_shares
from mrt_hpc.analysis.problem_measures import MajorityAtK, PassAtK
from mrt_hpc.mrt.votes import AnswerCounts, majority_at_k

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.analysis.intervals import IntervalEstimate
    from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, ModelSamples

VOTE = "maj@k"
"""The name of the vote of complete samples."""
VOTERS = (1, 2, 4, 8)
"""p: the sizes of the votes at a prefix (paper, Section 5)."""


@dataclass(frozen=True)
class ScalingPoint:
    """One point of a scaling curve."""

    index: int
    """j, the number of episodes; or k, the number of complete samples."""
    tokens: float
    by_problem: dict[str, float]
    """The expected accuracy of each problem."""

    @property
    def accuracy(self) -> IntervalEstimate:
        """The mean over problems with its interval."""
        return mean_of_shares(self.by_problem)


@dataclass(frozen=True)
class ScalingCurve:
    """One line: a vote of p at the prefixes, or complete samples."""

    model: str
    way: str
    """As ``maj@4 at prefix`` or ``pass@k``."""
    points: tuple[ScalingPoint, ...]
    voters: int | None = None
    """p of a vote at the prefixes."""


# -- votes at prefixes


def votes_of(model: ModelSamples) -> list[int]:
    """p for which every boundary has enough answers."""
    fewest = model.fewest_forced
    return [voters for voters in VOTERS if voters <= fewest]


def prefix_curve(model: ModelSamples, voters: int) -> ScalingCurve:
    """[maj@p]_j for j = 0 .. the most episodes of a trace, each over all traces."""
    most = max(len(trace.boundaries) for traces in model.problems.values() for trace in traces)
    points = [_prefix_point(model, voters, j) for j in range(most)]
    return ScalingCurve(model.name, f"maj@{voters} at prefix", tuple(points), voters)


def _prefix_point(model: ModelSamples, voters: int, j: int) -> ScalingPoint:
    accuracy = _means(model, lambda trace: forced_majority(_boundary(trace, j), voters))
    tokens = _means(model, lambda trace: forced_tokens(_boundary(trace, j), voters))
    return ScalingPoint(j, float(np.mean(list(tokens.values()))), accuracy)


def _boundary(trace: EvaluatedTrace, j: int) -> EvaluatedBoundary:
    """Boundary j, or the last one of a trace with fewer episodes."""
    return trace.boundaries[min(j, len(trace.boundaries) - 1)]


def _means(model: ModelSamples, of: Callable[[EvaluatedTrace], float]) -> dict[str, float]:
    """The mean over the traces of each problem."""
    return {problem: float(np.mean([of(trace) for trace in traces])) for problem, traces in model.problems.items()}


def forced_majority(boundary: EvaluatedBoundary, voters: int) -> float:
    """The expected reward of a vote of p of the answers that were forced at a boundary."""
    return majority_at_k(AnswerCounts.of((f.answer, f.reward) for f in boundary.forced), voters)


def forced_tokens(boundary: EvaluatedBoundary, voters: int) -> float:
    """The tokens of a vote of p answers at a boundary: those of the prefix, and p times the mean of an answer."""
    return boundary.tokens + voters * float(np.mean([f.tokens for f in boundary.forced]))


# -- complete samples


def direct_curves(model: ModelSamples) -> tuple[ScalingCurve, ScalingCurve]:
    """maj@k and pass@k of complete samples, for k = 1, 2, 4 .. up to the fewest samples of a problem."""
    sizes = [1 << exponent for exponent in range(model.fewest.bit_length())]
    votes, passes = (tuple(_direct_point(model, of(k)) for k in sizes) for of in (MajorityAtK, PassAtK))
    return ScalingCurve(model.name, VOTE, votes), ScalingCurve(model.name, "pass@k", passes)


def _direct_point(model: ModelSamples, measure: MajorityAtK | PassAtK) -> ScalingPoint:
    return ScalingPoint(measure.k, measure.k * model.mean_tokens, measure.values(model))
