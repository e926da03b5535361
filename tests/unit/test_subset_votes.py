"""Votes of subsets against counts worked out by hand, and against all subsets."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.mrt.subset_votes import Ballot, ballot_of, expected_majority


def test_answers_are_counted_as_right_wrong_and_blank() -> None:
    answers = [("7", 1.0), ("7.0", 1.0), ("3", 0.0), ("3", 0.0), ("9", 0.0), (None, 0.0)]
    assert ballot_of(answers) == Ballot(right=2, wrong=(1, 2), blank=1)


@pytest.mark.parametrize(
    ("ballot", "size", "expected"),
    [
        (Ballot(1, (1,), 0), 1, 0.5),  # one of the two is drawn
        (Ballot(1, (1,), 0), 2, 0.5),  # one vote each: a tie, shared by two
        (Ballot(1, (1, 1), 0), 3, 1 / 3),  # a tie of three
        (Ballot(2, (1,), 0), 2, (1 + 0.5 + 0.5) / 3),  # {R, R}, {R, W} twice
        (Ballot(2, (2,), 0), 2, (1 + 4 * 0.5 + 0) / 6),  # {R, R}, four mixed pairs that tie, {W, W}
        (Ballot(1, (2,), 0), 3, 0.0),  # outvoted
        (Ballot(1, (), 2), 2, 2 / 3),  # two of three pairs have the right answer, {blank, blank} has none
        (Ballot(0, (1,), 1), 1, 0.0),
        (Ballot(2, (1, 1), 0), 4, 1.0),
    ],
)
def test_votes_by_hand(ballot: Ballot, size: int, expected: float) -> None:
    assert expected_majority(ballot, size) == pytest.approx(expected)


@given(st.lists(st.sampled_from(["right", "a", "b", "c", None]), min_size=1, max_size=7), st.data())
def test_votes_are_those_of_all_subsets(answers: list[str | None], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(answers)))
    ballot = ballot_of([(answer, float(answer == "right")) for answer in answers])
    subsets = [won(subset) for subset in combinations(answers, size)]
    assert expected_majority(ballot, size) == pytest.approx(sum(subsets) / len(subsets))


def won(subset: tuple[str | None, ...]) -> float:
    given_answers = [answer for answer in subset if answer is not None]
    most = max(map(given_answers.count, given_answers), default=0)
    winners = {answer for answer in given_answers if given_answers.count(answer) == most}
    return 1 / len(winners) if "right" in winners else 0.0


def test_many_answers_are_counted_too() -> None:
    """With 40 of 64 right against 24 that agree, the vote of all is right, and of one is right 40 times in 64."""
    ballot = Ballot(40, (24,), 0)
    assert expected_majority(ballot, 64) == pytest.approx(1.0)
    assert expected_majority(ballot, 1) == pytest.approx(40 / 64)
    assert expected_majority(ballot, 1) < expected_majority(ballot, 8) < expected_majority(ballot, 32) < 1


@pytest.mark.parametrize("size", [0, 3])
def test_more_voters_than_answers_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="cannot be drawn from 2 answers"):
        expected_majority(Ballot(1, (1,), 0), size)
