"""Samples of problems as runs record them, made without a server."""

from collections.abc import Sequence
from typing import Any

from mrt_hpc.run.groups import Sampled
from mrt_hpc.run.problems import draw_indices
from mrt_hpc.run.records import Branch, FinishReason, GroupStatistics, Problem, Rollout

COMMON: dict[str, Any] = {
    "iteration": 0, "problem_id": "problem", "sample": 0, "seed": 0, "weights_version": 0,
    "finish_reason": FinishReason.STOP, "text": "", "answer": None, "reward": 1.0,
}  # fmt: skip


def rollout_with(token_ids: list[int], **fields: Any) -> Rollout:
    """A finished trace of which only these fields matter."""
    usual = {"prompt_ids": [1], "forced": 0, "logprobs": [-0.5] * len(token_ids), "started": 0.0, "seconds": 1.0}
    return Rollout(token_ids=token_ids, **{**COMMON, "boundaries": [0, len(token_ids)], **usual, **fields})


def branch_with(token_ids: list[int], **fields: Any) -> Branch:
    usual = {"boundary": 0, "branch": 0, "logprobs": [-0.5] * len(token_ids), "known": False, "look_ahead": 0.0}
    return Branch(token_ids=token_ids, **{**COMMON, "prompt_tokens": 1, "cached_tokens": None, **usual, **fields})


def rollout(problem_id: str, sample: int, text: str = "</think>\n\n\\boxed{7}", *, reward: float = 1.0) -> Rollout:
    answer = text.rpartition("{")[2].rstrip("}")
    named = {"problem_id": problem_id, "sample": sample, "seed": sample, "text": text, "answer": answer}
    return rollout_with([2, 3, 4], reward=reward, boundaries=[0, 2], **named)


def sampled(*rollouts: Rollout) -> Sampled:
    statistics = GroupStatistics(len(rollouts), 0, 3 * len(rollouts), 0, 0, 0, 1, {"generation": 1.0})
    return Sampled(rollouts=list(rollouts), statistics=statistics)


def draw_problems(problems: Sequence[Problem], run_seed: int, iteration: int, count: int) -> list[Problem]:
    return [problems[index] for index in draw_indices(len(problems), run_seed, iteration, count)]
