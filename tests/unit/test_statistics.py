"""Accuracies and intervals, against numbers worked out by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt_hpc.analysis.intervals import (
    clustered_mean,
    mean_interval,
    mean_of_shares,
    mean_paired_difference,
    paired_difference,
    pass_at_1,
    pass_at_k,
    ratio_interval,
    share_interval,
    t_quantile,
    wilson,
)
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.errors import UserError


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (4, 2, 2, 5 / 6),  # 1 - C(2,2)/C(4,2) = 1 - 1/6
        (4, 3, 2, 1.0),  # one wrong sample cannot fill two draws
        (10, 3, 5, 11 / 12),  # 1 - C(7,5)/C(10,5) = 1 - 21/252
        (5, 0, 3, 0.0),
        (5, 5, 1, 1.0),
    ],
)
def test_pass_at_k_by_hand(samples: int, correct: int, k: int, expected: float) -> None:
    assert pass_at_k(samples, correct, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_equals_counting_all_draws() -> None:
    for samples in range(1, 7):
        for correct in range(samples + 1):
            for k in range(1, samples + 1):
                draws = list(combinations([True] * correct + [False] * (samples - correct), k))
                assert pass_at_k(samples, correct, k) == pytest.approx(np.mean([any(draw) for draw in draws]))


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_impossible_counts_are_refused(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(samples, correct, k)


def test_pass_at_1_varies_over_problems_not_samples() -> None:
    """Means 1, 1/2, 0 and 1/2: mean 1/2, variance 1/6; with two problems more of variance 1/4 it is (3/6 + 2/4) / 5 =
    1/5, and 4 (1/4) / (1/5) = 5 draws of 0 or 1 are as uncertain: Wilson's interval of 2.5 in 5.
    """
    few, five = pass_at_1([[1, 1], [1, 0], [0, 0], [0, 1]]), wilson(2.5, 5)
    assert (few.mean, few.low, few.high) == pytest.approx((0.5, five.low, five.high))

    many = pass_at_1([[1, 1], [1, 0], [0, 0], [0, 1]] * 25)
    effective = 100 * 0.25 / ((12.5 + 0.5) / 101)  # squares of 100 * 1/8, and 2 * 1/4 more
    expected = wilson(effective / 2, effective)
    assert (many.mean, many.low, many.high) == pytest.approx((0.5, expected.low, expected.high))


def test_the_effective_number_of_problems_by_hand() -> None:
    """Values 0, 0, 0 and 0.4: mean 0.1, squares 0.12. Wilson's centre is (0.4 + 1.9207) / (4 + 3.8415) = 0.29595, so
    that 2 * 0.29595 * 0.70405 = 0.41673 is added: variance 0.53673 / 5, and 4 * 0.09 / 0.107346 = 3.3536 draws.
    """
    found, expected = share_interval(np.array([0.0, 0.0, 0.0, 0.4])), wilson(0.33536, 3.3536)
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, expected.low, expected.high), abs=1e-4)


def test_the_effective_number_of_problems_is_no_less_than_half_of_them() -> None:
    """Nearly all of the spread of thirty values of which one is not quite 0 is that of the two that are added."""
    nearly = share_interval(np.array([*[0.0] * 29, 1e-6]))
    assert nearly.high == pytest.approx(wilson(0, 15).high, abs=1e-6)
    assert share_interval(np.array([0.3] * 9 + [0.3 + 1e-12])).high == pytest.approx(wilson(3, 10).high)


def test_a_mean_of_shares_is_that_of_its_problems() -> None:
    assert mean_of_shares({"a": 0.0, "b": 0.4}) == share_interval(np.array([0.0, 0.4]))


def test_a_ratio_of_sums_weighs_problems_by_what_is_below_the_line() -> None:
    """(1 + 3) / (1 + 3) = 1, deviations of 0; (2 + 2) / (1 + 3) = 1, deviations of 1 and -1."""
    assert ratio_interval(np.array([1.0, 3.0]), np.array([1.0, 3.0])).low == pytest.approx(1.0)
    found = ratio_interval(np.array([2.0, 2.0]), np.array([1.0, 3.0]))
    half = 12.7062 * math.sqrt(2 * 2) / 4  # t(1)
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, 1 - half, 1 + half), abs=1e-4)


def test_a_ratio_of_one_problem_has_no_interval_and_one_of_nothing_is_refused() -> None:
    assert ratio_interval(np.array([1.0]), np.array([2.0])).low == -math.inf
    with pytest.raises(ValueError, match="positive sum"):
        ratio_interval(np.array([0.0, 1.0]), np.array([0.0, 0.0]))


def test_samples_are_clustered_by_problem() -> None:
    """Ten equal samples of a problem are worth one: means of 0.1 and 0.3, a standard error of 0.1."""
    found = clustered_mean([[0.1] * 10, [0.3] * 10])
    assert found.mean == pytest.approx(0.2)
    assert found.high == 1.0  # 0.2 + 12.7 * 0.1 is cut
    narrow = clustered_mean([[0.01] * 10, [0.03] * 10])
    assert (narrow.low, narrow.high) == pytest.approx((0.02 - 12.7062 * 0.01, 0.02 + 12.7062 * 0.01), abs=1e-6)
    assert (clustered_mean([[0.5, 0.5]]).low, clustered_mean([[0.5, 0.5]]).high) == (-1.0, 1.0)


def test_samples_that_agree_do_not_show_that_further_ones_would() -> None:
    found = clustered_mean([[0.0], [0.0], [0.0]])
    assert (found.mean, found.low, found.high) == (0.0, -1.0, 1.0)  # 4.3 * sqrt(0.5 / 5) is above 1, and cut
    # 98 zeros, 1 and -1: a variance of 2 / 99, of a mean of a hundred; t(97) = 1.98472
    assert clustered_mean([[0.0]] * 98).high == pytest.approx(1.98472 * math.sqrt(2 / (99 * 100)), abs=1e-5)


def test_an_interval_of_tokens_by_hand() -> None:
    """Means 100 and 300: 200, standard error 100, t(1) = 12.706: a factor of exp(6.353) = 574.2 each way."""
    found = mean_interval(np.array([100.0, 300.0]))
    assert (found.mean, found.low, found.high) == pytest.approx((200.0, 200 / 574.2, 200 * 574.2), rel=1e-3)
    for values in ([5.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="positive mean"):
            mean_interval(np.array(values))
    with pytest.raises(ValueError, match="at least one problem"):
        share_interval(np.array([]))


def test_repeating_a_sample_adds_no_certainty() -> None:
    few, repeated = [[1, 0], [0, 0], [1, 1]] * 10, [[1, 0] * 50, [0, 0] * 50, [1, 1] * 50] * 10
    assert pass_at_1(few) == pass_at_1(repeated)


def test_one_sample_a_problem_or_all_alike_gives_wilsons_interval() -> None:
    assert pass_at_1([[1], [0], [0], [1]]) == wilson(2, 4)
    assert pass_at_1([[1, 1], [1, 1], [1, 1]]) == wilson(3, 3)
    assert pass_at_1([[0, 0], [0, 0]]) == wilson(0, 2)
    assert pass_at_1([[1, 0]]) == wilson(0.5, 1)


def test_wilson_by_hand() -> None:
    """Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662; 0 of 20 gives 0 to 0.1611."""
    assert (wilson(81, 263).low, wilson(81, 263).high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert (wilson(0, 20).low, wilson(0, 20).high) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert (wilson(20, 20).low, wilson(20, 20).high) == pytest.approx((0.8389, 1.0), abs=5e-5)


@pytest.mark.parametrize(
    ("degrees", "table"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (29, 2.045), (99, 1.984), (1000, 1.962)],
)
def test_t_quantiles_agree_with_the_table(degrees: int, table: float) -> None:
    assert t_quantile(degrees) == pytest.approx(table, abs=6e-4)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        chances = rng.beta(1, 2, 40)  # mean 1/3
        estimate = pass_at_1([rng.random(8) < chance for chance in chances])
        covered += estimate.low <= 1 / 3 <= estimate.high
    assert 0.92 <= covered / 400 <= 0.98


def test_nothing_to_estimate_is_refused() -> None:
    nothing: list[list[list[float]]] = [[], [[]], [[1.0], []]]
    for rewards in nothing:
        with pytest.raises(ValueError, match="pass@1"):
            pass_at_1(rewards)
    with pytest.raises(ValueError, match="proportion"):
        wilson(0, 0)


def test_paired_difference_takes_out_the_difficulty_of_the_problems() -> None:
    before = {f"p{i}": i / 100 for i in range(90)}
    after = {problem: value + 0.05 for problem, value in before.items()}
    after["p0"] += 0.02
    after["p1"] -= 0.02
    gain = paired_difference(before, after)
    half = 1.987 * 0.02 * math.sqrt(2 / 89) / math.sqrt(90)  # t(89) = 1.987
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.05, 0.05 - half, 0.05 + half), abs=1e-6)
    assert gain.excludes_zero


def test_paired_difference_by_hand() -> None:
    """Gains 0.5, 0, 0 and 0.1: mean 0.15, variance 0.17 / 3, t(3) = 3.1824."""
    gain = paired_difference({"a": 0, "b": 0, "c": 1, "d": 0.4}, {"a": 0.5, "b": 0, "c": 1, "d": 0.5})
    half = 3.18245 * math.sqrt(0.17 / 3 / 4)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.15, 0.15 - half, 0.15 + half), abs=1e-5)
    assert not gain.excludes_zero


def test_a_single_problem_tells_nothing_of_others() -> None:
    gain = paired_difference({"a": 0.0}, {"a": 1.0})
    assert (gain.mean, gain.low, gain.high) == (1.0, -1.0, 1.0)
    assert not gain.excludes_zero


def test_gains_that_all_agree_have_an_interval_all_the_same() -> None:
    """Twenty gains of 0, with a win and a loss more: variance 2 / 21 over 22 problems, t(19) = 2.093."""
    same = {f"p{i}": 0.5 for i in range(20)}
    gain = paired_difference(same, same)
    half = 2.09302 * math.sqrt(2 / 21 / 22)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.0, -half, half), abs=1e-5)


@pytest.mark.parametrize("problems", [15, 30])
@pytest.mark.parametrize("samples", [1, 16])
def test_the_interval_of_a_difference_covers_the_truth(problems: int, samples: int) -> None:
    """Chances of Beta(1, 2), better by a tenth of what is missing: the true gain is 1/15."""
    rng, covered = np.random.default_rng(problems + samples), 0
    names = [f"p{i}" for i in range(problems)]
    for _ in range(2000):
        chances = rng.beta(1, 2, problems)
        better = chances + 0.1 * (1 - chances)
        before, after = (dict(zip(names, rng.binomial(samples, p) / samples, strict=True)) for p in (chances, better))
        gain = paired_difference(before, after)
        covered += gain.low <= 1 / 15 <= gain.high
    assert 0.93 <= covered / 2000 <= 0.97


def test_order_of_the_problems_does_not_matter_for_pairing() -> None:
    gain = paired_difference({"a": 0.0, "b": 1.0}, {"b": 1.0, "a": 0.0})
    assert gain.mean == 0.0


@pytest.mark.parametrize("after", [{"a": 1.0}, {"a": 1.0, "c": 1.0}])
def test_different_problems_are_refused(after: dict[str, float]) -> None:
    with pytest.raises(UserError, match="same problems"):
        paired_difference({"a": 0.0, "b": 1.0}, after)
    with pytest.raises(UserError, match="same problems"):
        paired_difference({}, {})


def test_the_mean_over_benchmarks_weighs_benchmarks_equally() -> None:
    small = ({"a": 0.0}, {"a": 0.3})
    large = ({f"p{i}": 0.0 for i in range(50)}, {f"p{i}": 0.1 for i in range(50)})
    assert mean_paired_difference([small, large]).mean == pytest.approx(0.2)


def test_the_interval_of_a_mean_over_benchmarks_is_welchs() -> None:
    """Two benchmarks, variances of their means 0.08/2 and 0.02/2: together 0.0125, 1 + 0.0025/0.0017 degrees."""
    wide = ({"a": 0.0, "b": 0.0}, {"a": 0.4, "b": 0.0})
    narrow = ({"a": 0.0, "b": 0.0}, {"a": 0.2, "b": 0.0})
    gain = mean_paired_difference([wide, narrow])
    degrees = (0.04 + 0.01) ** 2 / (0.04**2 + 0.01**2)
    assert gain.mean == pytest.approx(0.15)
    assert gain.low == pytest.approx(max(-1.0, 0.15 - t_quantile(degrees) * math.sqrt(0.0125)))


def test_a_summary_from_rewards() -> None:
    rewards = {"a": [1.0, 1.0, 0.0, 0.0], "b": [0.0, 0.0, 0.0, 1.0], "c": [0.0] * 5}
    summary = summarise_evaluation(7, "held_out", rewards, tokens_per_rollout=12.5, quality={"well_formed": 0.9})
    assert (summary.version, summary.benchmark, summary.problems, summary.samples) == (7, "held_out", 3, 4)
    assert summary.per_problem == {"a": 0.5, "b": 0.25, "c": 0.0}
    assert summary.accuracy == pytest.approx(0.25)
    assert summary.low <= summary.accuracy <= summary.high
    assert summary.pass_at_k == pytest.approx({1: 0.25, 2: (5 / 6 + 1 / 2) / 3, 4: 2 / 3})


def test_a_summary_keeps_what_each_problem_gives_to_pass_and_to_votes() -> None:
    """Of a, two right answers against two equal wrong ones: a vote of four is a tie. Of b, one right answer against
    three different ones: any two tie with a chance of one half where the right one is among them.
    """
    rewards = {"a": [1.0, 1.0, 0.0, 0.0], "b": [0.0, 0.0, 0.0, 1.0]}
    answers = {"a": ["7", "7", "8", "8"], "b": ["1", "2", None, "3"]}
    stages = {"round 1": {"a": 0.25, "b": 0.0}, "round 2": {"a": 0.5, "b": 0.25}}
    summary = summarise_evaluation(7, "held_out", rewards, answers=answers, stages=stages)
    assert summary.pass_by_problem == {"a": (0.5, 0.833333, 1.0), "b": (0.25, 0.5, 1.0)}
    assert summary.majority_by_problem["a"] == (0.5, 0.5, 0.5)
    # Of b, each pair has a chance of 1/6; the right answer ties with two and wins against the text without an answer.
    assert summary.majority_by_problem["b"][:2] == (0.25, pytest.approx((0.5 + 0.5 + 1) / 6, abs=1e-6))
    assert summary.stages == {"round 1": 0.125, "round 2": 0.375}
    assert summary.stages_by_problem == {"a": (0.25, 0.5), "b": (0.0, 0.25)}


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=5), min_size=1, max_size=30))
def test_intervals_hold_their_mean_and_stay_within_bounds(rewards: list[list[float]]) -> None:
    estimate = pass_at_1(rewards)
    assert 0.0 <= estimate.low <= estimate.mean + 1e-12
    assert estimate.mean - 1e-12 <= estimate.high <= 1.0
    assert estimate.high > estimate.low
