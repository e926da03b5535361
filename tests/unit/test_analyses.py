"""Analyses of few problems against arithmetic worked out by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from commands import refusal
from evaluated import PROBLEMS, boundary, model, trace, unvalued
from samples import rollout_with, sampled
from scipy.stats import t as student
from tables import tables

from mrt_hpc.analysis import efficiency, episode_progress, model_samples, scaling
from mrt_hpc.analysis.accuracy_by_budget import AccuracyAt, analyse_extrapolation
from mrt_hpc.analysis.efficiency import analyse_efficiency, default_levels, efficiencies, ratio_text, tokens_to
from mrt_hpc.analysis.episode_progress import Difficulty
from mrt_hpc.analysis.findings import Point, gain_table, table_csv
from mrt_hpc.analysis.intervals import IntervalEstimate, mean_gain
from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, GradedAnswer, ModelSamples
from mrt_hpc.analysis.problem_measures import Regret, curves_of, tokens_at
from mrt_hpc.analysis.regret_curves import analyse_regret, area_ratios, even_budgets
from mrt_hpc.analysis.scaling import ScalingCurve, analyse_scaling
from mrt_hpc.recipe.choices import Boundaries
from mrt_hpc.run.groups import Outcomes, RolloutOutcome
from mrt_hpc.run.records import FinishReason

MODEL = model(PROBLEMS)


def test_differences_of_regret_are_corrected_for_all_budgets_and_models() -> None:
    """Ten differences of 0.12 and -0.08 by turns have a standard error of 0.1 / 3, so t = 0.6 with 9 degrees of
    freedom; those of 0.45 and 0.35 have t = 24. Both are tested at two budgets of one model.
    """
    rows, corrected = gain_table("t", ("model", "gain"), [(("m",), mean_gain([(before(*g), LAST)])) for g in GAINS])
    p = [2 * student.sf(0.6, 9), 2 * student.sf(24, 9)]
    assert [row[4] for row in rows.rows] == pytest.approx(p)
    assert corrected == [row[5] for row in rows.rows] == pytest.approx([p[0], 2 * p[1]])
    both = [replace(MODEL, name=name) for name in ("first", "second", "third")]
    found = analyse_regret(both, [30, 60])
    assert found.tables[2].columns[-2:] == ("p", "corrected_p") and len(found.tables[2].rows) == 4
    assert "corrected for the 4 shown" in found.remarks[-2]
    assert not analyse_regret(both[:1], [30, 60]).remarks


def test_the_sentence_on_the_last_budget_has_the_correction_of_its_row() -> None:
    """Gains of 0.25 and -0.03 by turns on ten problems, t = 2.36: p is 0.043 at one budget, and 0.086 at two."""

    def one(name: str, gains: Sequence[float]) -> ModelSamples:
        ends = [(EvaluatedBoundary(0, gain, ()), EvaluatedBoundary(100, gain, ())) for gain in gains]
        return model({f"p{i}": (EvaluatedTrace(0.0, None, 100, end),) for i, end in enumerate(ends)}, name)

    models = [one("first", [0.4] * 10), one("second", [0.4 + gain for gain in (0.25, -0.03) * 5])]
    for budgets, shown in (([100], True), ([50, 100], False)):
        found = analyse_regret(models, budgets)
        assert (found.tables[2].rows[-1][-1] < 0.05) is shown
        assert ("second is better" in found.verdicts[0]) is shown
        assert ("after the correction" in found.verdicts[0]) is not shown


def test_areas_of_the_first_episodes() -> None:
    """To 60 tokens, of the whole: (40 / 60 + 22.5 / 60) / 2 and 1. Without an episode: 0.5 and 1. With one: the first
    trace is whole, and the second one holds 0.5.
    """
    whole = (40 + 22.5) / 120
    found = area_ratios(curves_of(MODEL), 60)
    areas = [(0.5 + 1) / (whole + 1), ((40 + 30) / 120 + 1) / (whole + 1), 1.0]
    assert [area.mean for area in found] == pytest.approx(areas)
    assert (found[2].low, found[2].high) == pytest.approx((1.0, 1.0))
    never = model({"a": (trace("X", 9, boundary(0, "XX"), boundary(8, "XX")),)})
    assert area_ratios(curves_of(never), 9) == (), "areas of values of nothing are not compared"


def test_default_budgets_end_at_the_last_boundary_where_it_has_more_tokens() -> None:
    """The longest trace has 70 tokens; an answer after 60 of them takes 12 more with prompt and answer."""
    for counted, largest in (("sampled", 70), ("all", 72)):
        assert max(row[1] for row in analyse_regret([replace(MODEL, counted=counted)], ()).tables[0].rows) == largest
    limited = replace(MODEL, counted="all", limit=71)
    assert max(row[1] for row in analyse_regret([limited, replace(MODEL, counted="all")], ()).tables[0].rows) == 71
    refused = refusal(analyse_regret, [limited], [64, 72])
    assert (refused.where, refused.advice) == ("--budgets", "--budgets 71")
    assert even_budgets(3) == [1, 2, 3]
    assert even_budgets(6400)[:2] + even_budgets(6400)[-1:] == [200, 400, 6400]


def test_a_model_that_does_not_think_stands_beside_the_votes() -> None:
    direct = unvalued({"a": ("R", 5), "b": ("X", 5)}, "direct")
    found = analyse_scaling([MODEL, direct])
    assert {"maj@k, complete samples of direct", "pass@k, complete samples of direct"} <= {
        line.label for line in found.figures[0].panels[0].lines
    }
    assert ("direct", "maj@k", 1, 5.0, 0.5) in [row[:5] for row in found.tables[0].rows]
    assert scaling.votes_of(MODEL) == [1, 2, 4]
    # problem ``a`` loses by thinking on, ``b`` stays: [maj@4]_j is 1, 0.875 and 0.75
    earlier = {row[:3]: row[5] for row in found.tables[1].rows}
    assert [earlier["model", "maj@4 at prefix", j] for j in (0, 1)] == pytest.approx([-0.25, -0.125])
    advice = f"mrt-hpc eval runs/direct {model_samples.prover_options(direct)}"
    assert refusal(analyse_scaling, [direct]).advice == advice


LAST = {str(n): 0.5 + n / 100 for n in range(10)}
GAINS = ((0.02, 0.1), (0.4, 0.05))


def before(gain: float, spread: float) -> dict[str, float]:
    """The accuracies from which the last ones gain so much, by turns more and less by ``spread``."""
    return {p: last - gain - spread * (-1) ** n for n, (p, last) in enumerate(LAST.items())}


def votes(*earlier: dict[str, float], last: dict[str, float] = LAST) -> ScalingCurve:
    """Votes of four at prefixes that take 1,000 tokens, 500 more at each episode."""
    points = [Point((j, 1000 + 500 * j), accuracy) for j, accuracy in enumerate((*earlier, last))]
    return ScalingCurve(("m", "maj@4 at prefix"), tuple(points), voters=4)


def complete(*tokens: float) -> ScalingCurve:
    """Complete samples, of which one is right in 40 % and two in 70 %."""
    points = [Point((k, tokens[k - 1]), dict.fromkeys(LAST, share)) for k, share in ((1, 0.4), (2, 0.7))]
    return ScalingCurve(("m", "maj@k"), tuple(points))


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


MANY = {str(n): 0.7 for n in range(400)}
LOSSES = [0.02 + 0.1 * (-1) ** n for n in range(400)]
"""Of 400 problems 200 lose 12 points by stopping earlier, and 200 gain 8: 2 points on average."""


def less(share: float, of: dict[str, float] = MANY) -> dict[str, float]:
    """The accuracies from which those of 400 problems gain this share of the losses above."""
    return {p: last - share * loss for (p, last), loss in zip(of.items(), LOSSES, strict=True)}


def test_a_vote_is_as_good_only_if_its_loss_is_shown_to_lie_within_the_margin() -> None:
    """400 gains and one more of 1 and one of -1, for a share s of the losses: the mean is 8 s / 402, the sum of squares
    400 s^2 (0.02^2 + 0.1^2) + 2. The interval ends at the mean and t(401) standard errors: only for s = 1 that is not
    as good within 2 points. What lies before it is not as good either.
    """
    curve = votes(less(0.1), less(1), less(0.5), less(0.1), last=MANY)
    found = scaling.earlier_votes(curve)
    assert [vote.loss.high for vote in found] == pytest.approx([0.0089835, 0.0318949, 0.0184313, 0.0089835], rel=1e-5)
    assert [vote.as_good for vote in found] == [False, False, True, True]
    assert not any(vote.as_good for vote in scaling.earlier_votes(curve, 0.0089))
    assert all(vote.as_good for vote in scaling.earlier_votes(curve, 0.04))


def test_the_problems_that_can_show_that_nothing_is_lost() -> None:
    """Each problem gains 0.1 and loses 0.1 in turn, but for the two that are added: (t(0.975) + t(0.9)) standard errors
    are just within the margin.
    """
    needed = scaling.problems_to_show(0.01, 0.02)
    width = [
        (student.ppf(0.975, n + 1) + student.ppf(0.9, n + 1)) * np.sqrt((0.01 * n + 2) / (n + 1) / (n + 2))
        for n in (needed - 1, needed)
    ]
    assert width[0] > 0.02 >= width[1]


NEAR = {p: last - 0.01 - 0.09 * (-1) ** n for n, (p, last) in enumerate(MANY.items())}
"""A loss of 1 point with a standard error of 0.45, and of 0.57 with the two that are added: p is 0.027, twice that for
two votes, and the interval ends at 2.1 points.
"""


@pytest.mark.parametrize(("curve", "facts"), [
    (
        votes(before(0.4, 0.05), before(0.02, 0.1)),
        ["at episode 1 the loss is +2.0", "10 problems; about 420 problems would", "before episode 1", "gains 40"],
    ),
    (votes(before(0.4, 0.05), before(0.2, 0.05)), ["gains 20 points or more"]),
    (votes(before(0.4, 0.05), before(-0.1, 0.01)), ["episode 1 is better by 10 points", "500 of 2,000"]),
    (votes({"0": 0.2}, last={"0": 0.9}), ["cannot be told", "a single problem"]),
    (votes(less(1), less(0.5), last=MANY), ["episode 1 is as good", "within 2 points", "+1.0", "500 of 2,000"]),
    (votes(NEAR, NEAR, last=MANY), ["cannot be told", "over 400 problems; so many problems would"]),
    (votes(), ["None"]),
])  # fmt: skip
def test_the_verdict_on_earlier_votes_says_what_is_shown_and_what_is_not(curve: ScalingCurve, facts: list[str]) -> None:
    found = str(scaling.progress_verdict(curve))
    assert all(fact in found for fact in facts), found


def test_complete_samples_of_equal_tokens_are_paired_by_problem() -> None:
    """2,000 tokens are a third of the way from 1,500 to 3,000: an accuracy of 0.5. The last vote has 0.50, 0.51 ..
    0.59: 0.045 more, with a standard error of 0.0302765 / sqrt(10) = 0.0095743.
    """
    curve = votes({}, {})
    found = scaling.equal_tokens(curve, complete(1500, 3000))
    assert found is not None
    assert (found.complete, found.gain.mean, found.gain.error) == pytest.approx((0.5, 0.045, 0.0095743), abs=1e-6)
    assert "better by 4.5 points" in scaling.equal_tokens_verdict(curve, complete(1500, 3000))
    for tokens in ((2500, 5000), (500, 1000)):
        assert "not compared" in scaling.equal_tokens_verdict(curve, complete(*tokens))
    (row,) = scaling.table_of_equal_tokens([(curve, complete(1500, 3000)), (curve, complete(2001, 4002))]).rows
    assert row[2:6] == pytest.approx((2000, 0.545, 0.5, 0.045))


def test_progress_is_split_by_outcome_and_difficulty() -> None:
    """By the first traces both problems are medium, which counts for the second ones; by the second ones ``a`` is hard
    and ``b`` easy, which counts for the first ones.
    """
    halves = episode_progress.difficulty_by_halves([MODEL])
    assert halves == ({"a": Difficulty.MEDIUM, "b": Difficulty.MEDIUM}, {"a": Difficulty.HARD, "b": Difficulty.EASY})
    curves = list(episode_progress.progress_curves(MODEL, halves))
    assert {c.names[1:]: [estimate.mean for estimate in c.estimates] for c in curves} == {
        ("none", "all"): pytest.approx([0.0625, -0.5]),
        ("outcome", "right"): pytest.approx([0.25 / 3]),
        ("outcome", "wrong"): pytest.approx([0.0, -0.5]),
        ("difficulty", "hard"): pytest.approx([0.25]),
        ("difficulty", "medium"): pytest.approx([0.0, -0.5]),
        ("difficulty", "easy"): pytest.approx([0.0]),
    }
    single = episode_progress.analyse_progress([model({p: traces[:1] for p, traces in PROBLEMS.items()})])
    assert "not split by difficulty" in single.remarks[0] and len(single.figures[1].panels) == 1


def test_problems_of_the_same_accuracy_are_in_the_same_third_for_all_models() -> None:
    mirrored = {"hard": "easy", "medium": "medium", "easy": "hard"}
    for shares, levels in tables("analyses")["thirds"]:
        accuracy, turned = ({str(n): abs(far - share) for n, share in enumerate(shares)} for far in (0, 1))
        hard, easy = (episode_progress.difficulties(one) for one in (accuracy, turned))
        assert [hard[p] for p in accuracy] == [mirrored[easy[p]] for p in accuracy] == levels.split()
    other = unvalued({"a": ("R", 5), "b": ("X", 5)})
    assert episode_progress.mean_accuracy([MODEL, other], 0) == {"a": 1.0, "b": 0.5}
    assert episode_progress.mean_accuracy([MODEL, other], 1) == {"a": 0.0, "b": 1.0}, "one model alone has these"
    refusal(episode_progress.analyse_progress, [MODEL, other])


def test_accuracy_within_tokens_of_valued_traces() -> None:
    """A forced answer takes 2 tokens. First trace: 0.5 at 2 tokens to 0.75 at 42, held to 49, right at 50. Second: 0.5
    from 2 to 32, then to 0 at 62, wrong. Below 2 tokens there is no answer.
    """
    traces = [efficiency.limited_trace(one, "sampled") for one in PROBLEMS["a"]]
    found = efficiency.accuracy_within(traces, np.array([0.0, 1.9, 22.0, 47.0, 50.0, 100.0]))
    assert found == pytest.approx([0, 0, (0.625 + 0.5) / 2, (0.75 + 0.25) / 2, (1 + 0.5 * 12 / 30) / 2, 0.5])


def test_an_answer_is_forced_from_a_trace_that_the_limit_cut() -> None:
    """A cut thought of 60 tokens, worth 0.75 at its end, has no answer of its own. An answer there takes 2 more."""
    cut = replace(trace("Z", 60, boundary(0, "XXXX"), boundary(60, "RRRX")), answer=None, is_cut=True)
    allowed = np.array([61.0, 62.0, 100.0])
    (found,), (ended,) = (
        [efficiency.accuracy_within([efficiency.limited_trace(one, "sampled")], allowed)]
        for one in (cut, replace(cut, is_cut=False))
    )
    assert found == pytest.approx([0.75 * 59 / 60, 0.75, 0.75])
    assert ended.tolist() == [0.0, 0.0, 0.0], "a trace that ended without an answer is complete"
    outcome = RolloutOutcome("p", 0, None, 0.0, FinishReason.LENGTH, [0], 3)
    stopped = replace(outcome, finish_reason=FinishReason.STOP)
    for one, told in ((outcome, True), (replace(outcome, answer="7"), False), (stopped, False)):
        assert model_samples.evaluated_problems([Outcomes([one], [], [])])["p"][0].is_cut is told


def long_answers(drawn: int, prompt: int = 200) -> ModelSamples:
    """A trace that thinks for 1,000 tokens, knows the answer after 500 of them, and answers in 400. Its prover draws so
    many answers of 400 tokens at each boundary; prompt and forced text have 200 together.
    """
    forced = (GradedAnswer("R", 1.0, 400, prompt), GradedAnswer("X", 0.0, 400, prompt))
    boundaries = [
        EvaluatedBoundary(tokens, value, tuple(replace(f, asked=prompt + tokens) for f in forced[:drawn]))
        for tokens, value in ((0, 0.0), (500, 1.0), (1000, 1.0))
    ]
    return model({"p": (trace("R", 1400, *boundaries),)}, "m")


def test_a_forced_answer_counts_as_the_answer_of_a_complete_trace_does() -> None:
    """The value rises from 0 to 1 within 500 tokens of thought: 0.9 after 450 of them, and after the 400 of an answer.
    With prompt and forced text these are 1,050. Without drawn answers their length is not known.
    """
    for counted, drawn, tokens in (("sampled", 2, 850), ("all", 2, 1050), ("sampled", 0, 450)):
        samples = replace(long_answers(drawn), counted=counted)
        (found,) = tokens_to(efficiencies([samples]), 0.9, seed=1)
        assert found.tokens.mean == pytest.approx(tokens)
        shown = " ".join(analyse_efficiency([samples], [0.9], 1).remarks)
        assert ("prompt, thought" in shown) == (counted == "all") and ("draws no answers" in shown) == (drawn == 0)
    complete = efficiency.limited_trace(long_answers(2).problems["p"][0], "all")
    assert complete.tokens == complete.most == 1600
    alone = long_answers(2).problems["p"][0]
    middle, asked = alone.boundaries[1], (("sampled", 0), ("sampled", 4), ("all", 0), ("all", 1))
    assert [tokens_at(middle, counted, n) for counted, n in asked] == [500, 2100, 700, 1100]
    with pytest.raises(ValueError, match="a boundary has no branch"):
        tokens_at(replace(middle, forced=()), "all", 0)
    assert refusal(efficiencies, [replace(long_answers(0), counted="all")]).advice == "--tokens sampled"


SHORT = unvalued({"a": ("R", 64), "b": ("R", 128)}, "short")
LONG = unvalued({"a": ("R", 128), "b": ("R", 256)}, "long")
"""Allowed tokens grow by one up to 256: half of the problems at 64 and 128, all at 128 and 256."""


def test_tokens_to_an_accuracy_and_their_ratio() -> None:
    """A draw has a problem twice in one case of four each: the accuracy then rises from 0 to 1 within one token."""
    short, long = tokens_to(efficiencies([SHORT, LONG]), 0.5, seed=1)
    assert (short.tokens, long.tokens) == (IntervalEstimate(64.0, 63.5, 127.5), IntervalEstimate(128.0, 127.5, 255.5))
    assert long.ratio == IntervalEstimate(2.0, 2.0, pytest.approx(127.5 / 63.5))
    assert short.ratio == IntervalEstimate(1.0, 1.0, 1.0)


def test_ratios_of_tokens_are_corrected_for_all_levels_and_models() -> None:
    """Of 2,000 draws, 19 lie on the other side of 1: p = 2 * 20 / 2,001, or 0.02965 by Student's t with 29 degrees of
    freedom. Three ratios of p 0.01, 0.02 and 0.5.
    """
    draws = np.concatenate([np.full(19, 0.9), np.full(1981, 1.2), [np.nan]])
    assert efficiency.p_of_ratio(draws, 10**6) == pytest.approx(40 / 2001, rel=1e-3)
    assert [efficiency.p_of_ratio(one, 30) for one in (draws, 1 / draws)] == pytest.approx([0.0296528] * 2, rel=1e-4)
    assert efficiency.p_of_ratio(np.full(2000, 1.2), 2) > 0.2, "two problems show little, whatever the draws are"
    assert efficiency.p_of_ratio(np.ones(9), 30) == efficiency.p_of_ratio(draws, 1) == 1.0
    one = tokens_to(efficiencies([SHORT]), 0.5, seed=1)[0]
    results = [replace(one, model=name, p=p) for name, p in (("short", 1), ("b", 0.02), ("c", 0.5), ("b", 0.01))]
    assert [r.corrected_p for r in efficiency.correct_ratios(results)] == pytest.approx([1.0, 0.04, 0.5, 0.03])
    shown = analyse_efficiency([SHORT, LONG], [0.5, 0.9], 1)
    assert "p of ratios other than 1 is corrected for the 2 shown" in " ".join(shown.remarks)
    assert "2 problems cannot show that a ratio is not 1: with 2 ratios" in " ".join(shown.remarks)
    many = [replace(m, problems={f"{p}{n}": t for p, t in m.problems.items() for n in range(8)}) for m in (SHORT, LONG)]
    assert "cannot show" not in " ".join(analyse_efficiency(many, [0.5, 0.9], 1).remarks)
    assert [row[-1] for row in shown.summary.rows] == ["", "0.46", "", "0.46"]


def test_an_accuracy_that_is_not_reached_is_infinite() -> None:
    half = unvalued({"a": ("R", 64), "b": ("X", 256)}, "half")
    short, found = tokens_to(efficiencies([SHORT, half]), 0.9, seed=1)
    assert np.isfinite(short.tokens.mean)
    assert found.tokens.mean == found.ratio.mean == np.inf
    assert efficiency.tokens_text(found.tokens) == "not reached (64 to not reached)"
    assert ratio_text(found.ratio).startswith("infinite (")
    both = tokens_to(efficiencies([half, half]), 0.9, seed=1)[1]
    assert ratio_text(both.ratio) == "neither reaches it"
    assert 0.6 < both.undefined < 0.9  # three draws in four have the problem that is never right
    assert efficiency.percentiles(2.0, np.array([1.0, np.inf, np.nan]), 2) == IntervalEstimate(2.0, 1.0, np.inf)
    assert np.isnan(efficiency.percentiles(2.0, np.array([np.nan]), 2).low)


def test_default_accuracies_are_reached_by_all_or_have_to_be_named() -> None:
    half = unvalued({"a": ("R", 64), "b": ("X", 256)}, "half")
    assert default_levels(efficiencies([SHORT, half])) == [0.25, 0.35, 0.45]
    never = unvalued({"a": ("X", 64), "b": ("X", 256)}, "never")
    assert "--accuracy 0.1,0.2" in analyse_efficiency([SHORT, never], [], 1).remarks[-1]
    assert "--accuracy" not in analyse_efficiency([SHORT, never], [0.1], 1).remarks[-1]
    seldom = efficiencies([unvalued({str(n): ("X" if n else "R", 64) for n in range(500)})])  # 0.2 %
    assert default_levels(seldom) == pytest.approx([share / 500 for share in (0.5, 0.7, 0.9)], rel=0.05)


def test_a_single_problem_gives_no_interval() -> None:
    one = [unvalued({"a": ("R", length)}, name) for name, length in (("short", 64), ("long", 128))]
    short, long = tokens_to(efficiencies(one), 0.5, seed=1)
    assert np.isnan([short.tokens.low, short.tokens.high, long.ratio.low, long.ratio.high]).all()
    assert ",," in table_csv(analyse_efficiency(one, [0.5], 1).tables[1])


def extrapolated(name: str, **answers: tuple[str, str, str, str]) -> ModelSamples:
    """One trace a problem, whose forced answers at its four boundaries are given, R being right."""
    problems = {
        problem: (trace("R", 128, *(boundary(32 * j, forced) for j, forced in enumerate(mine))),)
        for problem, mine in answers.items()
    }
    return replace(model(problems, name), boundaries=Boundaries.EXTENSIONS, budgets=(64, 96, 128))


BETTER = extrapolated("better", a=("XX", "RX", "RX", "RR"), b=("XX", "XX", "RX", "RR"), c=("RX", "RR", "RR", "RR"))
WORSE = extrapolated("worse", a=("XX", "RX", "XX", "XX"), b=("XX", "XX", "XX", "RX"), c=("RX", "RR", "RR", "RX"))


def test_the_tables_hold_every_budget_and_other_evaluations_are_refused() -> None:
    found = analyse_extrapolation([BETTER, WORSE])
    accuracy, gains = found.tables
    assert [row[:3] for row in accuracy.rows[:3]] == [("better", 64, 0.5), ("better", 96, 2 / 3), ("better", 128, 1.0)]
    assert [row[:2] for row in gains.rows] == [("better", 96), ("better", 128), ("worse", 96), ("worse", 128)]
    assert [row[2] for row in gains.rows] == pytest.approx([1 / 6, 1 / 2, -1 / 6, -1 / 6])
    # of three problems, gains of 0, 0.5 and 0 have t = 1, of 0.5, 1 and 0 t = sqrt(3), and of -0.5, 0.5 and -0.5 -0.5
    p = [2 * student.sf(t, 2) for t in (1, np.sqrt(3), 1, 0.5)]
    assert [row[5] for row in gains.rows] == pytest.approx(p)
    assert [row[6] for row in gains.rows] == pytest.approx([1, 4 * p[1], 1, 1]), "three times 0.42 is more than 1"
    assert "corrected for the 4 shown" in found.remarks[-1]
    # boundaries at 32, 64 and 96 tokens of thought stand for budgets of 64, 96 and 128
    assert [row[1:2] + row[5:] for row in accuracy.rows[:3]] == [(64, 32.0), (96, 64.0), (128, 96.0)]
    assert "budget of 128 against 64 tokens (96 against 32 used)" in found.verdicts[0]
    assert found.summary.columns == ("model", "budget 64", "budget 96", "budget 128")
    assert [cell[:5] for cell in found.summary.rows[0][1:]] == ["0.500", "0.667", "1.000"]
    assert [line.x for line in found.figures[0].panels[1].lines] == [(32.0, 64.0, 96.0)] * 2
    assert found.verdicts[2].startswith("accuracy at 128 tokens, worse against better: -0.667")
    both = {"a": (*BETTER.problems["a"], *WORSE.problems["a"]), "b": BETTER.problems["b"]}
    assert AccuracyAt(128, 3).values(replace(BETTER, problems=both)) == {"a": 0.5, "b": 1.0}
    others = {"runs/better runs/worse": {"budgets": (64, 96, 127)}, "runs/worse": {"boundaries": Boundaries.CUTS}}
    for models, other in others.items():
        refused = refusal(analyse_extrapolation, [BETTER, replace(WORSE, **other)])
        assert refused.advice == f"mrt-hpc eval {models} --suite paper_extrapolation"


@pytest.mark.parametrize("boundaries", Boundaries)
@pytest.mark.parametrize(("analyse", "arguments"), [
    (analyse_regret, [[60]]),
    (analyse_scaling, []),
    (episode_progress.analyse_progress, []),
    (analyse_efficiency, [[0.5], 1]),
    (analyse_extrapolation, []),
])  # fmt: skip
def test_samples_of_another_kind_are_refused(
    analyse: Callable[..., object], arguments: list[object], boundaries: Boundaries
) -> None:
    """An extended thought has no value between its start and its end, and a second attempt none before its start."""
    found, extends = replace(BETTER, boundaries=boundaries), analyse is analyse_extrapolation
    if boundaries is (Boundaries.EXTENSIONS if extends else Boundaries.EPISODES):
        assert analyse([found], *arguments)
        return
    suite = "paper_extrapolation" if extends else "paper_regret"
    assert refusal(analyse, [found], *arguments).advice == f"mrt-hpc eval runs/better --suite {suite}"
    refusal(Regret(64).values, BETTER)


def test_inserted_tokens_count_as_the_sampled_ones_do() -> None:
    forced = rollout_with([1] * 20, boundaries=[0, 15], inserted=[[10, 4]])
    (found,) = model_samples.evaluated_problems([sampled(forced)])["problem"]
    assert (found.tokens, found.boundaries[1].tokens) == (20, 15)
