"""What is learnt from the branches of a batch: which of them, after what, and with which advantage."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mrt_hpc.algorithms.batch import Batch
from mrt_hpc.algorithms.mrt_online import branch_sequences
from mrt_hpc.errors import UserError
from mrt_hpc.run.records import Branch, FinishReason, Rollout

FORCED = [90, 91]
ROLLOUT = Rollout(
    iteration=0,
    problem_id="p",
    sample=3,
    seed=0,
    weights_version=0,
    prompt_ids=[1, 2],
    forced=0,
    token_ids=[10, 11, 12, 13],
    logprobs=[-0.5] * 4,
    finish_reason=FinishReason.STOP,
    text="",
    answer=None,
    reward=0.0,
    boundaries=[0, 2, 3],
    started=0.0,
    seconds=0.0,
)


def branch(boundary: int, number: int, reward: float) -> Branch:
    return Branch(
        iteration=0,
        problem_id="p",
        sample=3,
        boundary=boundary,
        branch=number,
        seed=0,
        weights_version=0,
        token_ids=[50 + number, 60],
        logprobs=[-1.0, -0.25 * number],
        finish_reason=FinishReason.STOP,
        text="",
        answer=None,
        reward=reward,
        known=False,
        look_ahead=0.0,
        prompt_tokens=len(ROLLOUT.prompt_ids) + ROLLOUT.boundaries[boundary] + len(FORCED),
        cached_tokens=None,
    )


def batch(*branches: Branch) -> Batch:
    return Batch([ROLLOUT], [{}], [], "", np.zeros(0), list(branches))


def test_a_branch_is_learnt_after_its_prefix_and_the_forced_text() -> None:
    mixed = [branch(1, 0, 1.0), branch(1, 1, 0.0)]
    right, wrong = branch_sequences(batch(*mixed), FORCED)[0]
    assert right.prompt_ids == wrong.prompt_ids == [1, 2, 10, 11, 90, 91]
    assert (right.token_ids, wrong.token_ids) == ([50, 60], [51, 60])
    assert (right.advantages.tolist(), wrong.advantages.tolist()) == ([1.0, 1.0], [-1.0, -1.0])
    assert wrong.behaviour_logprobs.tolist() == [-1.0, -0.25]
    assert right.mask.all()
    assert right.group == "p"


def test_branches_that_agree_count_in_the_divisor_and_have_no_signal() -> None:
    agreeing = [branch(0, 0, 0.0), branch(0, 1, 0.0), branch(2, 0, 1.0), branch(2, 1, 1.0)]
    mixed = [branch(1, 0, 1.0), branch(1, 1, 0.0)]
    sequences = branch_sequences(batch(*agreeing, *mixed), FORCED)[0]
    assert [s.has_signal for s in sequences] == [False, False, True, True, False, False]
    assert sum(s.trained_tokens for s in sequences) == 12, "as traces without a signal do"


def test_branches_that_were_sampled_after_another_text_are_refused() -> None:
    other = [dataclasses.replace(branch(1, n, float(n)), prompt_tokens=7) for n in range(2)]
    with pytest.raises(UserError, match="forced text") as refusal:
        branch_sequences(batch(*other), FORCED)
    assert "6 tokens" in str(refusal.value)
    assert "boundary 1" in str(refusal.value)


def test_a_boundary_that_cannot_be_used_is_dropped_and_counted_and_the_others_are_learnt() -> None:
    """A committed group is met again at every restart: it must not stop a run."""
    odd = dataclasses.replace(branch(1, 1, 0.0), prompt_tokens=13)
    found, dropped = branch_sequences(batch(branch(1, 0, 1.0), odd, branch(2, 0, 1.0), branch(2, 1, 0.0)), FORCED)
    assert dropped == 2
    assert [s.prompt_ids for s in found] == [[1, 2, 10, 11, 12, 90, 91]] * 2
