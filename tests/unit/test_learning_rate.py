"""The learning rate schedule, by hand."""

from __future__ import annotations

import math

import pytest

from mrt_hpc.training.learning_rate import learning_rate
from mrt_hpc.training.settings import Schedule


def rates(schedule: Schedule, minimum_ratio: float = 0.0, warmup_ratio: float = 0.2) -> list[float]:
    """The rates of ten steps and of one too many, peak 1."""
    return [learning_rate(step, 10, 1.0, warmup_ratio, schedule, minimum_ratio) for step in range(11)]


def test_the_warm_up_is_linear_and_reaches_the_peak() -> None:
    assert rates(Schedule.COSINE)[:3] == [0.5, 1.0, 1.0]


def test_the_cosine_passes_its_middle_and_ends_at_the_minimum_after_the_last_step() -> None:
    course = rates(Schedule.COSINE, minimum_ratio=0.1, warmup_ratio=0.2)
    assert course[6] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert course[9] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert course[10] == pytest.approx(0.1)
    assert learning_rate(99, 10, 1.0, 0.2, Schedule.COSINE, 0.1) == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [1, 2, 10, 248])
@pytest.mark.parametrize("warmup_ratio", [0.0, 0.1, 1.0])
def test_every_step_has_a_rate_above_zero(steps: int, warmup_ratio: float) -> None:
    course = [learning_rate(step, steps, 1.0, warmup_ratio, Schedule.COSINE) for step in range(steps)]
    assert min(course) > 0
    assert max(course) == 1.0


def test_the_cosine_never_rises_after_the_warm_up() -> None:
    course = rates(Schedule.COSINE)[1:]
    assert course == sorted(course, reverse=True)


def test_constant_stays_at_the_peak() -> None:
    assert rates(Schedule.CONSTANT)[1:] == [1.0] * 10


def test_a_run_of_one_step_has_a_rate() -> None:
    assert learning_rate(0, 1, 3.0, 0.0, Schedule.COSINE) == 3.0
