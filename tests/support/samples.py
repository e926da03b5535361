"""Samples of problems as an evaluation records them, made without a server."""

from __future__ import annotations

from mrt_hpc.run.groups import Sampled
from mrt_hpc.run.records import FinishReason, GroupStatistics, Rollout


def rollout(problem_id: str, sample: int, text: str = "</think>\n\n\\boxed{7}", *, reward: float = 1.0) -> Rollout:
    """One finished trace with three tokens."""
    return Rollout(
        iteration=0, problem_id=problem_id, sample=sample, seed=sample, weights_version=0, prompt_ids=[1], forced=0,
        token_ids=[2, 3, 4], logprobs=[-0.5, -0.5, -0.5], finish_reason=FinishReason.STOP, text=text,
        answer=text.rpartition("{")[2].rstrip("}"), reward=reward, boundaries=[0, 2], started=0.0, seconds=1.0,
    )  # fmt: skip


def sampled(*rollouts: Rollout) -> Sampled:
    """A group of traces without branches."""
    statistics = GroupStatistics(
        rollouts=len(rollouts), branches=0, rollout_tokens=3 * len(rollouts), branch_tokens=0, prompt_tokens=0,
        cached_tokens=0, prefilled_tokens=1, seconds={"generation": 1.0},
    )  # fmt: skip
    return Sampled(rollouts=list(rollouts), statistics=statistics)
