"""Values, progress and advantages against numbers worked out by hand; those of the paper's offline form with what the
value of the prefix may not change.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import rollout

from mrt_hpc.mrt.grpo import leave_one_out, outcome_advantages
from mrt_hpc.mrt.mrt import (
    Baseline,
    Bonus,
    PrefixGroup,
    answer_advantages,
    continued_advantages,
    draw_boundary,
    stop_advantages,
)
from mrt_hpc.mrt.mrt_online import branch_advantages, outcome_token_advantages, token_advantages
from mrt_hpc.mrt.progress import normalise, per_token, progress
from mrt_hpc.run.records import Rollout


def test_progress_is_the_change_of_value_spread_over_the_tokens_of_its_episode() -> None:
    assert progress(np.array([0.25, 0.75, 0.5])).tolist() == [0.5, -0.25]
    assert per_token(np.array([0.5, -0.25]), [0, 2, 3], 5).tolist() == [0.5, 0.5, -0.25, 0.0, 0.0], "none in the answer"
    for boundaries in ([0, 2, 3], [0, 9]):
        with pytest.raises(ValueError, match="do not match"):
            per_token(np.array([0.5]), boundaries, 5)


def test_progress_is_normalised_over_all_episodes_of_the_batch() -> None:
    # values -1, 0, 1: mean 0, standard deviation sqrt(2/3)
    normalised = normalise([np.array([-1.0, 0.0]), np.array([1.0])])
    assert np.concatenate(normalised) == pytest.approx([-(1.5**0.5), 0.0, 1.5**0.5])
    assert normalise([np.full(3, 0.1)])[0].tolist() == [0.0] * 3  # whose mean rounds to another number


def test_outcome_advantages_compare_within_the_group() -> None:
    rewards = np.array([1.0, 0.0, 1.0, 1.0])
    # group a: 1, 1 -> mean 1; group b: 0, 1 -> mean 1/2
    assert outcome_advantages(rewards, ["a", "b", "a", "b"], divide_by_std=False).tolist() == [0, -0.5, 0, 0.5]
    # mean 1/4, standard deviation sqrt(3)/4
    divided = outcome_advantages(np.array([1.0, 0.0, 0.0, 0.0]), ["a"] * 4, divide_by_std=True)
    assert divided == pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)], rel=1e-5)
    # the others of a right branch: 0, 0, 1 -> mean 1/3; of a wrong one: 1, 0, 1 -> mean 2/3
    assert branch_advantages(np.array([1.0, 0.0, 0.0, 1.0])) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.0, 0.0], [1.0], []])
def test_those_that_are_all_alike_tell_nothing(rewards: list[float]) -> None:
    assert leave_one_out(np.array(rewards)).tolist() == [0.0] * len(rewards)


def test_leaving_one_out_leaves_the_gradient_unbiased() -> None:
    # An answer that is right with probability p = 1/4: the gradient of p by its logit is p (1 - p) = 3/16.
    rewards = (np.random.default_rng(0).random((200_000, 2)) < 0.25).astype(float)
    scores = rewards - 0.25  # d log pi / d logit
    estimates = np.mean([branch_advantages(r) * s for r, s in zip(rewards, scores, strict=True)], axis=1)
    error = estimates.std() / len(estimates) ** 0.5
    assert estimates.mean() == pytest.approx(3 / 16, abs=4 * error)


def trace(reward: float, tokens: int, boundaries: list[int]) -> Rollout:
    return replace(rollout("p", 0, reward=reward), token_ids=[0] * tokens, boundaries=boundaries)


TRACES = [trace(1.0, 5, [0, 2, 4]), trace(0.0, 3, [0, 3])]  # the second was cut by the limit: no answer tokens
VALUES = [np.array([0.0, 0.5, 1.0]), np.array([0.5, 0.25])]


def test_mrt_online_adds_progress_to_the_outcome_of_each_episode_and_alpha_zero_is_grpo() -> None:
    first, second = token_advantages(TRACES, VALUES, alpha=2.0, divide_by_std=False, normalise_progress=False)
    # outcome +-0.5; progress 0.5, 0.5 and -0.25, times two; the answer token gets the outcome only
    assert first.tolist() == [1.5, 1.5, 1.5, 1.5, 0.5]
    assert second.tolist() == [-1.0, -1.0, -1.0]
    mrt = token_advantages(TRACES, VALUES, alpha=0.0, divide_by_std=True, normalise_progress=False)
    for a, b in zip(mrt, outcome_token_advantages(TRACES, divide_by_std=True), strict=True):
        assert a == pytest.approx(b)


def test_the_update_of_an_episode_may_oppose_the_gradient_of_the_sum_of_progress() -> None:
    """Two modes, one as likely as the other (logit 0): values 0, 0.6, 0.6 and 0, 0.1, 1.0, each right as often as its
    last value says. For the logit of the first mode, with p (1 - p) = 1/4 and alpha 1:

    - E[r] has the gradient (0.6 - 1.0) / 4, and E[r + sum of progress], which is E[r + V_2 - V_0], (1.2 - 2.0) / 4;
    - the update credits the choice with the first episode's progress alone: (0.6 + 0.6 - (1.0 + 0.1)) / 4.
    """
    modes = (([0.0, 0.6, 0.6], 3), ([0.0, 0.1, 1.0], 5))
    traces = [trace(float(n < right), 2, [0, 1, 2]) for _, right in modes for n in range(5)]
    values = [np.array(of_mode) for of_mode, _ in modes for _ in range(5)]
    scores = np.repeat([0.5, -0.5], 5)  # d log pi / d logit of the choice, which the first token makes

    def gradient(alpha: float) -> float:
        found = token_advantages(traces, values, alpha=alpha, divide_by_std=False, normalise_progress=False)
        return float(np.mean([score * advantages[0] for score, advantages in zip(scores, found, strict=True)]))

    assert gradient(0.0) == pytest.approx((0.6 - 1.0) / 4)
    assert gradient(1.0) == pytest.approx((1.2 - 1.1) / 4)
    assert gradient(0.8) == pytest.approx(0.0), "there the sign changes; that of the sum is negative for every alpha"


# -- the offline form


GROUP = PrefixGroup(
    continued=np.array([1.0, 1.0, 0.0, 0.0]),
    terminated=np.array([1.0, 0.0, 0.0, 0.0]),
    next_values=np.array([1.0, 0.5, 0.25, 0.0]),
)


ALL_WRONG = PrefixGroup(np.zeros(2), np.array([1.0, 0.0]))


@pytest.mark.parametrize(
    ("group", "bonus", "baseline", "divide_by_std", "expected"),
    [
        # outcome +-0.5, V = 0.25: 0.5 + 2 * 0.75 and -0.5 - 2 * 0.25
        (GROUP, Bonus.END_OF_TRACE, Baseline.GROUP, False, [2.0, 2.0, -1.0, -1.0]),
        # progress 0.75, 0.25, 0, -0.25
        (GROUP, Bonus.NEXT_EPISODE, Baseline.GROUP, False, [2.0, 1.0, -0.5, -1.0]),
        # compared with stopping, alpha has no part
        *((GROUP, bonus, Baseline.TERMINATION, False, [0.75, 0.75, -0.25, -0.25]) for bonus in Bonus),
        # the spread leaves the bonus as it is
        (GROUP, Bonus.END_OF_TRACE, Baseline.GROUP, True, [2.5, 2.5, -1.5, -1.5]),
        # what stopping would have brought is a signal where all went wrong
        (ALL_WRONG, Bonus.END_OF_TRACE, Baseline.GROUP, False, [-1.0, -1.0]),
    ],
)
def test_what_going_on_brought_by_hand(
    group: PrefixGroup, bonus: Bonus, baseline: Baseline, divide_by_std: bool, expected: list[float]
) -> None:
    got = continued_advantages(group, alpha=2.0, bonus=bonus, baseline=baseline, divide_by_std=divide_by_std)
    assert got == pytest.approx(expected, rel=1e-5)


def test_the_next_episode_needs_its_values() -> None:
    bonus, baseline, group = Bonus.NEXT_EPISODE, Baseline.GROUP, PrefixGroup(GROUP.continued, GROUP.terminated)
    with pytest.raises(ValueError, match="first new episode"):
        continued_advantages(group, alpha=2.0, bonus=bonus, baseline=baseline, divide_by_std=False)


def test_an_answer_is_left_out_of_its_own_baseline_and_the_choice_to_stop_compared_with_going_on() -> None:
    # the others' means are 0, 1/3, 1/3, 1/3
    assert answer_advantages(GROUP) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    assert answer_advantages(PrefixGroup(GROUP.continued, np.array([1.0]))).tolist() == [0.0]
    assert stop_advantages(GROUP).tolist() == [0.5, -0.5, -0.5, -0.5]


def test_boundaries_are_drawn_evenly_with_an_episode_left_to_add() -> None:
    drawn = [draw_boundary(4, 7, f"p{n}", 0) for n in range(4000)]
    assert set(drawn) == {0, 1, 2, 3}
    counts = np.bincount(drawn)
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(4000 * 0.25 * 0.75)
    assert draw_boundary(4, 7, "p0", 0) == drawn[0]
    assert len({draw_boundary(4, 7, "p0", i) for i in range(50)}) == 4


@pytest.mark.parametrize("bonus", list(Bonus))
@pytest.mark.parametrize("baseline", list(Baseline))
def test_a_shift_of_the_prefix_value_leaves_the_mean_gradient_unchanged(bonus: Bonus, baseline: Baseline) -> None:
    """A policy of two actions, of which the first is right: the score function has mean zero, so a constant that is
    added to every advantage vanishes from the mean gradient, whatever it does to single ones.
    """
    rng = np.random.default_rng(1)
    p, n = 0.3, 200_000
    actions = rng.random(n) < p
    score = np.where(actions, 1 - p, -p)  # d log pi / d logit
    rewards = actions.astype(float)
    gradients = []
    for value in (0.25, 0.75):
        group = PrefixGroup(rewards, np.array([value, value]), rewards * 0.8)
        advantages = continued_advantages(group, alpha=1.0, bonus=bonus, baseline=baseline, divide_by_std=False)
        gradients.append(advantages * score)
    difference = gradients[0] - gradients[1]
    assert difference.std() > 0  # single gradients do change
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(n)


def test_the_forced_stop_weighted_by_its_probability_has_the_gradient_of_the_choice() -> None:
    """Two choices at c_j: stop (probability p, success 0.2) or go on (0.7). d/dlogit of the expected reward is
    p (1 - p) (0.2 - 0.7), which the forced half gives as the mean of p * A * d log p, with d log p = 1 - p.
    """
    rng = np.random.default_rng(2)
    p, n = 0.1, 100_000
    group = PrefixGroup((rng.random(n) < 0.7).astype(float), (rng.random(n) < 0.2).astype(float))
    estimate = p * stop_advantages(group) * (1 - p)
    assert estimate.mean() == pytest.approx(p * (1 - p) * (0.2 - 0.7), abs=4 * estimate.std() / np.sqrt(n) * 2)
