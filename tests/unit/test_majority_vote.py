"""Votes of k of n answers, against votes counted one by one; answers that say the same vote together."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import branch_with

from mrt_hpc.inference.traces import BoundaryPlan
from mrt_hpc.mrt.votes import AnswerCounts, cleaned_answer, majority_at_k
from mrt_hpc.provers.base import GradedBoundary
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.sampled_answers import MajorityVote
from mrt_hpc.roles.sampling.grading import pairs_to_compare, representatives

RIGHT = "right"


def counted(counts: AnswerCounts, k: int) -> float:
    """The mean outcome over all draws of k answers."""
    wrong = [f"w{i}" for i, size in enumerate(counts.wrong) for _ in range(size)]
    samples: list[str | None] = [RIGHT] * counts.right + wrong + [None] * counts.none
    return float(np.mean([outcome([s for s in draw if s is not None]) for draw in combinations(samples, k)]))


def outcome(votes: list[str]) -> float:
    most = max(Counter(votes).values(), default=0)
    winners = [answer for answer, count in Counter(votes).items() if count == most]
    return winners.count(RIGHT) / len(winners) if winners else 0.0


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 4), st.lists(st.integers(1, 3), max_size=3), st.integers(0, 3), st.data())
def test_the_formula_equals_counting_all_draws(right: int, wrong: list[int], none: int, data: st.DataObject) -> None:
    counts = AnswerCounts(right, tuple(wrong), none)
    if counts.total:
        k = data.draw(st.integers(1, counts.total))
        assert majority_at_k(counts, k) == pytest.approx(counted(counts, k), abs=1e-10)


def test_many_answers_do_not_overflow_and_more_voters_than_answers_are_refused() -> None:
    """600 right against 400 wrong of 1,000: a vote of 101 is nearly that of independent draws, 0.979."""
    few = majority_at_k(AnswerCounts(600, (400,)), 3)
    assert few == pytest.approx((600 * 599 * 598 + 3 * 600 * 599 * 400) / (1000 * 999 * 998), abs=1e-12)
    assert 0.979 < majority_at_k(AnswerCounts(600, (400,)), 101) < 0.99
    assert majority_at_k(AnswerCounts(600, (400,)), 1000) == pytest.approx(1.0, abs=1e-12)
    for k in (0, 1001):
        with pytest.raises(ValueError, match="maj@"):
            majority_at_k(AnswerCounts(600, (400,)), k)


def test_answers_are_counted_by_class() -> None:
    """``3`` and ``3.0`` are both right; ``1/2`` and ``1/2.`` are one class, and ``7`` and nothing are others; a grader
    may say which wrong answers are the same.
    """
    answers = [("3", 1.0), ("3.0", 1.0), ("1/2", 0.0), (" 1/2. ", 0.0), ("7", 0.0), (None, 0.0)]
    assert AnswerCounts.of(answers) == AnswerCounts(2, (2, 1), 1)
    wrong = [("1/2", 0.0), ("0.5", 0.0), ("7", 0.0)]
    assert AnswerCounts.of(wrong).wrong == (1, 1, 1)
    assert AnswerCounts.of(wrong, lambda answer: {"0.5": "1/2"}.get(answer, answer)).wrong == (2, 1)
    for answer, cleaned in (
        (r" \left( 1, 2 \right) ", "(1,2)"), (r"$\dfrac{1}{2}$.", r"\frac{1}{2}"), (r"10\,000", "10000"),
        (r"\leftarrow", r"\leftarrow"), ("A B", "AB"), ("x", "x"),
    ):  # fmt: skip
        assert cleaned_answer(answer) == cleaned


REWARDS = {"1/2": 0.0, "0.5": 0.0, "3": 1.0, "3.0": 1.0, "7": 0.0}


def vote(answers: list[str | None], same: dict[str, str]) -> float:
    branches = [branch_with([1], answer=answer, reward=REWARDS.get(str(answer), 0.0)) for answer in answers]
    prover = MajorityVote(Branches(None), len(answers))  # type: ignore[arg-type]  # nothing is asked
    return prover.estimate(GradedBoundary(BoundaryPlan(0, len(answers), 0.0), branches, [], same)).value


def test_spellings_of_one_answer_vote_together() -> None:
    """Only wrong answers are compared by the grader; by their texts all three tie."""
    assert pairs_to_compare(set(REWARDS), REWARDS) == [("0.5", "1/2"), ("0.5", "7"), ("1/2", "7")]
    same = representatives(REWARDS, {("0.5", "1/2")})
    assert same == {"0.5": "0.5", "1/2": "0.5", "3": "3", "3.0": "3", "7": "7"}
    assert vote(["1/2", "0.5", "3", None], same) == 0.0
    assert vote(["1/2", "0.5", "3", None], {}) == 0.5
    assert vote(["3", "3.0", "7"], representatives(REWARDS, set())) == 1.0
