"""MRT-online: the outcome advantage plus alpha times the progress of each episode."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from mrt_hpc.algorithms.base import RolloutAlgorithm, check_one_temperature
from mrt_hpc.algorithms.batch import Batch, Learnt, rollout_sequences, sampled_sequence
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.mrt_online import branch_advantages, token_advantages
from mrt_hpc.plan.hours import boundaries_per_trace
from mrt_hpc.recipe.base import misfit
from mrt_hpc.recipe.kinds import ExpectedTokens
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.records import Branch, Rollout
from mrt_hpc.training.settings import TrainingSequence

LEARNT_BRANCHES = 1 / 3
"""Learnt branches: those whose boundary has both right and wrong ones."""


class MrtOnline(RolloutAlgorithm):
    """On-policy traces; each episode's tokens get the outcome advantage plus alpha times the episode's progress.

    Source: paper, Section 6.
    """

    needs_prover: ClassVar[bool] = True
    type: Literal["mrt_online"] = "mrt_online"
    alpha: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """The weight of progress against outcome."""
    divide_by_std: bool = True
    """Whether to divide the outcome advantage by the group's standard deviation."""
    normalise_progress: bool = False
    """Whether to centre and scale progress over the batch before it is weighted."""
    train_branches: bool = False
    """Whether to learn also from the branches, each compared with the others at its boundary, where some are right and
    some are wrong. This needs no more samples. Each branch is a sequence of its own for the trainer, which computes the
    prefix once with ``training.batching: shared``, and for each branch otherwise.
    """

    def learnt(self, batch: Batch) -> Learnt:
        advantages = token_advantages(
            batch.rewards,
            batch.problem_ids,
            batch.lengths,
            [r.boundaries for r in batch.rollouts],
            batch.value_arrays,
            alpha=self.alpha,
            divide_by_std=self.divide_by_std,
            normalise_progress=self.normalise_progress,
        )
        sequences = rollout_sequences(batch, advantages)
        if not self.train_branches:
            return Learnt(sequences)
        return Learnt(sequences, *branch_sequences(batch, batch.question_ids()))

    def check(self, recipe: Recipe) -> None:
        """Refuse a prover whose branches cannot be learnt, if they are to be."""
        if self.train_branches:
            _check_branches(recipe)

    def cost(self, recipe: Recipe, iteration: int) -> ExpectedTokens:
        """With learnt branches, each of which has half of a trace before it on average."""
        usual = super().cost(recipe, iteration)
        if not self.train_branches or recipe.prover is None:
            return usual
        branches = LEARNT_BRANCHES * boundaries_per_trace(recipe) * recipe.prover.branches_per_boundary
        return replace(usual, trained=usual.trained * (1 + branches / 2))


def _check_branches(recipe: Recipe) -> None:
    prover = recipe.prover
    if prover is None or not prover.rewards_each_branch:
        raise misfit(
            "prover.type",
            "forced_answer, boxed_answer or look_ahead with train_branches: an answer that is learnt has a reward of "
            "its own",
        )
    if prover.model is not None:
        raise misfit("prover.model", "null with train_branches: the answers of another model are not the policy's")
    if prover.branches_per_boundary < 2:
        raise misfit("prover.branches", "at least 2 with train_branches: each is compared with the others")
    if getattr(prover, "planner", "uniform") != "uniform":
        raise misfit(
            "prover.planner",
            "uniform with train_branches: where what was drawn first decides whether more is drawn, the others are no "
            "fair comparison",
        )
    check_one_temperature(recipe, "train_branches")


def branch_sequences(batch: Batch, question_ids: Sequence[int]) -> tuple[list[TrainingSequence], int]:
    """The sequences of the branches, each compared with the others at its boundary, and the number that were not
    sampled after the prover's text (``question_ids``), so that they cannot be learnt.

    Branches that are all right or all wrong have advantage 0: like traces without a signal they count in the loss's
    divisor, and are not computed.

    Raises:
        UserError: none of the branches was sampled after that text.
    """
    rollouts = {(r.problem_id, r.sample): r for r in batch.rollouts}
    ordered = sorted(batch.branches, key=lambda b: (b.problem_id, b.sample, b.boundary, b.branch))
    sequences: list[TrainingSequence] = []
    dropped: list[Branch] = []
    for (problem, sample, boundary), members in groupby(ordered, key=lambda b: (b.problem_id, b.sample, b.boundary)):
        branches, rollout = list(members), rollouts[problem, sample]
        context = [*rollout.prompt_ids, *rollout.prefix(boundary), *question_ids]
        if any(b.prompt_tokens != len(context) for b in branches):
            dropped += branches  # the other branches of the boundary would have no comparison
            continue
        advantages = branch_advantages(np.array([b.reward for b in branches]))
        sequences += [
            sampled_sequence(b, context, np.full(len(b.token_ids), a))
            for b, a in zip(branches, advantages, strict=True)
        ]
    if dropped and not sequences:
        raise _other_text(dropped[0], rollouts, question_ids)
    return sequences, len(dropped)


def _other_text(branch: Branch, rollouts: dict[tuple[str, int], Rollout], question_ids: Sequence[int]) -> UserError:
    rollout = rollouts[branch.problem_id, branch.sample]
    expected = len(rollout.prompt_ids) + rollout.boundaries[branch.boundary] + len(question_ids)
    return UserError(
        "no branch was sampled after the recipe's forced text",
        value=f"{branch.prompt_tokens} tokens",
        where=f"problem {branch.problem_id}, sample {branch.sample}, boundary {branch.boundary}",
        expected=f"{expected} tokens: prompt, prefix and forced text",
        advice="train with the recipe and the tokenizer that these groups were sampled with",
    )
