"""Normalised regret against areas worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mrt_hpc.mrt.regret import ValuedTrace, area_under_values, regret_by_problem

TOKENS, VALUES = np.array([0.0, 100.0, 200.0]), np.array([0.2, 0.6, 1.0])


@pytest.mark.parametrize(
    ("budget", "area"),
    [
        (200.0, (0.4 * 100 + 0.8 * 100) / 200),  # trapezoids of mean height 0.4 and 0.8
        (150.0, (0.4 * 100 + 0.7 * 50) / 150),  # 0.8 at 150
        (50.0, 0.3),  # 0.2 to 0.4
        (400.0, (0.4 * 100 + 0.8 * 100 + 1.0 * 200) / 400),  # the last value is held
    ],
)
def test_area(budget: float, area: float) -> None:
    assert area_under_values(TOKENS, VALUES, budget) == pytest.approx(area)


def test_the_area_starts_at_nothing_where_the_first_boundary_lies_later() -> None:
    # from (0, 0) to (100, 0.5): a triangle, then 0.5 held
    assert area_under_values(np.array([100.0]), np.array([0.5]), 200.0) == pytest.approx((25 + 50) / 200)
    assert area_under_values(np.array([100.0]), np.array([0.5]), 50.0) == pytest.approx(0.125)


def test_regret_is_meaned_over_the_traces_of_a_problem() -> None:
    always = ValuedTrace(np.array([0.0]), np.array([1.0]))
    never = ValuedTrace(np.array([0.0]), np.array([0.0]))
    found = regret_by_problem({"a": [always, always, always, never], "b": [never]}, 100.0)
    assert found == pytest.approx({"a": 0.25, "b": 1.0})


def test_what_regret_refuses() -> None:
    with pytest.raises(ValueError, match="a budget of 0"):
        area_under_values(TOKENS, VALUES, 0)
    with pytest.raises(ValueError, match="3 boundaries and 1 values"):
        area_under_values(TOKENS, np.array([0.0]), 10)
    with pytest.raises(ValueError, match="at least one trace"):
        regret_by_problem({"a": []}, 10)
