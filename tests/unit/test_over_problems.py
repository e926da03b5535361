"""Means over problems with intervals worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mrt_hpc.analysis.intervals import wilson
from mrt_hpc.analysis.over_problems import clustered_mean, mean_share, ratio_of_sums

T_1, T_4, T_97 = 12.7062, 2.77645, 1.98472
"""Two-sided 95 % quantiles of Student's t by degrees of freedom, from a printed table."""


def test_a_mean_of_shares_has_a_t_interval() -> None:
    found = mean_share([0.4, 0.45, 0.5, 0.55, 0.6])  # standard deviation 0.0790569, standard error 0.0353553
    assert found.mean == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((0.5 - T_4 * 0.0353553, 0.5 + T_4 * 0.0353553), abs=1e-6)


def test_shares_that_agree_or_stand_alone_have_an_interval_all_the_same() -> None:
    assert mean_share([1.0, 1.0, 1.0]) == wilson(3.0, 3)
    assert mean_share([0.25]) == wilson(0.25, 1)
    wide = mean_share([0.2, 0.6])
    assert (wide.low, wide.high) == (0.0, 1.0)


def test_a_ratio_of_sums_weighs_problems_by_what_is_below_the_line() -> None:
    """(1 + 3) / (1 + 3) = 1, deviations of 0; (2 + 2) / (1 + 3) = 1, deviations of 1 and -1."""
    assert ratio_of_sums(np.array([1.0, 3.0]), np.array([1.0, 3.0])).low == pytest.approx(1.0)
    found = ratio_of_sums(np.array([2.0, 2.0]), np.array([1.0, 3.0]))
    half = T_1 * math.sqrt(2 * 2) / 4
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, 1 - half, 1 + half), abs=1e-4)


def test_a_ratio_of_one_problem_has_no_interval_and_one_of_nothing_is_refused() -> None:
    assert ratio_of_sums(np.array([1.0]), np.array([2.0])).low == -math.inf
    with pytest.raises(ValueError, match="positive sum"):
        ratio_of_sums(np.array([0.0, 1.0]), np.array([0.0, 0.0]))


def test_samples_are_clustered_by_problem() -> None:
    """Ten equal samples of a problem are worth one: means of 0.1 and 0.3, a standard error of 0.1."""
    found = clustered_mean({"a": [0.1] * 10, "b": [0.3] * 10})
    assert found.mean == pytest.approx(0.2)
    assert found.high == 1.0  # 0.2 + 12.7 * 0.1 is cut
    narrow = clustered_mean({"a": [0.01] * 10, "b": [0.03] * 10})
    assert (narrow.low, narrow.high) == pytest.approx((0.02 - T_1 * 0.01, 0.02 + T_1 * 0.01), abs=1e-6)


def test_samples_that_agree_do_not_show_that_further_ones_would() -> None:
    found = clustered_mean({"a": [0.0], "b": [0.0], "c": [0.0]})
    assert (found.mean, found.low, found.high) == (0.0, -1.0, 1.0)  # 4.3 * sqrt(0.5 / 5) is above 1, and cut
    # 98 zeros, 1 and -1: a variance of 2 / 99, of a mean of a hundred
    many = clustered_mean({str(n): [0.0] for n in range(98)})
    assert many.high == pytest.approx(T_97 * math.sqrt(2 / (99 * 100)), abs=1e-5)
