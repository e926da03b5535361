"""The learning rate schedule, by hand."""

import math

import pytest

from mrt_hpc.recipe.sections import Training
from mrt_hpc.training.settings import learning_rate


def rates(steps: int = 10, **section: object) -> list[float]:
    """The rates of so many steps and of one too many, peak 1."""
    training = Training(**({"learning_rate": 1.0, "warmup_ratio": 0.2} | section))  # type: ignore[arg-type]
    return [learning_rate(step, steps, training) for step in range(steps + 1)]


def test_the_schedule_by_hand() -> None:
    """Linear to the peak, which it stays at or leaves by a cosine, so that the first step and the last one teach."""
    assert rates()[:3] == [0.5, 1.0, 1.0]
    assert rates()[9] == pytest.approx(0.5 * (1 + math.cos(math.pi * 7 / 8)))
    assert rates()[1:] == sorted(rates()[1:], reverse=True)
    course = rates(minimum_ratio=0.1)
    assert course[6] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))
    assert course[10] == pytest.approx(0.1)
    assert rates(4, warmup_ratio=0.5) == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.0])
    assert rates(2, warmup_ratio=0.0) == pytest.approx([1.0, 0.5, 0.0])  # half a cosine over two steps
    assert rates(schedule="constant")[1:] == [1.0] * 10
    assert rates(1, warmup_ratio=0.0, learning_rate=0.3)[0] == 0.3


@pytest.mark.parametrize(("steps", "warmup_ratio"), [(1, 0.1), (2, 0.0), (2, 1.0), (248, 0.1)])
def test_every_step_has_a_rate_above_zero(steps: int, warmup_ratio: float) -> None:
    course = rates(steps, warmup_ratio=warmup_ratio)[:steps]
    assert min(course) > 0
    assert max(course) == 1.0
