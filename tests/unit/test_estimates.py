"""Measures of summaries with their intervals."""

import math

from mrt_hpc.analysis import rows
from mrt_hpc.analysis.intervals import mean_of_shares
from mrt_hpc.analysis.number_formats import percent, points

SUMMARY = rows.summarise_evaluation(
    0,
    "b",
    {"p": [1.0, 0.0], "q": [1.0, 1.0], "r": [0.0, 0.0]},
    answers={"p": ["7", "8"], "q": ["7", "7"], "r": [None, "1"]},
    stages={"first": {"p": 0.0, "q": 0.5, "r": 0.0}, "second": {"p": 0.5, "q": 1.0, "r": 0.0}},
)


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
    assert found[1] == rows.mean_of(SUMMARY.per_problem, single.per_problem)
    assert found[1].mean == 0.5
    assert rows.majority_estimates(SUMMARY, single)[1].mean == 0.5


def test_what_has_no_ends_is_written_without_and_a_small_difference_has_no_sign_of_its_own() -> None:
    assert (rows.bare_mean(0.5).text(percent), rows.bare_mean(0.5).low) == ("50.0 %", -math.inf)
    assert (points(-0.0003), points(0.0), points(-0.0005)) == ("+0.0", "+0.0", "−0.1")
