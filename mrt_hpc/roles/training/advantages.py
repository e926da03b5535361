"""From groups to what the trainer learns from: advantages by the recipe's algorithm."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from mrt_hpc.errors import UserError
from mrt_hpc.mrt.length_penalty import penalised_rewards
from mrt_hpc.mrt.mrt import (
    Baseline,
    Bonus,
    PrefixGroup,
    answer_advantages,
    continued_advantages,
    stop_advantages,
)
from mrt_hpc.mrt.mrt_online import ScoredTrace, branch_advantages, outcome_token_advantages, token_advantages
from mrt_hpc.recipe.algorithms import Grpo, LengthPenalty, Mrt, MrtOnline
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
    values: list[dict[int, float]]
    """For each rollout the values of its boundaries that were looked at, by boundary."""
    costs: list[GroupStatistics]
    digest: str
    """Identity of what is trained on: SHA-256 over the digests of the groups."""
    progress_variances: NDArray[np.float64]
    """Of all progress values; NaN where branches do not tell of it."""
    branches: list[Branch]
    """Of all boundaries, in no particular order."""

    @property
    def reward_mean(self) -> float:
        """Mean outcome reward of the rollouts that thought to their end: those forced to answer tell of a prefix."""
        return float(np.mean([r.reward for r in self.rollouts if not r.forced]))

    @property
    def value_arrays(self) -> list[NDArray[np.float64]]:
        """For each rollout [k + 1] V_0 .. V_k; empty where they were not all looked at."""
        return [
            np.array([values[j] for j in range(len(r.boundaries))]) if len(values) == len(r.boundaries) else np.zeros(0)
            for r, values in zip(self.rollouts, self.values, strict=True)
        ]


def batch_of(groups: Sequence[Group]) -> Batch:
    """Join the groups of an iteration, in an order that does not depend on who sampled what."""
    rollouts = sorted((r for g in groups for r in g.rollouts), key=lambda r: (r.problem_id, r.sample))
    values: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for value in (v for g in groups for v in g.values):
        values[value.problem_id, value.sample][value.boundary] = value.value
    ours = [values[r.problem_id, r.sample] for r in rollouts]
    noise = np.array([v.progress_variance for g in groups for v in g.values if v.boundary > 0])
    digest = batch_digest(g.digest for g in groups)
    return Batch(rollouts, ours, [g.statistics for g in groups], digest, noise, [b for g in groups for b in g.branches])


def batch_digest(digests: Iterable[str]) -> str:
    """The identity of a batch, from those of its groups in any order."""
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def training_sequences(batch: Batch, recipe: Recipe) -> list[TrainingSequence]:
    """Every rollout with the advantages of its tokens."""
    if isinstance(recipe.algorithm, Mrt):
        return _prefix_sequences(batch, recipe.algorithm)
    return [
        _sequence(rollout, advantages)
        for rollout, advantages in zip(batch.rollouts, batch_advantages(batch, recipe), strict=True)
    ]


def batch_advantages(batch: Batch, recipe: Recipe) -> list[NDArray[np.float64]]:
    """Advantages of whole traces by the recipe's algorithm: one array [T_i] a rollout."""
    algorithm = recipe.algorithm
    if isinstance(algorithm, MrtOnline):
        return token_advantages(
            _scored(batch, [r.reward for r in batch.rollouts]),
            alpha=algorithm.alpha,
            divide_by_std=algorithm.divide_by_std,
            normalise_progress=algorithm.normalise_progress,
        )
    assert isinstance(algorithm, Grpo | LengthPenalty)  # all others are learnt elsewhere
    return outcome_token_advantages(_scored(batch, _outcomes(batch, algorithm)), divide_by_std=algorithm.divide_by_std)


def _outcomes(batch: Batch, algorithm: Grpo | LengthPenalty) -> list[float]:
    rewards = np.array([r.reward for r in batch.rollouts])
    if isinstance(algorithm, LengthPenalty):
        lengths = np.array([float(len(r.token_ids)) for r in batch.rollouts])
        groups = [r.problem_id for r in batch.rollouts]
        rewards = penalised_rewards(rewards, lengths, groups, coefficient=algorithm.coefficient)
    return rewards.tolist()


def _scored(batch: Batch, rewards: Sequence[float]) -> list[ScoredTrace]:
    return [
        ScoredTrace(r.problem_id, reward, len(r.token_ids), r.boundaries, values)
        for r, reward, values in zip(batch.rollouts, rewards, batch.value_arrays, strict=True)
    ]


def _sequence(rollout: Rollout, advantages: NDArray[np.float64]) -> TrainingSequence:
    return _sampled(rollout, rollout.prompt_ids, advantages)


def _sampled(sampled: Rollout | Branch, context: Sequence[int], advantages: NDArray[np.float64]) -> TrainingSequence:
    """All tokens that were sampled after a context."""
    return TrainingSequence(
        prompt_ids=context,
        token_ids=sampled.token_ids,
        advantages=advantages.astype(np.float32),
        behaviour_logprobs=np.asarray(sampled.logprobs, dtype=np.float32),
        mask=np.ones(len(sampled.token_ids), dtype=bool),
        group=sampled.problem_id,
    )


# -- from the branches ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LearntBranches:
    """What is learnt from the branches of a batch."""

    sequences: list[TrainingSequence]
    dropped: int
    """Branches that cannot be learnt from, as they were not sampled after the recipe's forced text."""


def branch_sequences(batch: Batch, forced_ids: Sequence[int]) -> LearntBranches:
    """The branches of every boundary, each against the others there.

    Where all of a boundary's branches are right or all are wrong they have advantage 0: like traces without a signal
    they count in the loss's divisor, and are not computed.

    Args:
        batch: with the branches of the policy itself.
        forced_ids: the prover's text, which they were sampled after.

    Raises:
        UserError: none of the branches was sampled after that text.
    """
    rollouts = {(r.problem_id, r.sample): r for r in batch.rollouts}
    ordered = sorted(batch.branches, key=lambda b: (b.problem_id, b.sample, b.boundary, b.branch))
    sequences: list[TrainingSequence] = []
    dropped: list[Branch] = []
    for (problem, sample, boundary), members in groupby(ordered, key=lambda b: (b.problem_id, b.sample, b.boundary)):
        branches, rollout = list(members), rollouts[problem, sample]
        context = [*rollout.prompt_ids, *rollout.prefix(boundary), *forced_ids]
        if any(b.prompt_tokens != len(context) for b in branches):
            dropped += branches  # the others of the boundary would have nothing to be compared with
            continue
        advantages = branch_advantages(np.array([b.reward for b in branches]))
        sequences += [
            _sampled(b, context, np.full(len(b.token_ids), a)) for b, a in zip(branches, advantages, strict=True)
        ]
    if dropped and not sequences:
        raise _other_text(dropped[0], rollouts, forced_ids)
    return LearntBranches(sequences, len(dropped))


def _other_text(branch: Branch, rollouts: dict[tuple[str, int], Rollout], forced_ids: Sequence[int]) -> UserError:
    rollout = rollouts[branch.problem_id, branch.sample]
    expected = len(rollout.prompt_ids) + rollout.boundaries[branch.boundary] + len(forced_ids)
    return UserError(
        "no branch was sampled after the recipe's forced text",
        value=f"{branch.prompt_tokens} tokens",
        where=f"problem {branch.problem_id}, sample {branch.sample}, boundary {branch.boundary}",
        expected=f"{expected} tokens: prompt, prefix and forced text",
        advice="train with the recipe and the tokenizer that these groups were sampled with",
    )


# -- from the prefix of a stale trace ---------------------------------------------------------------------------------


def _prefix_sequences(batch: Batch, algorithm: Mrt) -> list[TrainingSequence]:
    """Of each group the rollouts that went on; and those that were forced to answer, where these are trained."""
    by_problem: dict[str, list[tuple[Rollout, dict[int, float]]]] = defaultdict(list)
    for rollout, values in zip(batch.rollouts, batch.values, strict=True):
        by_problem[rollout.problem_id].append((rollout, values))
    return [s for members in by_problem.values() for s in _group_sequences(members, algorithm)]


def _group_sequences(members: list[tuple[Rollout, dict[int, float]]], algorithm: Mrt) -> list[TrainingSequence]:
    continued = [(r, values) for r, values in members if not r.forced]
    terminated = [r for r, _ in members if r.forced]
    group = _prefix_group(continued, terminated, algorithm)
    advantages = continued_advantages(
        group,
        alpha=algorithm.alpha,
        bonus=Bonus(algorithm.bonus),
        baseline=Baseline(algorithm.baseline),
        divide_by_std=algorithm.divide_by_std,
    )
    sequences = [_sequence(r, np.full(len(r.token_ids), a)) for (r, _), a in zip(continued, advantages, strict=True)]
    if algorithm.train_terminated:
        stops, answers = stop_advantages(group), answer_advantages(group)
        sequences += [_stopped(r, s, a) for r, s, a in zip(terminated, stops, answers, strict=True)]
    return sequences


def _prefix_group(
    continued: list[tuple[Rollout, dict[int, float]]], terminated: list[Rollout], algorithm: Mrt
) -> PrefixGroup:
    stopped = np.array([r.reward for r in terminated])
    reached = None
    if Bonus(algorithm.bonus) is Bonus.NEXT_EPISODE:
        # Boundary 1 ends the first new episode; who closed the thought at once has none, and stays where it was.
        reached = np.array([values.get(1, float(stopped.mean())) for _, values in continued])
    return PrefixGroup(np.array([r.reward for r, _ in continued]), stopped, reached)


def _stopped(rollout: Rollout, stop: float, answer: float) -> TrainingSequence:
    """A rollout that was forced to answer: the choice to stop and the answer are learnt, the text between is context.

    The forced text begins with the closing tag (the recipe sees to that), whose first token is the choice. That was
    written with probability one, so its behaviour log-probability is 0, and the trainer's importance weight is the
    policy's own probability of stopping.
    """
    forced = rollout.prompt_ids[len(rollout.prompt_ids) - rollout.forced :]
    sampled = len(rollout.token_ids)
    advantages = np.concatenate([np.full(rollout.forced, stop), np.full(sampled, answer)])
    mask = np.ones(rollout.forced + sampled, dtype=bool)
    mask[1 : rollout.forced] = False
    return TrainingSequence(
        prompt_ids=rollout.prompt_ids[: len(rollout.prompt_ids) - rollout.forced],
        token_ids=[*forced, *rollout.token_ids],
        advantages=advantages.astype(np.float32),
        behaviour_logprobs=np.asarray([*[0.0] * rollout.forced, *rollout.logprobs], dtype=np.float32),
        mask=mask,
        group=rollout.problem_id,
    )
