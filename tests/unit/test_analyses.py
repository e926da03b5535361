"""Analyses of few problems against arithmetic worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from evaluated import PROBLEMS, boundary, model, trace, unvalued
from scipy.stats import t as student

from mrt_hpc.analysis import efficiency, scaling
from mrt_hpc.analysis.accuracy_by_budget import AccuracyAt, analyse_extrapolation, extrapolation_of
from mrt_hpc.analysis.analysis_files import as_csv
from mrt_hpc.analysis.efficiency import analyse_efficiency, default_levels, efficiencies, ratio_text, tokens_to
from mrt_hpc.analysis.episode_progress import (
    Difficulty,
    analyse_progress,
    difficulties,
    mean_accuracy,
    progress_by_episode,
    progress_curves,
)
from mrt_hpc.analysis.intervals import IntervalEstimate
from mrt_hpc.analysis.problem_measures import curves_of
from mrt_hpc.analysis.regret_by_budget import (
    ModelRegret,
    analyse_regret,
    area_ratios,
    even_budgets,
    regret_of,
    verdicts,
)
from mrt_hpc.analysis.scaling import ScalingCurve, ScalingPoint, analyse_scaling, direct_curves, prefix_curve
from mrt_hpc.errors import UserError
from mrt_hpc.mrt.votes import RIGHT
from mrt_hpc.recipe.kinds import MODES
from mrt_hpc.run.groups import RolloutOutcome

if TYPE_CHECKING:
    from mrt_hpc.analysis.model_samples import Counted, ModelSamples

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


@pytest.mark.parametrize(("counted", "largest"), [("sampled", 70), ("all", 72)])
def test_default_budgets_end_at_the_last_boundary_where_it_has_more_tokens(counted: Counted, largest: int) -> None:
    """The longest trace has 70 tokens; an answer after 60 of them takes 12 more with prompt and answer."""
    table = analyse_regret([replace(MODEL, counted=counted)], ()).tables[0]
    assert max(row[1] for row in table.rows) == largest
    assert even_budgets(3) == [1, 2, 3]
    assert even_budgets(6400)[:2] + even_budgets(6400)[-1:] == [200, 400, 6400]


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
    assert scaling.accuracy_at(passes, 60) == pytest.approx(0.875)
    assert np.isnan(scaling.accuracy_at(passes, 39))


def test_a_model_that_does_not_think_stands_beside_the_votes() -> None:
    direct = unvalued({"a": ("R", 5), "b": ("X", 5)}, "direct")
    found = analyse_scaling([MODEL, direct])
    (figure,) = found.figures
    assert [line.label for line in figure.panels[0].lines][-2:] == [
        "maj@k, complete samples of direct", "pass@k, complete samples of direct",
    ]  # fmt: skip
    assert ("direct", "maj@k", 1, 5.0, 0.5) in [row[:5] for row in found.tables[0].rows]
    assert scaling.votes_of(MODEL) == [1, 2, 4]
    assert "maj@8" in analyse_scaling([MODEL]).remarks[1], "of more votes than answers is said that they are left out"
    with pytest.raises(UserError) as refused:
        analyse_scaling([direct])
    assert refused.value.advice == "mrt-hpc eval runs/direct --suite paper_regret"


# -- whether thinking on pays


LAST = {str(n): 0.5 + n / 100 for n in range(10)}


def before(gain: float, spread: float) -> dict[str, float]:
    """The accuracies from which the last ones gain so much, by turns more and less by ``spread``."""
    return {p: last - gain - spread * (-1) ** n for n, (p, last) in enumerate(LAST.items())}


def votes(*earlier: dict[str, float], last: dict[str, float] = LAST) -> ScalingCurve:
    """Votes of four at prefixes that take 1,000 tokens, 500 more at each episode."""
    points = [ScalingPoint(j, 1000 + 500 * j, accuracy) for j, accuracy in enumerate((*earlier, last))]
    return ScalingCurve("m", "maj@4 at prefix", tuple(points), voters=4)


def complete(*tokens: float) -> ScalingCurve:
    """Complete samples, of which one is right in 40 % and two in 70 %."""
    points = [ScalingPoint(k, tokens[k - 1], dict.fromkeys(LAST, share)) for k, share in ((1, 0.4), (2, 0.7))]
    return ScalingCurve("m", "maj@k", tuple(points))


def test_the_last_vote_is_compared_with_each_earlier_one() -> None:
    """Ten gains of 0.45 and 0.35 by turns have a standard deviation of 0.05 sqrt(10 / 9), and a standard error of 0.05
    / 3; those of 0.12 and -0.08 one of 0.1 / 3. The smaller p-value is doubled.
    """
    curve = votes(before(0.4, 0.05), before(0.02, 0.1))
    first, second = scaling.earlier_votes(curve)
    assert (first.gain.mean, first.gain.error) == pytest.approx((0.4, 0.05 / 3))
    assert first.corrected_p == pytest.approx(2 * 2 * student.sf(24, 9))
    assert second.gain.p_value == second.corrected_p == pytest.approx(2 * student.sf(0.6, 9))
    assert (first.saved, second.saved) == (1000, 500)
    assert (first.is_beaten, second.is_beaten) == (True, False)
    half = student.ppf(0.975, 9) * 0.1 / 3
    row = scaling.table_of_earlier_votes([curve]).rows[1]
    assert row[2:8] == pytest.approx((1, 1500, 500, 0.02, 0.02 - half, 0.02 + half))


SMALLEST = 100 * (student.ppf(1 - 0.05 / 4, 9) + student.ppf(0.8, 9)) * 0.1 / 3
"""Two comparisons are corrected together: (t(0.9875) + t(0.8)) standard errors of 0.1 / 3 are 11.9 points."""


@pytest.mark.parametrize(
    ("curve", "facts"),
    [
        (votes(before(0.4, 0.05), before(0.02, 0.1)),
         ["episode 1 would have done as well", "500 of 2,000", f"can show {SMALLEST:.1f} points"]),
        (votes(before(0.4, 0.05), before(0.2, 0.05)), ["gains 20 points or more"]),
        (votes(before(0.4, 0.05), before(-0.1, 0.01)), ["episode 1 is better by 10 points", "500 of 2,000"]),
        (votes({"0": 0.2}, last={"0": 0.5}), ["cannot be known", "a single problem"]),
        (votes({"0": 0.2, "1": 0.9}, last={"0": 0.9, "1": 0.2}), ["cannot be known", "n = 2 problems"]),
        (votes(), ["None"]),
    ],
)  # fmt: skip
def test_the_verdict_names_the_earliest_vote_that_would_have_done(curve: ScalingCurve, facts: list[str]) -> None:
    told = str(scaling.progress_verdict(curve))
    assert all(fact in told for fact in facts), told


def test_complete_samples_of_equal_tokens_are_paired_by_problem() -> None:
    """2,000 tokens are a third of the way from 1,500 to 3,000: an accuracy of 0.5. The last vote has 0.50, 0.51 ..
    0.59: 0.045 more, with a standard error of 0.0302765 / sqrt(10) = 0.0095743.
    """
    curve = votes({}, {})
    found = scaling.equal_tokens(curve, complete(1500, 3000))
    assert found is not None
    assert (found.complete, found.gain.mean, found.gain.error) == pytest.approx((0.5, 0.045, 0.0095743), abs=1e-6)
    for tokens, facts in (
        ((1500, 3000), ["+0.045 (+0.023 to +0.067)", "better by 4.5 points"]),
        ((2500, 5000), ["not compared", "2,000", "2,500"]),
        ((500, 1000), ["not compared", "2,000", "1,000"]),
    ):
        told = scaling.equal_tokens_verdict(curve, complete(*tokens))
        assert all(fact in told for fact in facts), told
    (row,) = scaling.table_of_equal_tokens([(curve, complete(1500, 3000)), (curve, complete(2001, 4002))]).rows
    assert row[2:6] == pytest.approx((2000, 0.545, 0.5, 0.045))


def test_the_analysis_has_two_verdicts_a_model_and_their_tables() -> None:
    """Problem ``a`` of the samples loses by thinking on, ``b`` stays: [maj@4]_j is 1, 0.875 and 0.75 with 8, 34.5 .."""
    never = model({p: (trace("X", 9, boundary(0, "XX"), boundary(9, "XX")),) * 2 for p in PROBLEMS}, "never")
    found = analyse_scaling([MODEL, never])
    assert [verdict.split(" at the ")[0] for verdict in found.verdicts] == [
        "model, maj@4", "model, maj@4", "never, maj@2", "never, maj@2",
    ]  # fmt: skip
    assert [table.name for table in found.tables] == ["scaling", "earlier_votes", "equal_tokens"]
    earlier = {row[:3]: row[5] for row in found.tables[1].rows}
    assert earlier["model", "maj@4 at prefix", 0] == pytest.approx(-0.25)
    assert earlier["model", "maj@4 at prefix", 1] == pytest.approx(-0.125)


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


@pytest.mark.parametrize(
    ("shares", "levels"),
    [
        ([0, 0.1, 0.5, 0.5, 0.9, 1], "hard hard medium medium easy easy"),
        ([0, 1, 1, 1], "hard easy easy easy"),
        ([0, 0.5, 1, 1, 1, 1, 1, 1], "hard hard" + 6 * " easy"),
        ([0, 0.5, 0.5, 0.5, 1], "hard medium medium medium easy"),
        ([0, 0.25, 0.5, 0.75], "hard medium medium easy"),
        ([0, 1], "hard easy"),
        ([1, 1, 1], "medium medium medium"),
    ],
)
def test_problems_of_the_same_accuracy_are_in_the_same_third(shares: list[float], levels: str) -> None:
    """Also where all is turned round: what was hard is easy then."""
    accuracy = {str(n): share for n, share in enumerate(shares)}
    assert " ".join(difficulties(accuracy)[p] for p in accuracy) == levels
    mirrored = {"hard": "easy", "medium": "medium", "easy": "hard"}
    turned = {p: 1 - share for p, share in accuracy.items()}
    assert [difficulties(turned)[p] for p in turned] == [mirrored[level] for level in levels.split()]


def test_the_analysis_says_how_hard_its_problems_are() -> None:
    assert "1 hard, 0 medium, 1 easy" in analyse_progress([MODEL]).remarks[0]
    same = analyse_progress([model({"a": PROBLEMS["b"], "b": PROBLEMS["b"]})])
    assert not any("hard" in row for table in same.tables for row in table.rows)


def test_a_problem_is_as_hard_for_all_models() -> None:
    other = unvalued({"a": ("R", 5), "b": ("X", 5)})
    assert mean_accuracy([MODEL, other]) == {"a": 0.75, "b": 0.5}
    with pytest.raises(UserError):
        analyse_progress([MODEL, other])


# -- efficiency


def test_accuracy_within_tokens_of_valued_traces() -> None:
    """First trace: 0.5 to 0.75 at 40, held to 49, right at 50. Second: 0.5 to 30, then to 0 at 60, wrong."""
    found = efficiency.accuracy_within(PROBLEMS["a"], np.array([0.0, 20.0, 45.0, 50.0, 100.0]))
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
    assert efficiency.tokens_text(found.tokens) == "not reached (64 to not reached)"
    assert ratio_text(found.ratio).startswith("infinite (")
    both = tokens_to(efficiencies([half, half]), 0.9, seed=1)[1]
    assert ratio_text(both.ratio) == "neither reaches it"
    assert 0.6 < both.undefined < 0.9  # three draws in four have the problem that is never right
    table = analyse_efficiency([SHORT, half], [0.9], 1).tables[1]
    assert [row[2] for row in table.rows] == [pytest.approx(127.8), "not reached"]


def test_ratios_and_percentiles_of_what_is_not_reached() -> None:
    ratios = efficiency.ratio_of_tokens(np.array([0.0, np.inf, 5.0, np.inf]), np.array([0.0, 5.0, np.inf, np.inf]))
    assert ratios[:3].tolist() == [1.0, np.inf, 0.0]
    assert np.isnan(ratios[3])
    assert efficiency.percentiles(2.0, np.array([1.0, np.inf, np.nan]), 2) == IntervalEstimate(2.0, 1.0, np.inf)
    assert np.isnan(efficiency.percentiles(2.0, np.array([np.nan]), 2).low)


def test_default_accuracies_are_reached_by_all_or_have_to_be_named() -> None:
    half = unvalued({"a": ("R", 64), "b": ("X", 256)}, "half")
    assert default_levels(efficiencies([SHORT, half])) == [0.25, 0.35, 0.45]
    never = unvalued({"a": ("X", 64), "b": ("X", 256)}, "never")
    for models, levels, named in (
        ([never], [], "never has"), ([SHORT, never], [], "never has"),
        ([never, replace(never, name="nor")], [], "never and nor have"), ([SHORT, never], [0.1], None),
    ):  # fmt: skip
        remark = analyse_efficiency(models, levels, 1).remarks[-1]
        assert "--accuracy 0.1,0.2" in remark if named else "--accuracy" not in remark
        assert remark.startswith(named or "")


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
    assert efficiency.tokens_text(short.tokens).endswith(" (no interval)")
    assert ratio_text(long.ratio) == "2.00 (no interval)"
    assert ",," in as_csv(analyse_efficiency(one, [0.5], 1).tables[1])


# -- extrapolation


BUDGETS = (64, 96, 128)


def extrapolated(name: str, **answers: tuple[str, str, str, str]) -> ModelSamples:
    """One trace a problem, whose forced answers at its four boundaries are given, R being right."""
    problems = {
        problem: (trace("R", 128, *(boundary(32 * j, forced) for j, forced in enumerate(mine))),)
        for problem, mine in answers.items()
    }
    return replace(model(problems, name), budgets=BUDGETS)


BETTER = extrapolated("better", a=("XX", "RX", "RX", "RR"), b=("XX", "XX", "RX", "RR"), c=("RX", "RR", "RR", "RR"))
WORSE = extrapolated("worse", a=("XX", "RX", "XX", "XX"), b=("XX", "XX", "XX", "RX"), c=("RX", "RR", "RR", "RX"))


def test_the_accuracy_at_a_budget_is_the_mean_value_of_its_boundary() -> None:
    found = extrapolation_of(BETTER)
    assert found.by_problem == (
        {"a": 0.5, "b": 0.0, "c": 1.0}, {"a": 0.5, "b": 0.5, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0},
    )  # fmt: skip
    assert [one.mean for one in found.accuracy] == pytest.approx([0.5, 2 / 3, 1.0])
    assert [one.mean for one in found.gain] == pytest.approx([0.0, 1 / 6, 0.5])
    both = {"a": (*BETTER.problems["a"], *WORSE.problems["a"]), "b": BETTER.problems["b"]}
    assert AccuracyAt(128, 3).values(replace(BETTER, problems=both)) == {"a": 0.5, "b": 1.0}


def test_the_tables_hold_every_budget_and_the_verdicts_its_gains() -> None:
    found = analyse_extrapolation([BETTER, WORSE])
    accuracy, gains = found.tables
    assert [row[:3] for row in accuracy.rows[:3]] == [("better", 64, 0.5), ("better", 96, 2 / 3), ("better", 128, 1.0)]
    assert [row[:3] for row in gains.rows] == [
        ("better", 96, pytest.approx(1 / 6)), ("better", 128, 0.5), ("worse", 96, pytest.approx(-1 / 6)),
        ("worse", 128, pytest.approx(-1 / 6)),
    ]  # fmt: skip
    assert found.verdicts[0].startswith("better, 128 against 64 tokens: +0.500")
    assert found.verdicts[2].startswith("accuracy at 128 tokens, worse against better: -0.667")


def test_other_evaluations_are_refused_with_the_command_that_makes_this_one() -> None:
    with pytest.raises(UserError) as refused:
        analyse_extrapolation([BETTER, replace(WORSE, budgets=())])
    assert refused.value.advice == "mrt-hpc eval runs/worse --suite paper_extrapolation"
    with pytest.raises(UserError):
        analyse_extrapolation([BETTER, replace(WORSE, budgets=(64, 96, 127))])


def test_the_way_of_evaluating_says_what_boundaries_stand_for_and_which_round_counts() -> None:
    kinds = {kind.model_fields["type"].default: kind for kind in MODES.classes}
    assert kinds["extrapolation"]().boundary_budgets(16384) == (16384, 20480, 24576, 28672, 32768)
    assert kinds["direct"]().boundary_budgets(16384) == ()
    rounds = [RolloutOutcome("p", n, "7", RIGHT, [0], 3, stage=n, stages=3) for n in range(3)]
    assert [one.counts for one in rounds] == [False, False, True]
