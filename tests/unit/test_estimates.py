"""Measures of summaries with their intervals; those of a report are in tests/golden/report.md."""

import math

from mrt_hpc.analysis.intervals import mean_of_shares
from mrt_hpc.analysis.number_formats import points, share_text
from mrt_hpc.analysis.rows import accuracy_of, bare_mean, pass_estimates, stage_estimates, summarise_evaluation


def test_every_stage_has_its_interval_over_problems() -> None:
    stages = {"first": {"p": 0.0, "q": 0.5, "r": 0.0}, "second": {"p": 0.5, "q": 1.0, "r": 0.0}}
    summary = summarise_evaluation(0, "b", {"p": [1.0, 0.0], "q": [1.0, 1.0], "r": [0.0, 0.0]}, stages=stages)
    assert stage_estimates(summary) == {"first": mean_of_shares(stages["first"]), "second": accuracy_of(summary)}


def test_pass_at_1_has_the_same_interval_everywhere_also_of_single_samples() -> None:
    """Of single samples that interval is Wilson's, which is not that of a mean of shares."""
    single = summarise_evaluation(0, "b", {"p": [1.0], "q": [0.0], "r": [0.0]}, stages={"a": {"p": 1.0}})
    assert pass_estimates(single) == {1: accuracy_of(single)}
    assert accuracy_of(single) != mean_of_shares(single.per_problem)


def test_what_has_no_ends_is_written_without_and_a_small_difference_has_no_sign_of_its_own() -> None:
    assert (share_text(bare_mean(0.5)), bare_mean(0.5).low) == ("50.0 %", -math.inf)
    assert (points(-0.0003), points(0.0), points(-0.0005)) == ("+0.0", "+0.0", "−0.1")
