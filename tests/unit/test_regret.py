"""Areas under values, normalised regret, and accuracy within a number of tokens, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from samples import rollout, sampled

from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, GradedAnswer
from mrt_hpc.analysis.problem_measures import curve_of, valued_traces
from mrt_hpc.mrt.regret import (
    TraceCurve,
    area_of_episodes,
    area_under_values,
    first_reached,
    regret_by_problem,
    reward_within,
)
from mrt_hpc.run.records import Branch, FinishReason, PrefixValue

TOKENS, VALUES = np.array([0.0, 100.0, 200.0]), np.array([0.2, 0.6, 1.0])
CURVE = TraceCurve(TOKENS, np.array([0.2, 0.6, 0.4]))


@pytest.mark.parametrize(
    ("budget", "area"),
    [
        (200.0, (0.4 * 100 + 0.8 * 100) / 200),  # trapezoids of mean height 0.4 and 0.8
        (150.0, (0.4 * 100 + 0.7 * 50) / 150),  # 0.8 at 150
        (400.0, (0.4 * 100 + 0.8 * 100 + 1.0 * 200) / 400),  # the last value is held
    ],
)
def test_area(budget: float, area: float) -> None:
    assert area_under_values(TOKENS, VALUES, budget) == pytest.approx(area)
    late = area_under_values(np.array([100.0]), np.array([0.5]), 200.0)
    assert late == pytest.approx((25 + 50) / 200), "from nothing to 0.5 at 100, where it is held"
    with pytest.raises(ValueError, match="a budget of 0"):
        area_under_values(TOKENS, VALUES, 0)


def test_all_tokens_are_prompt_prefix_closing_text_and_mean_answer() -> None:
    """A prompt of 20 tokens, prefixes of 0, 40 and 100, a closing text of 10, answers of 6 and 14, 4 and 6, 5 and 5."""
    prefixes, lengths = [0, 40, 100], [(6, 14), (4, 6), (5, 5)]
    trace = replace(rollout("p", 0), prompt_ids=[0] * 20, token_ids=[0] * 110, boundaries=prefixes)
    branches = [
        Branch(
            iteration=0, problem_id="p", sample=0, boundary=j, branch=n, seed=0, weights_version=0, token_ids=[0] * own,
            logprobs=[0.0] * own, finish_reason=FinishReason.STOP, text="", answer=None, reward=0.0, known=False,
            look_ahead=0.0, prompt_tokens=20 + prefix + 10, cached_tokens=None,
        ) for j, prefix in enumerate(prefixes) for n, own in enumerate(lengths[j])
    ]  # fmt: skip
    values = [PrefixValue(0, "p", 0, j, j / 2, 0.0, 0.0, branches=2, baseline=0.0) for j in range(3)]
    group = replace(sampled(trace), branches=branches, values=values)
    (alone,), (everything,) = valued_traces([group])["p"], valued_traces([group], "all")["p"]
    assert alone.tokens.tolist() == [0, 40, 100]
    assert everything.tokens.tolist() == [40, 75, 135]
    never, always = (TraceCurve(np.array([0.0]), np.array([value])) for value in (0.0, 1.0))
    found = regret_by_problem({"a": [always, always, always, never], "b": [never]}, 100.0)
    assert found == pytest.approx({"a": 0.25, "b": 1.0}), "the mean over the traces of a problem"
    # up to 135 tokens: nothing to 40, then trapezoids of mean height 0.25 and 0.75
    assert regret_by_problem({"p": [everything]}, 135.0)["p"] == pytest.approx(1 - (0.25 * 35 + 0.75 * 60) / 135)


def test_a_boundary_with_shorter_answers_counts_no_fewer_tokens_than_the_one_before() -> None:
    forced = [GradedAnswer("R", 1.0, drawn, asked) for drawn, asked in ((20, 30), (5, 35), (5, 60))]
    boundaries = tuple(EvaluatedBoundary(0, 1.0, (answer,)) for answer in forced)
    assert curve_of(EvaluatedTrace(1.0, "R", 0, boundaries), "all").tokens.tolist() == [50, 50, 65]


def test_a_trace_that_is_stopped_has_the_value_there_and_one_that_has_ended_its_reward() -> None:
    allowed = np.array([0.0, 50.0, 100.0, 150.0, 210.0, 219.0, 220.0, 400.0])
    found = reward_within(allowed, 220, 1.0, CURVE)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.5, 0.4, 0.4, 1.0, 1.0])
    unvalued = reward_within(np.array([0.0, 99.0, 100.0]), 100, 1.0, None)
    assert unvalued.tolist() == [0.0, 0.0, 1.0], "without values it counts once it has ended"


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
    assert area_of_episodes(CURVE, 1, 50.0) == pytest.approx(0.3)  # cut at the budget: 0.2 to 0.4
