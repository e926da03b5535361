"""Estimators of a prefix's value: by hand, and over many draws against the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mrt_hpc.mrt import values
from mrt_hpc.mrt.planner import draw_counts, expected_branches
from mrt_hpc.mrt.values import KnownAnswer, likelihood, monte_carlo, rao_blackwell, variance_of_progress


def test_monte_carlo_is_the_mean_reward_and_likelihood_adds_up_the_right_answers() -> None:
    # one of four right: sample variance 0.25, so the mean's is 0.25 / 4
    estimate = monte_carlo([1, 0, 0, 0])
    assert (estimate.value, estimate.variance) == (0.25, pytest.approx(0.0625))
    assert math.isnan(monte_carlo([1.0]).variance), "one branch shows nothing of its spread"
    estimate = likelihood([KnownAnswer(0.5, 1.0), KnownAnswer(0.2, 1.0), KnownAnswer(0.25, 0.0)])
    assert (estimate.value, estimate.variance) == (pytest.approx(0.7), 0.0)
    for nothing in (monte_carlo, values.majority):
        with pytest.raises(ValueError, match="at least one branch"):
            nothing([])


def test_rao_blackwell_by_hand() -> None:
    # S holds 0.6 of the mass, of which 0.5 is right. Two of four branches fall outside, one of them right.
    # 0.5 + 0.25 * 0.4 + ((1 - 0.25) + (0 - 0.25)) / 4 = 0.5 + 0.1 + 0.125
    known = [KnownAnswer(0.5, 1.0), KnownAnswer(0.1, 0.0)]
    estimate = rao_blackwell(known, [None, 1.0, 0.0, None], baseline=0.25)
    assert estimate.value == pytest.approx(0.725)
    # terms 0, 0.75, -0.25, 0: squares 0.625, mean 0.125, variance (0.625 - 4 * 0.015625) / 3 / 4
    assert estimate.variance == pytest.approx((0.625 - 0.0625) / 12)
    whole = rao_blackwell([KnownAnswer(0.75, 1.0), KnownAnswer(0.25, 0.0)], [None] * 4, baseline=0.5)
    assert (whole.value, whole.variance) == (pytest.approx(0.75), 0.0), "all of the mass is known"
    assert rao_blackwell([KnownAnswer(0.9995, 1.0)], [], baseline=0.0).value == pytest.approx(0.9995)
    with pytest.raises(ValueError, match=r"0\.5 of the probability mass is unknown"):
        rao_blackwell([KnownAnswer(0.5, 1.0)], [], baseline=0.0)


ANSWERS = np.array([0.4, 0.2, 0.15, 0.15, 0.1])
"""mu's probability of five answers, of which the first and the fourth are right: V = 0.55."""
REWARDS = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
KNOWN = [KnownAnswer(ANSWERS[i], REWARDS[i]) for i in (0, 1)]
TRUTH = float(ANSWERS @ REWARDS)


def test_rao_blackwell_is_unbiased_and_tells_its_variance() -> None:
    rng, baseline = np.random.default_rng(3), 0.3
    rewards = [None, None, *REWARDS[2:]]
    draws = rng.choice(5, (10_000, 4), p=ANSWERS)
    found = [rao_blackwell(KNOWN, [rewards[answer] for answer in four], baseline) for four in draws]
    values = np.array([e.value for e in found])
    assert abs(values.mean() - TRUTH) < 4 * values.std() / math.sqrt(len(values))
    assert np.mean([e.variance for e in found]) == pytest.approx(values.var(), rel=0.05)


def step(probabilities: list[float], forecasts: list[float], taken: int | None) -> values.BranchStep:
    return values.BranchStep(np.array(probabilities), np.array(forecasts), taken)


def test_looking_ahead_by_hand() -> None:
    # E[h] = 0.5 * 1 + 0.25 * 0.5 = 0.625, and the token drawn promised 0.5; then E[h] = 0.75, and it promised nothing
    steps = [step([0.5, 0.25], [1.0, 0.5], 1), step([0.75], [1.0], None)]
    assert values.look_ahead(steps) == pytest.approx(0.625 - 0.5 + 0.75)
    assert values.look_ahead([]) == 0.0


def test_looking_ahead_is_unbiased_whatever_is_forecast() -> None:
    """Two tokens: the first of three, then right with a probability that depends on it. The third is not looked at."""
    rng = np.random.default_rng(6)
    first, then = np.array([0.5, 0.3, 0.2]), np.array([0.9, 0.2, 0.5])
    draws = rng.choice(3, 20_000, p=first)
    rewards = (rng.random(20_000) < then[draws]).astype(float)
    known = [step([0.5, 0.3], [0.3, 0.9], t if t < 2 else None) for t in range(3)]
    corrected = rewards + np.array([values.look_ahead([known[t]]) for t in draws])
    assert abs(corrected.mean() - first @ then) < 4 * corrected.std() / math.sqrt(len(draws))


def test_branches_go_where_the_spread_is_and_counts_have_the_expectations_they_were_drawn_for() -> None:
    spreads = np.array([0.0, 0.2, 0.4, 0.9])
    expected = expected_branches(spreads, budget=2.0, mean_spread=0.4, most=3.0)
    assert expected.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert expected_branches(spreads, budget=2.0, mean_spread=0.0, most=3.0).tolist() == [0.0] * 4
    rng, expected = np.random.default_rng(8), np.array([0.0, 0.3, 1.0, 2.75])
    counts = np.array([draw_counts(expected, rng.random(4)) for _ in range(4000)])
    assert (counts[:, 0].max(), set(counts[:, 3])) == (0, {2, 3})
    assert counts.mean(axis=0) == pytest.approx(expected, abs=4 * 0.5 / 63)


def test_the_majority_is_the_answer_of_greatest_weight() -> None:
    for votes, value in (
        ([("7", 1.0, 0.9), ("8", 0.0, 0.3), ("8", 0.0, 0.3)], 1.0),  # one vote of 0.9, or two of 0.3
        ([("7", 1.0, 0.5), ("8", 0.0, 0.3), ("8", 0.0, 0.3)], 0.0),
        ([("7", 1.0, 0.5), ("8", 0.0, 0.5)], 0.5),  # a tie of right and wrong
        ([(None, 0.0, 0.9), ("7", 1.0, 0.1)], 1.0),  # who answers nothing votes for nothing
        ([(None, 0.0, 0.9)], 0.0),
    ):
        assert values.majority([values.Vote(*vote) for vote in votes]).value == value, votes


def test_the_variance_of_progress_by_hand() -> None:
    # both values have variance (3 * 0.25) / 3 / 4 = 0.0625; one branch of four is right in both, another in one alone
    before, after = monte_carlo([1, 0, 0, 0]), monte_carlo([1, 1, 0, 0])
    assert after.variance == pytest.approx(1 / 12)
    # covariance of the pairs: (1 - 4 * 0.25 * 0.5) / 3 = 1 / 6, of their means a quarter of that
    assert variance_of_progress(before, after) == pytest.approx(0.0625 + 1 / 12 - 2 / 24)
    assert variance_of_progress(before, before) == pytest.approx(0.0)
    exact = likelihood([KnownAnswer(0.3, 1.0)])
    assert variance_of_progress(exact, before) == pytest.approx(0.0625)
    assert math.isnan(variance_of_progress(monte_carlo([1.0]), exact))


@pytest.mark.parametrize(("sizes", "common"), [((3, 6), True), ((5, 2), True), ((5, 2), False)])
def test_the_variance_of_progress_is_that_over_repeated_draws(sizes: tuple[int, int], common: bool) -> None:
    rng = np.random.default_rng(17)
    gains, told = [], []
    for _ in range(20_000):
        first, second = rng.random(sizes[0]), rng.random(sizes[1])
        if common:
            second[: min(sizes)] = first[: min(sizes)]
        before, after = monte_carlo(list((first < 0.4) * 1.0)), monte_carlo(list((second < 0.6) * 1.0))
        gains.append(after.value - before.value)
        told.append(variance_of_progress(before, after))
    # 0.4 * 0.6 for either branch, and 0.4 * (1 - 0.6) in common where the random numbers are
    shared = 0.16 * min(sizes) / (sizes[0] * sizes[1]) if common else 0.0
    truth = 0.24 / sizes[0] + 0.24 / sizes[1] - 2 * shared
    assert abs(np.mean(told) - truth) < 4 * np.std(told) / math.sqrt(len(told))
    assert np.var(gains) == pytest.approx(truth, rel=0.05)
