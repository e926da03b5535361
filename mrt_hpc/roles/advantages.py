"""From shards to what the trainer learns from: values from branches, advantages by the recipe's algorithm."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.mrt.mrt_online import ScoredTrace, outcome_token_advantages, token_advantages
from mrt_hpc.mrt.values import mean_rewards
from mrt_hpc.recipe.schema import MrtOnline
from mrt_hpc.training.batch import TrainingSequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from mrt_hpc.recipe.schema import Recipe
    from mrt_hpc.run.groups import Group
    from mrt_hpc.run.records import Branch, GroupStatistics, Rollout


@dataclass(frozen=True)
class Batch:
    """All rollouts of one iteration."""

    rollouts: list[Rollout]
    values: list[NDArray[np.float64]]
    """For each rollout [k + 1] V_0 .. V_k; empty where the algorithm asks for no branches."""
    costs: list[GroupStatistics]
    digest: str
    """Identity of what is trained on: SHA-256 over the digests of the groups."""

    @property
    def reward_mean(self) -> float:
        """Mean outcome reward."""
        return float(np.mean([r.reward for r in self.rollouts]))


def batch_of(groups: Sequence[Group]) -> Batch:
    """Join the groups of an iteration, in an order that does not depend on who sampled what."""
    rollouts = sorted((r for g in groups for r in g.rollouts), key=lambda r: (r.problem_id, r.sample))
    branches = branch_rewards([b for g in groups for b in g.branches])
    values = [trace_values(rollout, branches) for rollout in rollouts]
    return Batch(rollouts, values, [g.statistics for g in groups], batch_digest(g.digest for g in groups))


def batch_digest(digests: Iterable[str]) -> str:
    """The identity of a batch, from those of its groups in any order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


TraceKey = tuple[str, int]


def branch_rewards(branches: Sequence[Branch]) -> dict[TraceKey, dict[int, list[float]]]:
    """Rewards of the branches by trace, then by boundary."""
    rewards: dict[TraceKey, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for branch in branches:
        rewards[branch.problem_id, branch.sample][branch.boundary].append(branch.reward)
    return rewards


def trace_values(rollout: Rollout, rewards: dict[TraceKey, dict[int, list[float]]]) -> NDArray[np.float64]:
    """[k + 1] values of a trace's boundaries; empty when it has no branches."""
    mine = rewards.get((rollout.problem_id, rollout.sample))
    return np.zeros(0) if mine is None else mean_rewards(mine, len(rollout.boundaries))


def training_sequences(batch: Batch, recipe: Recipe) -> list[TrainingSequence]:
    """Every rollout with the advantages of its tokens."""
    return [
        TrainingSequence(
            prompt_ids=rollout.prompt_ids,
            token_ids=rollout.token_ids,
            advantages=advantages.astype(np.float32),
            behaviour_logprobs=np.asarray(rollout.logprobs, dtype=np.float32),
            mask=np.ones(len(rollout.token_ids), dtype=bool),
            group=rollout.problem_id,
        )
        for rollout, advantages in zip(batch.rollouts, batch_advantages(batch, recipe), strict=True)
    ]


def batch_advantages(batch: Batch, recipe: Recipe) -> list[NDArray[np.float64]]:
    """Advantages by the recipe's algorithm: one array [T_i] a rollout."""
    traces = [
        ScoredTrace(r.problem_id, r.reward, len(r.token_ids), r.boundaries, values)
        for r, values in zip(batch.rollouts, batch.values, strict=True)
    ]
    algorithm = recipe.algorithm
    if isinstance(algorithm, MrtOnline):
        return token_advantages(
            traces,
            alpha=algorithm.alpha,
            divide_by_std=algorithm.divide_by_std,
            normalise_progress=algorithm.normalise_progress,
        )
    return outcome_token_advantages(traces, divide_by_std=algorithm.divide_by_std)
