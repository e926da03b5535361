"""Accuracy within a number of tokens, and the tokens to an accuracy, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mrt_hpc.mrt.regret import TraceCurve, area_of_episodes
from mrt_hpc.mrt.token_budget import first_reached, reward_within

CURVE = TraceCurve(np.array([0.0, 100.0, 200.0]), np.array([0.2, 0.6, 0.4]))


def test_a_trace_that_is_stopped_has_the_value_there_and_one_that_has_ended_its_reward() -> None:
    allowed = np.array([0.0, 50.0, 100.0, 150.0, 210.0, 219.0, 220.0, 400.0])
    found = reward_within(allowed, 220, 1.0, CURVE)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.5, 0.4, 0.4, 1.0, 1.0])


def test_without_values_a_trace_counts_once_it_has_ended() -> None:
    assert reward_within(np.array([0.0, 99.0, 100.0]), 100, 1.0, None).tolist() == [0.0, 0.0, 1.0]
    assert reward_within(np.array([0.0, 100.0]), 100, 0.0, None).tolist() == [0.0, 0.0]


def test_the_first_tokens_that_reach_an_accuracy() -> None:
    allowed = np.array([0.0, 100.0, 200.0, 300.0])
    curves = np.array(
        [
            [0.0, 0.4, 0.8, 0.8],  # 0.5 lies a quarter of the way from 100 to 200
            [0.5, 0.1, 0.9, 0.9],  # reached at once, though lost again
            [0.1, 0.2, 0.3, 0.4],  # never
            [0.2, 0.6, 0.3, 0.9],  # three quarters of the way to 100: the first time counts
        ]
    )
    assert first_reached(allowed, curves, 0.5).tolist() == pytest.approx([125.0, 0.0, np.inf, 75.0])


@pytest.mark.parametrize(
    ("episodes", "area"),
    [
        (0, 0.2),  # the value of the empty prefix, held
        (1, (0.4 * 100 + 0.6 * 300) / 400),
        (2, (0.4 * 100 + 0.5 * 100 + 0.4 * 200) / 400),
        (5, (0.4 * 100 + 0.5 * 100 + 0.4 * 200) / 400),  # a trace with fewer episodes is kept whole
    ],
)
def test_the_area_of_the_first_episodes_holds_their_last_value(episodes: int, area: float) -> None:
    assert area_of_episodes(CURVE, episodes, 400.0) == pytest.approx(area)


def test_the_area_of_episodes_is_cut_at_the_budget() -> None:
    assert area_of_episodes(CURVE, 1, 50.0) == pytest.approx(0.3)  # 0.2 to 0.4
