"""Votes of branches: answers that say the same vote together."""

from __future__ import annotations

import math

from mrt_hpc.inference.traces import BoundaryPlan
from mrt_hpc.provers.base import GradedBoundary
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.majority import MajorityVote
from mrt_hpc.roles.sampling.grading import pairs_to_compare, representatives
from mrt_hpc.run.records import Branch, FinishReason

REWARDS = {"1/2": 0.0, "0.5": 0.0, "3": 1.0, "3.0": 1.0, "7": 0.0}


def branch(answer: str | None, reward: float) -> Branch:
    return Branch(
        iteration=0, problem_id="p", sample=0, boundary=0, branch=0, seed=0, weights_version=0, token_ids=[1],
        logprobs=[math.log(0.5)], finish_reason=FinishReason.STOP, text="", answer=answer, reward=reward, known=False,
        look_ahead=0.0, prompt_tokens=1, cached_tokens=None,
    )  # fmt: skip


def vote(answers: list[str | None], same: dict[str, str]) -> float:
    branches = [branch(a, 0.0 if a is None else REWARDS[a]) for a in answers]
    prover = MajorityVote(Branches(None), len(answers))  # type: ignore[arg-type]  # nothing is asked
    return prover.estimate(GradedBoundary(BoundaryPlan(0, len(answers), 0.0), branches, [], same)).value


def test_only_wrong_answers_are_compared_by_the_grader() -> None:
    assert pairs_to_compare(set(REWARDS), REWARDS) == [("0.5", "1/2"), ("0.5", "7"), ("1/2", "7")]


def test_right_answers_and_equal_wrong_ones_have_one_that_stands_for_them() -> None:
    same = representatives(REWARDS, {("0.5", "1/2")})
    assert same == {"0.5": "0.5", "1/2": "0.5", "3": "3", "3.0": "3", "7": "7"}


def test_two_spellings_of_a_wrong_answer_outvote_a_right_one() -> None:
    same = representatives(REWARDS, {("0.5", "1/2")})
    answers: list[str | None] = ["1/2", "0.5", "3", None]
    assert vote(answers, same) == 0.0
    assert vote(answers, {}) == 0.5, "by their texts all three tie"


def test_two_spellings_of_the_right_answer_vote_together() -> None:
    assert vote(["3", "3.0", "7"], representatives(REWARDS, set())) == 1.0
