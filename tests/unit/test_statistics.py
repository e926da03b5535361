"""Accuracies, measures and their intervals, against numbers worked out by hand."""

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from commands import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt_hpc.analysis import intervals, rows
from mrt_hpc.analysis.intervals import mean_of_shares, paired_difference, pass_at_1, pass_at_k, wilson
from mrt_hpc.analysis.number_formats import percent, points
from mrt_hpc.analysis.rows import summarise_evaluation


def interval(found: Any) -> tuple[float, float, float]:
    return found.mean, found.low, found.high


def test_pass_at_k_equals_counting_all_draws() -> None:
    for samples, k in product(range(1, 7), range(1, 7)):
        for correct in range(samples + 1) if k <= samples else ():
            draws = list(combinations([True] * correct + [False] * (samples - correct), k))
            assert pass_at_k(samples, correct, k) == pytest.approx(np.mean([any(draw) for draw in draws]))
    for counts in ((4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)):
        with pytest.raises(ValueError, match="pass@"):
            pass_at_k(*counts)


def test_pass_at_1_varies_over_problems_not_samples() -> None:
    """Means 1, 1/2, 0 and 1/2: mean 1/2, variance 1/6; with two problems more of variance 1/4 it is (3/6 + 2/4) / 5 =
    1/5, and 4 (1/4) / (1/5) = 5 draws of 0 or 1 are as uncertain: Wilson's interval of 2.5 in 5.
    """
    four = [[1, 1], [1, 0], [0, 0], [0, 1]]
    assert interval(pass_at_1(four)) == pytest.approx(interval(wilson(2.5, 5)))
    effective = 100 * 0.25 / ((12.5 + 0.5) / 101)  # squares of 100 * 1/8, and 2 * 1/4 more
    assert interval(pass_at_1(four * 25)) == pytest.approx(interval(wilson(effective / 2, effective)))
    assert pass_at_1([rewards * 25 for rewards in four]) == pass_at_1(four), "repeating samples adds no certainty"


def test_a_ratio_of_sums_weighs_problems_by_what_is_below_the_line() -> None:
    """(1 + 3) / (1 + 3) = 1, deviations of 0; (2 + 2) / (1 + 3) = 1, deviations of 1 and -1; t(1) = 12.7062."""
    assert intervals.ratio_interval(np.array([1.0, 3.0]), np.array([1.0, 3.0])).low == pytest.approx(1.0)
    half = 12.7062 * math.sqrt(2 * 2) / 4
    found = intervals.ratio_interval(np.array([2.0, 2.0]), np.array([1.0, 3.0]))
    assert interval(found) == pytest.approx((1.0, 1 - half, 1 + half), abs=1e-4)
    assert intervals.ratio_interval(np.array([1.0]), np.array([2.0])).low == -math.inf, "one problem has no interval"
    with pytest.raises(ValueError, match="positive sum"):
        intervals.ratio_interval(np.array([0.0, 1.0]), np.array([0.0, 0.0]))


def test_samples_are_clustered_by_problem() -> None:
    """Ten equal samples of a problem are worth one: means of 0.1 and 0.3, a standard error of 0.1. Those that agree do
    not show that further ones would: 98 zeros with 1 and -1, a variance of 2 / 99, of a mean of a hundred.
    """
    half = 12.7062 * 0.01
    found = intervals.clustered_mean([[0.01] * 10, [0.03] * 10])
    assert interval(found) == pytest.approx((0.02, 0.02 - half, 0.02 + half), abs=1e-6)
    assert interval(intervals.clustered_mean([[0.5, 0.5]])) == (0.5, -1.0, 1.0)
    assert interval(intervals.clustered_mean([[0.0]] * 3)) == (0, -1, 1)  # 4.3 * sqrt(0.5 / 5) is above 1, and cut
    assert intervals.clustered_mean([[0.0]] * 98).high == pytest.approx(1.98472 * math.sqrt(2 / (99 * 100)), abs=1e-5)


def test_an_interval_of_tokens_by_hand() -> None:
    """Means 100 and 300: 200, standard error 100, t(1) = 12.706: a factor of exp(6.353) = 574.2 each way."""
    found = intervals.mean_interval(np.array([100.0, 300.0]))
    assert interval(found) == pytest.approx((200.0, 200 / 574.2, 200 * 574.2), rel=1e-3)
    for values in ([5.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="positive mean"):
            intervals.mean_interval(np.array(values))


def test_wilson_by_hand() -> None:
    """Newcombe 1998, table I. One sample a problem, or samples that are all alike, give Wilson's interval."""
    for right, of, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0)):
        assert interval(wilson(right, of))[1:] == pytest.approx((low, high), abs=5e-5)
    assert pass_at_1([[1], [0], [0], [1]]) == wilson(2, 4)
    assert pass_at_1([[1, 1], [1, 1], [1, 1]]) == wilson(3, 3) and pass_at_1([[1, 0]]) == wilson(0.5, 1)
    nothing: list[list[list[float]]] = [[], [[]], [[1.0], []]]
    for rewards in nothing:
        with pytest.raises(ValueError, match="pass@1"):
            pass_at_1(rewards)
    with pytest.raises(ValueError, match="proportion"):
        wilson(0, 0)


def test_paired_difference_by_hand() -> None:
    """Gains 0.5, 0, 0 and 0.1: mean 0.15, variance 0.17 / 3, t(3) = 3.1824. Twenty gains of 0, with a win and a loss
    more: variance 2 / 21 over 22 problems, t(19) = 2.093. A single problem shows nothing of others.
    """
    gain = paired_difference({"a": 0, "b": 0, "c": 1, "d": 0.4}, {"d": 0.5, "c": 1, "b": 0, "a": 0.5})
    half = 3.18245 * math.sqrt(0.17 / 3 / 4)
    assert interval(gain) == pytest.approx((0.15, 0.15 - half, 0.15 + half), abs=1e-5)
    assert not gain.excludes_zero
    assert paired_difference(dict.fromkeys(range(90), 0.1), dict.fromkeys(range(90), 0.3)).excludes_zero
    same, half = {f"p{i}": 0.5 for i in range(20)}, 2.09302 * math.sqrt(2 / 21 / 22)
    assert interval(paired_difference(same, same)) == pytest.approx((0.0, -half, half), abs=1e-5)
    assert interval(paired_difference({"a": 0.0}, {"a": 1.0})) == (1.0, -1.0, 1.0)
    for before, after in (({"a": 0.0, "b": 1.0}, {"a": 1.0}), ({"a": 0.0, "b": 1.0}, {"a": 1.0, "c": 1.0}), ({}, {})):
        assert "same problems" in str(refusal(paired_difference, before, after))


def test_a_summary_from_rewards() -> None:
    rewards = {"a": [1.0, 1.0, 0.0, 0.0], "b": [0.0, 0.0, 0.0, 1.0], "c": [0.0] * 5}
    summary = summarise_evaluation(7, "held_out", rewards, tokens_per_rollout=12.5, quality={"well_formed": 0.9})
    assert (summary.version, summary.benchmark, summary.problems, summary.samples) == (7, "held_out", 3, 4)
    assert summary.per_problem == {"a": 0.5, "b": 0.25, "c": 0.0}
    assert summary.pass_at_k == pytest.approx({1: 0.25, 2: (5 / 6 + 1 / 2) / 3, 4: 2 / 3})


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=5), min_size=1, max_size=30))
def test_intervals_hold_their_mean_and_stay_within_bounds(rewards: list[list[float]]) -> None:
    estimate = pass_at_1(rewards)
    assert 0.0 <= estimate.low <= estimate.mean + 1e-12
    assert estimate.mean - 1e-12 <= estimate.high <= 1.0
    assert estimate.high > estimate.low


# -- measures of summaries with their intervals


SUMMARY = rows.summarise_evaluation(
    0, "b", {"p": [1.0, 0.0], "q": [1.0, 1.0], "r": [0.0, 0.0]},
    answers={"p": ["7", "8"], "q": ["7", "7"], "r": [None, "1"]},
    stages={"first": {"p": 0.0, "q": 0.5, "r": 0.0}, "second": {"p": 0.5, "q": 1.0, "r": 0.0}},
)  # fmt: skip


def test_every_k_and_every_stage_has_its_interval_over_problems() -> None:
    both = mean_of_shares({"p": 1.0, "q": 1.0, "r": 0.0})
    assert rows.pass_estimates(SUMMARY) == {1: rows.accuracy_of(SUMMARY), 2: both}
    assert rows.majority_estimates(SUMMARY)[2] == mean_of_shares({"p": 0.5, "q": 1.0, "r": 0.0})
    first = mean_of_shares({"p": 0.0, "q": 0.5, "r": 0.0})
    assert rows.stage_estimates(SUMMARY) == {"first": first, "second": rows.accuracy_of(SUMMARY)}


def test_pass_at_1_has_the_same_interval_everywhere_also_of_single_samples() -> None:
    """Of single samples that interval is Wilson's, which is not that of a mean of shares."""
    single = rows.summarise_evaluation(0, "b", {"p": [1.0], "q": [0.0], "r": [0.0]}, stages={"a": {"p": 1.0}})
    assert rows.pass_estimates(single) == {1: rows.accuracy_of(single)}
    assert rows.accuracy_of(single) != mean_of_shares(single.per_problem)


def test_several_benchmarks_have_the_mean_for_each_k_that_all_have() -> None:
    single = rows.summarise_evaluation(0, "c", {"s": [1.0], "t": [0.0]}, answers={"s": ["7"], "t": ["8"]})
    found = rows.pass_estimates(SUMMARY, single)
    assert [*found] == [1]
    assert found[1] == rows.mean_of(SUMMARY.per_problem, single.per_problem) and found[1].mean == 0.5
    assert rows.majority_estimates(SUMMARY, single)[1].mean == 0.5


def test_what_has_no_ends_is_written_without_and_a_small_difference_has_no_sign_of_its_own() -> None:
    assert (rows.bare_mean(0.5).text(percent), rows.bare_mean(0.5).low) == ("50.0 %", -math.inf)
    assert (points(-0.0003), points(0.0), points(-0.0005)) == ("+0.0", "+0.0", "−0.1")
