"""Values, progress and advantages against numbers worked out by hand."""

from itertools import product

import numpy as np
import pytest

from mrt_hpc.algorithms.mrt import draw_boundary
from mrt_hpc.mrt.grpo import (
    Baseline,
    Normalise,
    WithoutOutcome,
    failed_groups,
    leave_one_out,
    outcome_advantages,
    outcome_token_advantages,
)
from mrt_hpc.mrt.length_penalty import overlong_penalties
from mrt_hpc.mrt.mrt import Bonus, PrefixGroup, answer_advantages, continued_advantages, stop_advantages
from mrt_hpc.mrt.mrt_online import branch_advantages, token_advantages, token_credits
from mrt_hpc.mrt.progress import Credit, progress, spread_over_tokens


def test_progress_is_the_change_of_value_spread_over_the_tokens_of_its_episode() -> None:
    assert progress(np.array([0.25, 0.75, 0.5])).tolist() == [0.5, -0.25]
    assert spread_over_tokens(np.array([0.5, -0.25]), [0, 2, 3], 5).tolist() == [0.5, 0.5, -0.25, 0.0, 0.0], (
        "none in the answer"
    )
    for boundaries in ([0, 2, 3], [0, 9]):
        with pytest.raises(ValueError, match="do not match"):
            spread_over_tokens(np.array([0.5]), boundaries, 5)


def test_outcome_advantages_compare_within_the_group() -> None:
    rewards = np.array([1.0, 0.0, 1.0, 1.0])
    # group a: 1, 1 -> mean 1; group b: 0, 1 -> mean 1/2
    assert outcome_advantages(rewards, ["a", "b", "a", "b"], baseline=Baseline.GROUP).tolist() == [0, -0.5, 0, 0.5]
    alone = outcome_advantages(rewards, ["a", "b", "a", "b"], baseline=Baseline.LEAVE_ONE_OUT)
    assert alone.tolist() == [0, -1, 0, 1]
    # mean 1/4, standard deviation sqrt(3)/4, whatever is left out, and however long a trace is
    for baseline in (Baseline.GROUP, Baseline.LEAVE_ONE_OUT):
        form = {"baseline": baseline, "normalise": Normalise.GROUP_STD}
        divided = outcome_token_advantages(np.array([1.0, 0.0, 0.0, 0.0]), ["a"] * 4, [1, 2, 30, 4], **form)
        assert [a[0] for a in divided] == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)], rel=1e-5)
    # the others of a right branch: 0, 0, 1 -> mean 1/3; of a wrong one: 1, 0, 1 -> mean 2/3
    assert branch_advantages(np.array([1.0, 0.0, 0.0, 1.0])) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.0, 0.0], [1.0], []])
def test_those_that_are_all_alike_tell_nothing(rewards: list[float]) -> None:
    assert leave_one_out(np.array(rewards)).tolist() == [0.0] * len(rewards)


REWARDS, GROUPS, LENGTHS = np.array([1.0, 0.0]), ["p", "p"], [6, 3]
BOUNDARIES, BOUNDS = [[0, 2, 4], [0, 3]], [[0, 3, 5], [0, 3]]  # the second was cut by the limit: no answer tokens
TRACES = (REWARDS, GROUPS, LENGTHS, BOUNDS)
VALUES = [np.array([0.0, 0.5, 1.0]), np.array([0.5, 0.25])]


def test_mrt_online_adds_progress_to_the_outcome_of_each_episode_and_alpha_zero_is_grpo() -> None:
    credits = token_credits(Credit.EPISODE, LENGTHS, BOUNDARIES, BOUNDS, VALUES)
    first, second = token_advantages(*TRACES, VALUES, credits, alpha=2.0, baseline=Baseline.GROUP)
    # outcome +-0.5; progress 0.5, 0.5 and -0.25, times two; the answer token gets the outcome only
    assert first.tolist() == [1.5, 1.5, 1.5, 1.5, 1.5, 0.5]
    assert second.tolist() == [-1.0, -1.0, -1.0]
    for baseline, normalise in product((Baseline.GROUP, Baseline.LEAVE_ONE_OUT), (Normalise.NONE, Normalise.GROUP_STD)):
        form = {"baseline": baseline, "normalise": normalise}
        mrt = token_advantages(*TRACES, VALUES, credits, alpha=0.0, **form)
        for a, b in zip(mrt, outcome_token_advantages(REWARDS, GROUPS, LENGTHS, **form), strict=True):
            assert a == pytest.approx(b)


def test_shaping_alone_counts_as_much_as_an_answer_unless_it_is_dropped_where_none_is_right() -> None:
    rewards, right = np.array([0.02, 0, 0, 0, 1, 0.02]), np.array([False] * 4 + [True, False])
    groups = ["failed"] * 4 + ["solved"] * 2
    failed = failed_groups(right, groups)
    assert failed.tolist() == [True] * 4 + [False] * 2
    form = {"baseline": Baseline.GROUP, "normalise": Normalise.GROUP_STD}
    kept = outcome_token_advantages(rewards, groups, [2] * 6, **form)
    dropped = outcome_token_advantages(rewards, groups, [2] * 6, dropped=failed, **form)
    assert [round(a[0], 2) for a in kept] == [1.73, -0.58, -0.58, -0.58, 1, -1], "0.02 is a whole deviation"
    assert [round(a[0], 2) for a in dropped] == [0, 0, 0, 0, 1, -1]


@pytest.mark.parametrize(
    ("rule", "wrong"), [("keep", [0.75, -0.75, -0.75]), ("progress_only", [1.0, 0, 0]), ("drop", [0, 0, 0])]
)
def test_progress_alone_or_nothing_is_learnt_where_no_answer_is_right(rule: str, wrong: list[float]) -> None:
    """The first trace is wrong, the second is right; both have one episode of one token, from V = .25 to .75."""
    values, dense = [np.array([0.25, 0.75])] * 2, [np.array([0.5, 0.0, 0.0])] * 2
    arguments = (np.array([0.0, 1.0]), ["a", "b"], [3, 3], [[0, 1]] * 2, values, dense)
    form = {"alpha": 2.0, "baseline": Baseline.PREFIX, "without_outcome": WithoutOutcome(rule)}
    first, second = token_advantages(*arguments, failed=np.array([True, False]), **form)
    assert first.tolist() == wrong
    assert second.tolist() == [1.75, 0.25, 0.25]


def test_the_reward_falls_by_one_half_over_the_last_tokens_before_the_limit() -> None:
    assert overlong_penalties(np.array([0, 80, 85, 90, 100]), 100, 20).tolist() == [0, 0, 0.125, 0.25, 0.5]


CONTINUED, TERMINATED = np.array([1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0])
GROUP = PrefixGroup(CONTINUED, TERMINATED, next_values=np.array([1.0, 0.5, 0.25, 0.0]))
ALL_WRONG = PrefixGroup(np.zeros(2), np.array([1.0, 0.0]))


def test_what_going_on_brought_by_hand() -> None:
    for group, bonus, baseline, normalise, expected in (
        # outcome +-0.5, V = 0.25: 0.5 + 2 * 0.75 and -0.5 - 2 * 0.25
        (GROUP, Bonus.END_OF_TRACE, Baseline.GROUP, Normalise.NONE, [2.0, 2.0, -1.0, -1.0]),
        # progress 0.75, 0.25, 0, -0.25
        (GROUP, Bonus.NEXT_EPISODE, Baseline.GROUP, Normalise.NONE, [2.0, 1.0, -0.5, -1.0]),
        # compared with stopping, alpha has no part
        *((GROUP, bonus, Baseline.PREFIX, Normalise.NONE, [0.75, 0.75, -0.25, -0.25]) for bonus in Bonus),
        # the spread leaves the bonus as it is
        (GROUP, Bonus.END_OF_TRACE, Baseline.GROUP, Normalise.OUTCOME_GROUP_STD, [2.5, 2.5, -1.5, -1.5]),
        # the whole divided by the root of its mean square, sqrt(2.5)
        (GROUP, Bonus.END_OF_TRACE, Baseline.GROUP, Normalise.GROUP_STD, [1.26491, 1.26491, -0.632456, -0.632456]),
        # the others' means are 1/3, 1/3, 2/3, 2/3
        (GROUP, Bonus.END_OF_TRACE, Baseline.LEAVE_ONE_OUT, Normalise.NONE, [13 / 6, 13 / 6, -7 / 6, -7 / 6]),
        # what stopping would have brought is a signal where all went wrong
        (ALL_WRONG, Bonus.END_OF_TRACE, Baseline.GROUP, Normalise.NONE, [-1.0, -1.0]),
    ):
        got = continued_advantages(group, alpha=2.0, bonus=bonus, baseline=baseline, normalise=normalise)
        assert got == pytest.approx(expected, rel=1e-5)
    settings = {"bonus": Bonus.NEXT_EPISODE, "baseline": Baseline.GROUP, "normalise": Normalise.NONE}
    with pytest.raises(ValueError, match="first new episode"):
        continued_advantages(PrefixGroup(CONTINUED, TERMINATED), alpha=2.0, **settings)


def test_an_answer_is_left_out_of_its_own_baseline_and_the_choice_to_stop_compared_with_going_on() -> None:
    # the others' means are 0, 1/3, 1/3, 1/3
    assert answer_advantages(GROUP) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert answer_advantages(PrefixGroup(GROUP.continued, np.array([1.0]))).tolist() == [0.0]
    assert stop_advantages(GROUP).tolist() == [0.5, -0.5, -0.5, -0.5]


def test_boundaries_are_drawn_evenly_with_an_episode_left_to_add() -> None:
    drawn = [draw_boundary(4, 7, f"p{n}", 0) for n in range(4000)]
    counts = np.bincount(drawn)
    assert len(counts) == 4 and np.abs(counts - 1000).max() < 4 * np.sqrt(4000 * 0.25 * 0.75)
    assert draw_boundary(4, 7, "p0", 0) == drawn[0]
    assert len({draw_boundary(4, 7, "p0", i) for i in range(50)}) == 4
