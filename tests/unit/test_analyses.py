"""Analyses of two problems against arithmetic worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from evaluated import PROBLEMS, boundary, model, trace, unvalued

from mrt_hpc.analysis.analysis_files import as_csv
from mrt_hpc.analysis.curves import curves_of
from mrt_hpc.analysis.efficiency import (
    accuracy_within,
    analyse_efficiency,
    default_levels,
    efficiencies,
    percentiles,
    ratio_of_tokens,
    ratio_text,
    tokens_text,
    tokens_to,
)
from mrt_hpc.analysis.episode_progress import (
    Difficulty,
    analyse_progress,
    difficulties,
    mean_accuracy,
    progress_by_episode,
    progress_curves,
)
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.analysis.regret_by_budget import (
    ModelRegret,
    analyse_regret,
    area_ratios,
    even_budgets,
    regret_of,
    verdicts,
)
from mrt_hpc.analysis.scaling import ScalingCurve, accuracy_at, analyse_scaling, direct_curves, prefix_curve, votes_of
from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from mrt_hpc.analysis.model_samples import Counted

MODEL = model(PROBLEMS)


def means(curve: ScalingCurve) -> list[float]:
    return [point.accuracy.mean for point in curve.points]


def tokens(curve: ScalingCurve) -> list[float]:
    return [point.tokens for point in curve.points]


# -- regret


def test_regret_of_two_problems() -> None:
    """To 60 tokens, first problem: 0.5 to 0.75 over 40 and 0.75 held over 20; 0.5 held over 30, 0.5 to 0 over 30.

    Second problem: 1 throughout.
    """
    first = 1 - ((0.625 * 40 + 0.75 * 20) / 60 + (0.5 * 30 + 0.25 * 30) / 60) / 2
    found = regret_of("model", curves_of(MODEL), [30, 60])
    assert found.regret[1].mean == pytest.approx(first / 2)
    # to 30 tokens the first trace rises to 0.5 + 0.25 * 30 / 40
    assert found.regret[0].mean == pytest.approx((1 - ((0.5 + 0.6875) / 2 + 0.5) / 2) / 2)


def test_the_difference_of_regret_is_paired_by_problem() -> None:
    """Ten problems of regret 0.50, 0.51 .. 0.59, and ten of 0.01 less and 0.03 less by turns: a mean of -0.02 with a
    standard deviation of 0.0105409, so that the interval is 0.0075405 wide on each side.
    """
    first = ModelRegret("first", (9,), ({str(n): 0.5 + n / 100 for n in range(10)},), ())
    second = ModelRegret("second", (9,), ({str(n): 0.49 + n / 100 - n % 2 / 50 for n in range(10)},), ())
    (found,) = second.above(first)
    assert (found.mean, found.low, found.high) == pytest.approx((-0.02, -0.0275405, -0.0124595), abs=1e-6)


def test_whether_regret_can_be_told_apart_is_said_as_a_comparison_says_it() -> None:
    """To 50 tokens the areas of ``a`` are 0.65 and 0.4333; with an answer from the start they are 1. Of ``b`` they are
    1 in both models.
    """
    always = model({"a": (trace("R", 50, boundary(0, "RRRR")),), "b": PROBLEMS["b"]}, "always")
    (found,) = verdicts([MODEL, always], 50)
    assert found.startswith(f"regret@50, always against model: {((0.65 + 1.3 / 3) / 2 - 1) / 2:+.3f} (")
    assert "cannot be told apart: n = 2 problems are too few to show any difference" in found
    assert verdicts([MODEL], 50) == ()


def test_all_tokens_move_the_values_to_later() -> None:
    """Ten tokens of prompt and two of an answer come before each value: the first is at 12."""
    (first, _), _ = curves_of(replace(MODEL, counted="all")).values()
    assert first.tokens.tolist() == [12.0, 52.0]


def test_areas_of_the_first_episodes() -> None:
    """To 60 tokens, of the whole: (40 / 60 + 22.5 / 60) / 2 and 1. Without an episode: 0.5 and 1. With one: the first
    trace is whole, and the second one holds 0.5.
    """
    whole = (40 + 22.5) / 120
    found = area_ratios(curves_of(MODEL), 60)
    assert [area.mean for area in found] == pytest.approx(
        [(0.5 + 1) / (whole + 1), ((40 + 30) / 120 + 1) / (whole + 1), 1.0]
    )
    assert (found[2].low, found[2].high) == pytest.approx((1.0, 1.0))


def test_areas_of_values_of_nothing_are_not_compared() -> None:
    never = model({"a": (trace("X", 9, boundary(0, "XX"), boundary(8, "XX")),)})
    assert area_ratios(curves_of(never), 9) == ()


def test_budgets_are_even_and_end_at_the_longest_trace() -> None:
    assert even_budgets(3) == [1, 2, 3]
    assert even_budgets(6400)[:2] + even_budgets(6400)[-1:] == [200, 400, 6400]


@pytest.mark.parametrize(("counted", "largest"), [("sampled", 70), ("all", 72)])
def test_default_budgets_end_at_the_last_boundary_where_it_has_more_tokens(counted: Counted, largest: int) -> None:
    """The longest trace has 70 tokens; an answer after 60 of them takes 12 more with prompt and answer."""
    table = analyse_regret([replace(MODEL, counted=counted)], ()).tables[0]
    assert max(row[1] for row in table.rows) == largest


# -- scaling


def test_votes_at_prefixes_of_two_problems() -> None:
    """With one voter the share of right answers: 1/2 and 1; 3/4, 1/2 and 1; a trace of one episode stays at 3/4."""
    one = prefix_curve(MODEL, 1)
    assert means(one) == pytest.approx([0.75, ((0.75 + 0.5) / 2 + 1) / 2, ((0.75 + 0) / 2 + 1) / 2])
    assert tokens(one) == pytest.approx([2, ((42 + 32) / 2 + 12) / 2, ((42 + 62) / 2 + 12) / 2])
    # of four voters, RRXY is right, XXRR a tie, RRRX right, XXXX wrong
    four = prefix_curve(MODEL, 4)
    assert means(four) == pytest.approx([1.0, ((1 + 0.5) / 2 + 1) / 2, ((1 + 0) / 2 + 1) / 2])
    assert tokens(four)[0] == pytest.approx(8)


def test_complete_samples_of_two_problems() -> None:
    """Of two samples of the first problem one is right: as one voter, and as a tie of two; one of two is right."""
    votes, passes = direct_curves(MODEL)
    assert tokens(votes) == tokens(passes) == pytest.approx([40, 80])  # means of 60 and 20 tokens
    assert means(votes) == pytest.approx([0.75, 0.75])
    assert means(passes) == pytest.approx([0.75, 1.0])
    assert accuracy_at(passes, 60) == pytest.approx(0.875)
    assert np.isnan(accuracy_at(passes, 39))


def test_votes_of_more_than_the_answers_are_left_out_and_named() -> None:
    assert votes_of(MODEL) == [1, 2, 4]
    assert "only 4 answers were forced at a prefix, so maj@8 is left out" in analyse_scaling([MODEL]).remarks[1]


def test_a_model_that_does_not_think_stands_beside_the_votes() -> None:
    direct = unvalued({"a": ("R", 5), "b": ("X", 5)}, "direct")
    found = analyse_scaling([MODEL, direct])
    (figure,) = found.figures
    assert [line.label for line in figure.panels[0].lines][-2:] == [
        "maj@k, complete samples of direct", "pass@k, complete samples of direct",
    ]  # fmt: skip
    assert ("direct", "maj@k", 1, 5.0, 0.5) in [row[:5] for row in found.tables[0].rows]
    with pytest.raises(UserError, match="mrt-hpc eval runs/direct --suite"):
        analyse_scaling([direct])


# -- progress


def test_progress_by_episode_is_over_the_traces_that_have_it() -> None:
    """Episode 0: 0.25, 0, 0, 0; episode 1: -0.5 of one trace."""
    first, second = progress_by_episode(PROBLEMS)
    assert (first.mean.mean, first.traces, first.problems) == (pytest.approx(0.25 / 4), 4, 2)
    assert (second.mean.mean, second.traces, second.problems) == (pytest.approx(-0.5), 1, 1)


def test_progress_is_split_by_outcome_and_difficulty() -> None:
    curves = list(progress_curves(MODEL, {"a": Difficulty.HARD, "b": Difficulty.EASY}))
    assert {(c.split, c.part): [e.mean.mean for e in c.episodes] for c in curves} == {
        ("none", "all"): pytest.approx([0.0625, -0.5]),
        ("outcome", "right"): pytest.approx([0.25 / 3]),
        ("outcome", "wrong"): pytest.approx([0.0, -0.5]),
        ("difficulty", "hard"): pytest.approx([0.125, -0.5]),
        ("difficulty", "easy"): pytest.approx([0.0]),
    }


def test_thirds_of_problems() -> None:
    accuracy = {"a": 0.0, "b": 0.1, "c": 0.5, "d": 0.5, "e": 0.9, "f": 1.0}
    assert [difficulties(accuracy)[p] for p in accuracy] == ["hard", "hard", "medium", "medium", "easy", "easy"]


@pytest.mark.parametrize(
    ("shares", "levels"),
    [
        ([0, 1, 1, 1], "hard easy easy easy"),
        ([0, 0.5, 1, 1, 1, 1, 1, 1], "hard hard" + 6 * " easy"),
        ([0, 0.5, 0.5, 0.5, 1], "hard medium medium medium easy"),
        ([0, 0.25, 0.5, 0.75], "hard medium medium easy"),
        ([0, 1], "hard easy"),
    ],
)
def test_problems_of_the_same_accuracy_are_in_the_same_third(shares: list[float], levels: str) -> None:
    """Also where all is turned round: what was hard is easy then."""
    accuracy = {str(n): share for n, share in enumerate(shares)}
    assert " ".join(difficulties(accuracy)[p] for p in accuracy) == levels
    mirrored = {"hard": "easy", "medium": "medium", "easy": "hard"}
    turned = {p: 1 - share for p, share in accuracy.items()}
    assert [difficulties(turned)[p] for p in turned] == [mirrored[level] for level in levels.split()]


def test_problems_of_one_accuracy_are_not_split() -> None:
    assert set(difficulties({"a": 1.0, "b": 1.0, "c": 1.0}).values()) == {Difficulty.MEDIUM}
    same = model({"a": PROBLEMS["b"], "b": PROBLEMS["b"]})
    assert "the problems are not split by difficulty" in analyse_progress([same]).remarks[0]
    assert "1 hard, 0 medium, 1 easy" in analyse_progress([MODEL]).remarks[0]


def test_a_problem_is_as_hard_for_all_models() -> None:
    other = unvalued({"a": ("R", 5), "b": ("X", 5)})
    assert mean_accuracy([MODEL, other]) == {"a": 0.75, "b": 0.5}
    with pytest.raises(UserError, match="were not valued"):
        analyse_progress([MODEL, other])


# -- efficiency


def test_accuracy_within_tokens_of_valued_traces() -> None:
    """First trace: 0.5 to 0.75 at 40, held to 49, right at 50. Second: 0.5 to 30, then to 0 at 60, wrong."""
    found = accuracy_within(PROBLEMS["a"], np.array([0.0, 20.0, 45.0, 50.0, 100.0]))
    assert found == pytest.approx([0.5, (0.625 + 0.5) / 2, (0.75 + 0.25) / 2, (1 + 0.5 * 10 / 30) / 2, 0.5])


SHORT = unvalued({"a": ("R", 64), "b": ("R", 128)}, "short")
LONG = unvalued({"a": ("R", 128), "b": ("R", 256)}, "long")
"""Allowed tokens grow by one up to 256: half of the problems at 64 and 128, all at 128 and 256."""


def test_tokens_to_an_accuracy_and_their_ratio() -> None:
    """A draw has a problem twice in one case of four each: the accuracy then rises from 0 to 1 within one token."""
    short, long = tokens_to(efficiencies([SHORT, LONG]), 0.5, seed=1)
    assert short.tokens == IntervalEstimate(64.0, 63.5, 127.5)
    assert long.tokens == IntervalEstimate(128.0, 127.5, 255.5)
    assert long.ratio == IntervalEstimate(2.0, 2.0, pytest.approx(127.5 / 63.5))
    assert short.ratio == IntervalEstimate(1.0, 1.0, 1.0)


def test_an_accuracy_that_is_not_reached_is_told_plainly() -> None:
    half = unvalued({"a": ("R", 64), "b": ("X", 256)}, "half")
    short, found = tokens_to(efficiencies([SHORT, half]), 0.9, seed=1)
    assert np.isfinite(short.tokens.mean)
    assert found.tokens.mean == found.ratio.mean == np.inf
    assert tokens_text(found.tokens) == "not reached (64 to not reached)"
    assert ratio_text(found.ratio).startswith("infinite (")
    both = tokens_to(efficiencies([half, half]), 0.9, seed=1)[1]
    assert ratio_text(both.ratio) == "neither reaches it"
    assert 0.6 < both.undefined < 0.9  # three draws in four have the problem that is never right
    table = analyse_efficiency([SHORT, half], [0.9], 1).tables[1]
    assert [row[2] for row in table.rows] == [pytest.approx(127.8), "not reached"]


def test_ratios_and_percentiles_of_what_is_not_reached() -> None:
    ratios = ratio_of_tokens(np.array([0.0, np.inf, 5.0, np.inf]), np.array([0.0, 5.0, np.inf, np.inf]))
    assert ratios[:3].tolist() == [1.0, np.inf, 0.0]
    assert np.isnan(ratios[3])
    assert percentiles(2.0, np.array([1.0, np.inf, np.nan]), 2) == IntervalEstimate(2.0, 1.0, np.inf)
    assert np.isnan(percentiles(2.0, np.array([np.nan]), 2).low)


def test_default_accuracies_are_reached_by_all() -> None:
    half = unvalued({"a": ("R", 64), "b": ("X", 256)}, "half")
    assert default_levels(efficiencies([SHORT, half])) == [0.25, 0.35, 0.45]


def test_where_a_model_is_never_right_levels_have_to_be_named() -> None:
    never = unvalued({"a": ("X", 64), "b": ("X", 256)}, "never")
    told = "never has no accuracy above 0: name levels with --accuracy 0.1,0.2"
    assert analyse_efficiency([never], [], 1).remarks[-1] == told
    assert analyse_efficiency([SHORT, never], [], 1).remarks[-1] == told
    both = analyse_efficiency([never, replace(never, name="nor")], [], 1)
    assert both.remarks[-1].startswith("never and nor have no accuracy")
    assert not analyse_efficiency([SHORT, never], [0.1], 1).remarks[-1].endswith("0.1,0.2")


@pytest.mark.parametrize("right", [1, 2, 3, 7])
def test_small_default_accuracies_are_neither_0_nor_above_the_best(right: int) -> None:
    """Of 500 problems so many are right: 0.2, 0.4, 0.6 and 1.4 %."""
    found = efficiencies([unvalued({str(n): ("R" if n < right else "X", 64) for n in range(500)})])
    levels = default_levels(found)
    assert levels == pytest.approx([right / 500 * share for share in (0.5, 0.7, 0.9)], rel=0.05)
    assert max(levels) < right / 500
    assert all(np.isfinite(tokens_to(found, level, seed=1)[0].tokens.mean) for level in levels)
    shown = [row[1] for row in analyse_efficiency([unvalued({"a": ("R", 9), "b": ("X", 9)})], [0.0018], 1).summary.rows]
    assert shown == ["0.18%"]


def test_a_single_problem_gives_no_interval() -> None:
    one = [unvalued({"a": ("R", length)}, name) for name, length in (("short", 64), ("long", 128))]
    short, long = tokens_to(efficiencies(one), 0.5, seed=1)
    assert np.isnan([short.tokens.low, short.tokens.high, long.ratio.low, long.ratio.high]).all()
    assert tokens_text(short.tokens).endswith(" (no interval)")
    assert ratio_text(long.ratio) == "2.00 (no interval)"
    found = analyse_efficiency(one, [0.5], 1)
    assert "a single problem tells nothing of others" in found.remarks[-1]
    assert ",," in as_csv(found.tables[1])
