"""MRT-online: the outcome advantage plus alpha times the credit of each episode, by default its progress."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mrt_hpc.algorithms.base import RolloutAlgorithm, check_one_temperature
from mrt_hpc.algorithms.batch import Batch, Learnt, rollout_sequences, sampled_sequence
from mrt_hpc.errors import UserError
from mrt_hpc.inference.tokens import digest_of_ids
from mrt_hpc.mrt.grpo import Baseline, Normalise, WithoutOutcome, failed_groups
from mrt_hpc.mrt.mrt_online import branch_advantages, token_advantages, token_credits
from mrt_hpc.mrt.progress import Credit
from mrt_hpc.plan.hours import boundaries_per_trace
from mrt_hpc.recipe.base import FormerValues, Tokens, misfit
from mrt_hpc.recipe.kinds import ExpectedTokens
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.records import Branch, Rollout
from mrt_hpc.run.seeds import derive_seed
from mrt_hpc.training.settings import TrainingSequence

LEARNT_BRANCHES = 1 / 3
"""Learnt branches: those whose boundary has both right and wrong ones."""


class MrtOnline(RolloutAlgorithm):
    """On-policy traces; each episode's tokens get the outcome advantage plus alpha times the episode's credit.

    Source: paper, Section 6.
    """

    needs_prover: ClassVar[bool] = True
    former_fields: ClassVar[Mapping[str, Any]] = {"normalise_progress": False}
    former_values: ClassVar[FormerValues] = {
        "divide_by_std": {True: {"baseline": "group", "normalise": "outcome_group_std"}, False: {"baseline": "group"}}
    }
    type: Literal["mrt_online"] = "mrt_online"
    alpha: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """The weight of the credit against the outcome: a progress of 1 counts as much as alpha right answers."""
    credit: Literal["episode", "to_go", "area", "constant", "permuted"] = "episode"
    """The quantity that alpha multiplies on the tokens of an episode: its own progress (the authors'), the progress
    from there to the end of the thought, or the area under the values from there to budget_tokens. constant (1) and
    permuted (the batch's progress in another order) are placebos.
    """
    budget_tokens: Tokens | None = None
    """The budget of the area, in sampled tokens of a trace."""
    baseline: Literal["group", "leave_one_out", "prefix"] = "leave_one_out"
    """The quantity with which a reward is compared: the mean of the group with the own reward in it, the mean of the
    others, or the value of the prefix before the episode.
    """
    normalise: Literal["none", "group_std", "batch_std", "outcome_group_std"] = "none"
    """The deviation that divides the advantages: that of the whole advantages of a group or of the batch; or, as in the
    authors' code, that of the group's rewards, which divides the outcome alone and so changes the weight of alpha.
    """
    without_outcome: Literal["keep", "progress_only", "drop"] = "keep"
    """Whether the traces of a group without a right answer are learnt with all of their advantage (keep), with the
    credit alone (progress_only), or not at all (drop). Branches are learnt in any case.
    """
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
            batch.credit_bounds,
            batch.value_arrays,
            self.token_credits(batch),
            alpha=self.alpha,
            baseline=Baseline(self.baseline),
            normalise=Normalise(self.normalise),
            failed=failed_groups(batch.right, batch.problem_ids),
            without_outcome=WithoutOutcome(self.without_outcome),
        )
        sequences = rollout_sequences(batch, advantages)
        if not self.train_branches:
            return Learnt(sequences)
        return Learnt(sequences, *branch_sequences(batch, batch.question_ids()))

    def token_credits(self, batch: Batch) -> list[NDArray[np.float64]]:
        """What alpha multiplies, of every token: B arrays [T_i]. A class of one's own may return another credit."""
        return token_credits(
            Credit(self.credit),
            batch.lengths,
            [r.boundaries for r in batch.rollouts],
            batch.credit_bounds,
            batch.value_arrays,
            budget=self.budget_tokens or 0,
            seed=derive_seed(0, "permuted", batch.digest),
        )

    def check(self, recipe: Recipe) -> None:
        """Refuse an area without a budget, and a prover whose branches cannot be learnt, if they are to be."""
        if (self.credit == "area") != (self.budget_tokens is not None):
            raise misfit("algorithm.budget_tokens", "a number of tokens with credit: area, and null with other credits")
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

    Branches that are all right or all wrong count in the loss's divisor, with advantage 0. UserError where none was
    sampled after that text.
    """
    rollouts = {(r.problem_id, r.sample): r for r in batch.rollouts}
    ordered = sorted(batch.branches, key=lambda b: (b.problem_id, b.sample, b.boundary, b.branch))
    sequences: list[TrainingSequence] = []
    dropped: list[Branch] = []
    prefixes: set[str] = set()
    for (problem, sample, boundary), members in groupby(ordered, key=lambda b: (b.problem_id, b.sample, b.boundary)):
        branches, rollout = list(members), rollouts[problem, sample]
        context = [*rollout.prompt_ids, *rollout.prefix(boundary), *question_ids]
        if (prefix := digest_of_ids(context)) in prefixes:  # rollouts with the same prefix share its branches
            continue
        prefixes.add(prefix)
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
