"""The summary of one weights version on one benchmark, from the rewards of its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from mrt_hpc.analysis.intervals import pass_at_1, pass_at_k
from mrt_hpc.analysis.measures import EvaluationSummary
from mrt_hpc.mrt.votes import RIGHT, AnswerCounts, majority_at_k

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def summarise_evaluation(
    version: int,
    benchmark: str,
    rewards: Mapping[str, Sequence[float]],
    *,
    answers: Mapping[str, Sequence[str | None]] | None = None,
    tokens_per_rollout: float | None = None,
    truncated_share: float | None = None,
    answered_share: float | None = None,
    quality: Mapping[str, float] | None = None,
    regret: Mapping[int, dict[str, float]] | None = None,
    regret_tokens: Literal["sampled", "all"] = "sampled",
    stages: Mapping[str, Mapping[str, float]] | None = None,
    graders: int = 1,
    seconds: float | None = None,
    settings: str | None = None,
) -> EvaluationSummary:
    """The summary of one weights version on one benchmark, from the rewards of every problem's samples.

    pass@k and maj@k are given for k = 1, 2, 4 .. up to the fewest samples that a problem has.

    Args:
        version: of the weights.
        benchmark: its name.
        rewards: [P][n] of each problem's samples.
        answers: [P][n] of the same samples, None where one has no answer; without them there is no maj@k.
        tokens_per_rollout: this and what follows is explained in ``EvaluationSummary``.
        truncated_share: as there.
        answered_share: as there.
        quality: as there.
        regret: as there.
        regret_tokens: as there.
        stages: the mean reward of each problem, by stage and problem id.
        seconds: as there.
        settings: as there.

    Raises:
        ValueError: there is no problem, or a problem without a sample.
    """
    estimate = pass_at_1(list(rewards.values()))
    fewest = min(len(samples) for samples in rewards.values())
    sizes = _powers_of_two(fewest)
    passes = {problem: [_pass_at_k(samples, k) for k in sizes] for problem, samples in rewards.items()}
    by_stage = stages or {}
    return EvaluationSummary(
        version=version,
        benchmark=benchmark,
        problems=len(rewards),
        samples=fewest,
        accuracy=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        per_problem={problem: float(np.mean(samples)) for problem, samples in rewards.items()},
        pass_at_k={k: float(np.mean([row[i] for row in passes.values()])) for i, k in enumerate(sizes)},
        pass_by_problem={problem: _rounded(row) for problem, row in passes.items()},
        majority_by_problem={p: _majorities(rewards[p], mine, sizes) for p, mine in (answers or {}).items()},
        tokens_per_rollout=tokens_per_rollout,
        truncated_share=truncated_share,
        answered_share=answered_share,
        quality=dict(quality or {}),
        regret=dict(regret or {}),
        regret_tokens=regret_tokens,
        stages={name: float(np.mean(list(means.values()))) for name, means in by_stage.items()},
        stages_by_problem=_rows(by_stage),
        graders=graders,
        seconds=seconds,
        settings=settings,
    )


DIGITS = 6
"""The decimals of numbers of single problems, so that files stay small."""
ROUNDED = 10.0**-DIGITS
"""Means of rounded numbers that differ by less than this agree."""


def _pass_at_k(rewards: Sequence[float], k: int) -> float:
    """pass@k of one problem; a sample counts as correct when its reward is 1."""
    return pass_at_k(len(rewards), sum(reward >= RIGHT for reward in rewards), k)


def _majorities(rewards: Sequence[float], answers: Sequence[str | None], sizes: Sequence[int]) -> tuple[float, ...]:
    """[K] maj@k of one problem."""
    counts = AnswerCounts.of(zip(answers, rewards, strict=True))
    return _rounded([majority_at_k(counts, k) for k in sizes])


def _rows(columns: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[float, ...]]:
    """The numbers of each problem in the order of the stages, from those of each stage; of problems that have all."""
    every = [*columns.values()]
    problems = [problem for problem in next(iter(every), {}) if all(problem in column for column in every)]
    return {problem: _rounded([column[problem] for column in every]) for problem in problems}


def _rounded(numbers: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(number, DIGITS) for number in numbers)


def _powers_of_two(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length())]
