"""Normalised regret against areas worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mrt_hpc.analysis.curves import valued_traces
from mrt_hpc.mrt.regret import TraceCurve, area_under_values, regret_by_problem, tokens_to_answer
from mrt_hpc.run.groups import Sampled
from mrt_hpc.run.records import Branch, FinishReason, GroupStatistics, PrefixValue, Rollout

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
    always = TraceCurve(np.array([0.0]), np.array([1.0]))
    never = TraceCurve(np.array([0.0]), np.array([0.0]))
    found = regret_by_problem({"a": [always, always, always, never], "b": [never]}, 100.0)
    assert found == pytest.approx({"a": 0.25, "b": 1.0})


def branch(boundary: int, number: int, prompt_tokens: int, sampled: int) -> Branch:
    return Branch(
        iteration=0, problem_id="p", sample=0, boundary=boundary, branch=number, seed=0, weights_version=0,
        token_ids=[0] * sampled, logprobs=[0.0] * sampled, finish_reason=FinishReason.STOP, text="", answer=None,
        reward=0.0, known=False, look_ahead=0.0, prompt_tokens=prompt_tokens, cached_tokens=None,
    )  # fmt: skip


def value(boundary: int, value: float) -> PrefixValue:
    return PrefixValue(0, "p", 0, boundary, value, variance=0.0, progress_variance=0.0, branches=2, baseline=0.0)


ROLLOUT = Rollout(
    iteration=0, problem_id="p", sample=0, seed=0, weights_version=0, prompt_ids=[0] * 20, forced=0,
    token_ids=[0] * 110, logprobs=[0.0] * 110, finish_reason=FinishReason.STOP, text="", answer=None, reward=1.0,
    boundaries=[0, 40, 100], started=0.0, seconds=0.0,
)  # fmt: skip


def test_all_tokens_are_prompt_prefix_closing_text_and_mean_answer() -> None:
    """A prompt of 20 tokens, prefixes of 0, 40 and 100, a closing text of 10, answers of 6 and 14, 4 and 6, 5 and 5."""
    lengths = [(6, 14), (4, 6), (5, 5)]
    branches = [
        branch(j, n, 20 + prefix + 10, sampled)
        for j, prefix in enumerate(ROLLOUT.boundaries)
        for n, sampled in enumerate(lengths[j])
    ]
    values = [value(0, 0.0), value(1, 0.5), value(2, 1.0)]
    sampled = Sampled(
        rollouts=[ROLLOUT], branches=branches, values=values, statistics=GroupStatistics(1, 6, 110, 40, 0, 0, 0, {})
    )
    (alone,), (everything,) = valued_traces([sampled])["p"], valued_traces([sampled], "all")["p"]
    assert alone.tokens.tolist() == [0, 40, 100]
    assert everything.tokens.tolist() == [40, 75, 135]
    # up to 135 tokens: nothing to 40, then trapezoids of mean height 0.25 and 0.75
    assert regret_by_problem({"p": [everything]}, 135.0)["p"] == pytest.approx(1 - (0.25 * 35 + 0.75 * 60) / 135)


def test_a_boundary_with_shorter_answers_counts_no_fewer_tokens_than_the_one_before() -> None:
    assert tokens_to_answer([[30], [35], [60]], [[20], [5], [5]]).tolist() == [50, 50, 65]
    with pytest.raises(ValueError, match="a boundary has no branch"):
        tokens_to_answer([[30], []], [[20], []])


def test_what_regret_refuses() -> None:
    with pytest.raises(ValueError, match="a budget of 0"):
        area_under_values(TOKENS, VALUES, 0)
    with pytest.raises(ValueError, match="3 boundaries do not match 1 values"):
        area_under_values(TOKENS, np.array([0.0]), 10)
    with pytest.raises(ValueError, match="at least one trace"):
        regret_by_problem({"a": []}, 10)
