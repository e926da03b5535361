"""Joins the boundaries of traces with the values that a prover gave them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mrt_hpc.mrt.regret import TraceCurve, tokens_to_answer
from mrt_hpc.run.parquet import LENGTH_OF

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray


class Trace(Protocol):
    """What is needed of a rollout."""

    @property
    def problem_id(self) -> str:
        """The problem."""

    @property
    def sample(self) -> int:
        """The index within the samples of the problem."""

    @property
    def boundaries(self) -> Sequence[int]:
        """[k + 1] token offsets."""


class Value(Protocol):
    """What is needed of the value of a prefix."""

    @property
    def problem_id(self) -> str:
        """The problem."""

    @property
    def sample(self) -> int:
        """The index of the trace."""

    @property
    def boundary(self) -> int:
        """j: the prefix is the first j episodes."""

    @property
    def value(self) -> float:
        """V_j."""


@dataclass(frozen=True)
class BranchTokens:
    """The tokens of one branch, which is sampled at a boundary of a trace."""

    problem_id: str
    sample: int
    boundary: int
    prompt_tokens: int
    """Of problem, prefix and forced text together."""
    tokens: int = field(metadata={LENGTH_OF: "token_ids"})
    """Sampled."""


def trace_curves(
    traces: Iterable[Trace], values: Iterable[Value], branches: Iterable[BranchTokens] | None = None
) -> dict[str, tuple[TraceCurve, ...]]:
    """The traces of each problem with the values of all their prefixes; those that were not valued are left out.

    Args:
        traces: in any order, which the result keeps.
        values: of their prefixes.
        branches: all of them, where a boundary counts prompt, prefix, forced text and answer; None where it counts the
            sampled tokens of the trace alone.

    Raises:
        ValueError: branches are counted, and a valued boundary has none.
    """
    found: dict[str, list[TraceCurve]] = defaultdict(list)
    by_trace = _by_trace(values)
    answers = None if branches is None else _by_boundary(branches)
    for trace in traces:
        if heights := by_trace.get((trace.problem_id, trace.sample)):
            tokens = np.array(trace.boundaries, float) if answers is None else _to_answer(trace, answers)
            found[trace.problem_id].append(TraceCurve(tokens, np.array(heights)))
    return {problem: tuple(curves) for problem, curves in found.items()}


def _by_trace(values: Iterable[Value]) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for value in sorted(values, key=lambda v: v.boundary):
        found[value.problem_id, value.sample].append(value.value)
    return found


def _by_boundary(branches: Iterable[BranchTokens]) -> dict[tuple[str, int, int], list[BranchTokens]]:
    found: dict[tuple[str, int, int], list[BranchTokens]] = defaultdict(list)
    for branch in branches:
        found[branch.problem_id, branch.sample, branch.boundary].append(branch)
    return found


def _to_answer(trace: Trace, answers: Mapping[tuple[str, int, int], Sequence[BranchTokens]]) -> NDArray[np.float64]:
    """[k + 1] the tokens of prompt, prefix, the prover's text and the answers."""
    drawn = [answers.get((trace.problem_id, trace.sample, j), ()) for j in range(len(trace.boundaries))]
    return tokens_to_answer(
        [[b.prompt_tokens for b in these] for these in drawn], [[b.tokens for b in these] for these in drawn]
    )
