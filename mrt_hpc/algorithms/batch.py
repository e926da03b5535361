"""All rollouts of one iteration, and the training sequences made from them."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mrt_hpc.mrt.rewards import normalised_rewards
from mrt_hpc.run.records import Branch, FinishReason, GroupStatistics, Rollout
from mrt_hpc.training.settings import TrainingSequence

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Group


LEAST_ADVANTAGE = 1e-6
"""Smaller ones are rounding: of equal rewards less their mean."""


@dataclass(frozen=True)
class Batch:
    rollouts: list[Rollout]
    values: list[dict[int, float]]
    """Of each rollout's estimated boundaries, by boundary."""
    costs: list[GroupStatistics]
    digest: str
    """SHA-256 over the digests of the groups."""
    progress_variances: NDArray[np.float64]
    """Of all progress values; NaN where the branches give no estimate of it."""
    branches: list[Branch]
    """Of all boundaries, in no particular order."""
    question_ids: Callable[[], Sequence[int]] = list
    """The prover's text before each branch, as the policy's tokens."""
    penalties: NDArray[np.float64] | None = None
    """[B] what ``training.overlong`` takes from the rewards."""
    masks_cut: bool = False
    """Whether traces that the token limit cut are left out of the loss."""
    unjudged: int = 0
    """Rollouts that are left out."""
    part_weights: tuple[float, ...] = ()
    """Of rewards that are normalised before their sum; else empty."""

    @property
    def reward_mean(self) -> float:
        """Without rollouts that were forced to answer: these measure a prefix."""
        return float(np.mean([r.reward for r in self.rollouts if not r.forced]))

    @property
    def rewards(self) -> NDArray[np.float64]:
        """[B] the outcome reward of each rollout, or the sum of several that are normalised first; less its penalty."""
        outcomes = self._outcomes
        return outcomes if self.penalties is None else outcomes - self.penalties

    @property
    def _outcomes(self) -> NDArray[np.float64]:
        if self.part_weights:
            nothing = [0.0] * len(self.part_weights)  # of a rollout that no part has judged, as it has no answer
            parts = np.array([r.reward_parts or nothing for r in self.rollouts], dtype=np.float64)
            return normalised_rewards(parts, self.part_weights, self.problem_ids)
        return np.array([r.reward for r in self.rollouts], dtype=np.float64)

    @property
    def right(self) -> NDArray[np.bool_]:
        """[B] whether the answer of each rollout is right, whatever its penalty is."""
        return np.array([r.right for r in self.rollouts])

    @property
    def problem_ids(self) -> list[str]:
        """[B] the problem of each rollout, by which rollouts are compared."""
        return [r.problem_id for r in self.rollouts]

    @property
    def lengths(self) -> list[int]:
        """[B] tokens of each rollout."""
        return [r.tokens for r in self.rollouts]

    @property
    def credit_bounds(self) -> list[list[int]]:
        """[k + 1] of each rollout, the token offsets between which its episodes are credited."""
        return [r.credited for r in self.rollouts]

    @property
    def value_arrays(self) -> list[NDArray[np.float64]]:
        """[k + 1] of each rollout, V_0 .. V_k; empty where not all were estimated."""
        return [
            np.array([values[j] for j in range(len(r.boundaries))]) if len(values) == len(r.boundaries) else np.zeros(0)
            for r, values in zip(self.rollouts, self.values, strict=True)
        ]


@dataclass(frozen=True)
class Learnt:
    sequences: list[TrainingSequence]
    """Of the rollouts, or the given samples."""
    branches: list[TrainingSequence] = field(default_factory=list)
    """Of the branches, where these are also learnt."""
    dropped_branches: int = 0
    """Those that should be learnt but cannot be."""
    digest: str = ""
    """The identity of the training data; the trainer writes it here."""
    batch: Batch | None = None
    """The rollouts that the sequences were made from; the trainer writes it here. None where samples are learnt."""

    @property
    def groups_with_signal(self) -> set[str]:
        """The groups with an advantage that is not 0, but for rounding."""
        sequences = [*self.sequences, *self.branches]
        return {s.group for s in sequences if np.any(np.abs(s.advantages[s.mask]) > LEAST_ADVANTAGE)}


def batch_of(
    groups: "Sequence[Group]", question_ids: Callable[[], Sequence[int]] = list, weights: tuple[float, ...] = ()
) -> Batch:
    """Of the judged rollouts, in an order that does not depend on the task that sampled each group."""
    every = sorted((r for g in groups for r in g.rollouts), key=lambda r: (r.problem_id, r.sample))
    rollouts = [r for r in every if r.judged]
    values: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for value in (v for g in groups for v in g.values):
        values[value.problem_id, value.sample][value.boundary] = value.value
    ours = [values[r.problem_id, r.sample] for r in rollouts]
    noise = np.array([v.progress_variance for g in groups for v in g.values if v.boundary > 0])
    digest = batch_digest(g.digest for g in groups)
    learnt = {(r.problem_id, r.sample) for r in rollouts}
    branches = [b for g in groups for b in g.branches if b.judged and (b.problem_id, b.sample) in learnt]
    costs = [g.statistics for g in groups]
    batch = Batch(rollouts, ours, costs, digest, noise, branches, question_ids)
    return replace(batch, unjudged=len(every) - len(rollouts), part_weights=weights)


def batch_digest(digests: Iterable[str]) -> str:
    """From the digests of its groups in any order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def rollout_sequences(batch: Batch, advantages: Sequence[NDArray[np.float64]]) -> list[TrainingSequence]:
    """The sequence of every rollout. ``advantages``: B arrays [T_i]."""
    sequences = [sampled_sequence(r, r.prompt_ids, a) for r, a in zip(batch.rollouts, advantages, strict=True)]
    if not batch.masks_cut:
        return sequences
    cut = [r.finish_reason is FinishReason.LENGTH for r in batch.rollouts]
    return [replace(s, mask=s.mask & (not out)) for s, out in zip(sequences, cut, strict=True)]


def sampled_sequence(
    sampled: Rollout | Branch, context: Sequence[int], advantages: NDArray[np.float64]
) -> TrainingSequence:
    """All T tokens that were sampled after ``context``. ``advantages``: [T]."""
    return TrainingSequence(
        prompt_ids=context,
        token_ids=sampled.token_ids,
        advantages=advantages.astype(np.float32),
        behaviour_logprobs=np.asarray(sampled.logprobs, dtype=np.float32),
        mask=np.ones(len(sampled.token_ids), dtype=bool),
        group=sampled.problem_id,
    )
