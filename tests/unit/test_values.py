"""Estimators of a prefix's value, regret and votes: by hand, one by one, and over many draws against the truth."""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from evaluated import BENCHMARK, benchmark_of
from hypothesis import given, settings
from hypothesis import strategies as st
from run_of import run_of
from samples import branch_with, rollout_with, sampled

from mrt_hpc import BoundaryPlan, Branches, GradedBoundary, PrefixValue
from mrt_hpc.analysis.evaluated_run import EvaluatedRun
from mrt_hpc.analysis.model_samples import EvaluatedBoundary, EvaluatedTrace, GradedAnswer
from mrt_hpc.analysis.problem_measures import curve_of, valued_traces
from mrt_hpc.mrt import regret, values
from mrt_hpc.mrt.regret import TraceCurve
from mrt_hpc.mrt.values import KnownAnswer, likelihood, monte_carlo, rao_blackwell, variance_of_progress
from mrt_hpc.mrt.votes import AnswerCounts, cleaned_answer, majority_at_k
from mrt_hpc.provers.sampled_answers import MajorityVote
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.roles.evaluation_summary import summary_of
from mrt_hpc.roles.sampling.grading import pairs_to_compare, representatives
from mrt_hpc.run.evaluation_settings import settings_of
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.problems import read_problems


def test_monte_carlo_is_the_mean_reward_and_likelihood_adds_up_the_right_answers() -> None:
    # one of four right: sample variance 0.25, so the mean's is 0.25 / 4
    estimate = monte_carlo([1, 0, 0, 0])
    assert (estimate.value, estimate.variance) == (0.25, pytest.approx(0.0625))
    assert math.isnan(monte_carlo([1.0]).variance), "one branch shows nothing of its spread"
    estimate = likelihood([KnownAnswer(0.5, 1.0), KnownAnswer(0.2, 1.0), KnownAnswer(0.25, 0.0)])
    assert (estimate.value, estimate.variance) == (pytest.approx(0.7), 0.0)
    for nothing in (monte_carlo, values.majority, lambda branches: values.confident_likelihood(0.5, branches)):
        with pytest.raises(ValueError, match="at least one branch"):
            nothing([])


def test_a_confident_wrong_answer_is_worth_less_than_an_unsure_one() -> None:
    found = {(a, c): values.confident_likelihood(a, [c]).value for a in (0.0, 0.5, 1.0) for c in (0.0, 0.5, 1.0)}
    assert found == pytest.approx({(a, c): 1.5 * a * c + 0.5 * a - c for a, c in found})
    assert (found[0.0, 1.0], found[0.0, 0.0], found[1.0, 1.0]) == (-1.0, 0.0, 1.0)
    # terms -0.5 c: -0.1 and -0.3, whose mean has the variance 0.02 / 2
    assert values.confident_likelihood(1 / 3, [0.2, 0.6]).variance == pytest.approx(0.01)


def test_rao_blackwell_by_hand() -> None:
    # S holds 0.6 of the mass, of which 0.5 is right. Two of four branches fall outside, one of them right.
    # 0.5 + 0.25 * 0.4 + ((1 - 0.25) + (0 - 0.25)) / 4 = 0.5 + 0.1 + 0.125
    known = [KnownAnswer(0.5, 1.0), KnownAnswer(0.1, 0.0)]
    estimate = rao_blackwell(known, [None, 1.0, 0.0, None], baseline=0.25)
    assert estimate.value == pytest.approx(0.725)
    # terms 0, 0.75, -0.25, 0: squares 0.625, mean 0.125, variance (0.625 - 4 * 0.015625) / 3 / 4
    assert estimate.variance == pytest.approx((0.625 - 0.0625) / 12)
    whole = rao_blackwell([KnownAnswer(0.75, 1.0), KnownAnswer(0.25, 0.0)], [None] * 4, baseline=0.5)
    assert (whole.value, whole.variance) == (pytest.approx(0.75), 0.0), "all of the mass is known"
    assert rao_blackwell([KnownAnswer(0.9995, 1.0)], [], baseline=0.0).value == pytest.approx(0.9995)
    with pytest.raises(ValueError, match=r"0\.5 of the probability mass is unknown"):
        rao_blackwell([KnownAnswer(0.5, 1.0)], [], baseline=0.0)


def test_the_majority_is_the_answer_of_greatest_weight() -> None:
    for votes, value in (
        ([("7", 1.0, 0.9), ("8", 0.0, 0.3), ("8", 0.0, 0.3)], 1.0),  # one vote of 0.9, or two of 0.3
        ([("7", 1.0, 0.5), ("8", 0.0, 0.3), ("8", 0.0, 0.3)], 0.0),
        ([("7", 1.0, 0.5), ("8", 0.0, 0.5)], 0.5),  # a tie of right and wrong
        ([(None, 0.0, 0.9), ("7", 1.0, 0.1)], 1.0),  # who answers nothing votes for nothing
        ([(None, 0.0, 0.9)], 0.0),
    ):
        assert values.majority([values.Vote(*vote) for vote in votes]).value == value, votes


def test_the_variance_of_progress_of_what_has_none_or_an_unknown_one() -> None:
    before, exact = monte_carlo([1, 0, 0, 0]), likelihood([KnownAnswer(0.3, 1.0)])
    assert variance_of_progress(before, before) == pytest.approx(0.0)
    assert variance_of_progress(exact, before) == pytest.approx(0.0625)
    assert math.isnan(variance_of_progress(monte_carlo([1.0]), exact))


@pytest.mark.parametrize(("sizes", "common"), [((3, 6), True), ((5, 2), True), ((5, 2), False)])
def test_the_variance_of_progress_is_that_over_repeated_draws(sizes: tuple[int, int], common: bool) -> None:
    rng = np.random.default_rng(17)
    gains, told = [], []
    for _ in range(5_000):
        first, second = rng.random(sizes[0]), rng.random(sizes[1])
        if common:
            second[: min(sizes)] = first[: min(sizes)]
        before, after = monte_carlo(list((first < 0.4) * 1.0)), monte_carlo(list((second < 0.6) * 1.0))
        gains.append(after.value - before.value)
        told.append(variance_of_progress(before, after))
    # 0.4 * 0.6 for either branch, and 0.4 * (1 - 0.6) in common where the random numbers are
    shared = 0.16 * min(sizes) / (sizes[0] * sizes[1]) if common else 0.0
    truth = 0.24 / sizes[0] + 0.24 / sizes[1] - 2 * shared
    assert abs(np.mean(told) - truth) < 4 * np.std(told) / math.sqrt(len(told))
    assert np.var(gains) == pytest.approx(truth, rel=0.05)


TOKENS, HEIGHTS = np.array([0.0, 100.0, 200.0]), np.array([0.2, 0.6, 1.0])
CURVE = TraceCurve(TOKENS, np.array([0.2, 0.6, 0.4]))


def test_area() -> None:
    for budget, area in (
        (200.0, (0.4 * 100 + 0.8 * 100) / 200),  # trapezoids of mean height 0.4 and 0.8
        (150.0, (0.4 * 100 + 0.7 * 50) / 150),  # 0.8 at 150
        (400.0, (0.4 * 100 + 0.8 * 100 + 1.0 * 200) / 400),  # the last value is held
    ):
        assert regret.area_under_values(TOKENS, HEIGHTS, budget) == pytest.approx(area)
    late = regret.area_under_values(np.array([100.0]), np.array([0.5]), 200.0)
    assert late == pytest.approx((25 + 50) / 200), "from nothing to 0.5 at 100, where it is held"
    with pytest.raises(ValueError, match="a budget of 0"):
        regret.area_under_values(TOKENS, HEIGHTS, 0)


def test_all_tokens_are_prompt_prefix_closing_text_and_mean_answer() -> None:
    """A prompt of 20 tokens, prefixes of 0, 40 and 100, a closing text of 10, answers of 6 and 14, 4 and 6, 5 and 5."""
    prefixes, lengths = [0, 40, 100], [(6, 14), (4, 6), (5, 5)]
    trace = rollout_with([0] * 110, problem_id="p", prompt_ids=[0] * 20, boundaries=prefixes)
    branches = [
        branch_with([0] * own, problem_id="p", boundary=j, branch=n, prompt_tokens=20 + prefix + 10)
        for j, prefix in enumerate(prefixes)
        for n, own in enumerate(lengths[j])
    ]
    values = [prefix_value("p", 0, j, j / 2) for j in range(3)]
    group = replace(sampled(trace), branches=branches, values=values)
    (alone,), (everything,) = valued_traces([group])["p"], valued_traces([group], "all")["p"]
    assert alone.tokens.tolist() == [0, 40, 100]
    assert everything.tokens.tolist() == [40, 75, 135]
    never, always = (TraceCurve(np.array([0.0]), np.array([value])) for value in (0.0, 1.0))
    found = regret.regret_by_problem({"a": [always, always, always, never], "b": [never]}, 100.0)
    assert found == pytest.approx({"a": 0.25, "b": 1.0}), "the mean over the traces of a problem"
    # up to 135 tokens: nothing to 40, then trapezoids of mean height 0.25 and 0.75
    assert regret.regret_by_problem({"p": [everything]}, 135.0)["p"] == pytest.approx(1 - (0.25 * 35 + 0.75 * 60) / 135)


def test_a_boundary_with_shorter_answers_counts_no_fewer_tokens_than_the_one_before() -> None:
    forced = [GradedAnswer("R", 1.0, drawn, asked) for drawn, asked in ((20, 30), (5, 35), (5, 60))]
    boundaries = tuple(EvaluatedBoundary(0, 1.0, (answer,)) for answer in forced)
    assert curve_of(EvaluatedTrace(1.0, "R", 0, boundaries), "all").tokens.tolist() == [50, 50, 65]


def test_a_trace_that_is_stopped_has_the_value_there_and_one_that_has_ended_its_reward() -> None:
    allowed = np.array([0.0, 50.0, 100.0, 150.0, 210.0, 219.0, 220.0, 400.0])
    found = regret.reward_within(allowed, 220, 1.0, CURVE)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.5, 0.4, 0.4, 1.0, 1.0])
    unvalued = regret.reward_within(np.array([0.0, 99.0, 100.0]), 100, 1.0, None)
    assert unvalued.tolist() == [0.0, 0.0, 1.0], "without values it counts once it has ended"
    late = TraceCurve(np.array([50.0, 58.0]), np.array([0.5, 1.0]))  # of a last round, behind the earlier ones
    found = regret.reward_within(np.array([0.0, 49.0, 50.0, 54.0, 60.0]), 60, 1.0, late)
    assert found.tolist() == [0, 0, 0.5, 0.75, 1]


def test_the_first_tokens_that_reach_an_accuracy() -> None:
    allowed = np.array([0.0, 100.0, 200.0, 300.0])
    for curve, tokens in (
        ([0.0, 0.4, 0.8, 0.8], 125),  # 0.5 lies a quarter of the way from 100 to 200
        ([0.5, 0.1, 0.9, 0.9], 0),  # reached at once, though lost again
        ([0.1, 0.2, 0.3, 0.4], np.inf),
        ([0.2, 0.6, 0.3, 0.9], 75),  # three quarters of the way to 100: the first time counts
        ([0.1, 0.3, 0.5 - 2e-16, 0.5 - 2e-16], 200),  # a mean of 0.5 by another order of its terms
    ):
        assert regret.first_reached(allowed, np.array([curve]), 0.5).tolist() == pytest.approx([tokens])


LENGTHS = ((30, 20, 10), (5, 6, 7))
"""The tokens of three rounds, or of thoughts up to three budgets, of two samples."""
MODES = {
    "linearised": "{type: linearised, rounds: 3, round_tokens: 64, backtrack: null}",
    "budget_forcing": r'{type: budget_forcing, budgets: [16, 32, 64], forced_text: "\n</think>\n"}',
}


def prefix_value(problem: str, sample: int, boundary: int, of: float) -> PrefixValue:
    return PrefixValue(0, problem, sample, boundary, of, 0.0, 0.0, branches=2, baseline=0.0)


def rounds(problem: str) -> Sampled:
    """The last rounds have values: 1/2 at their start and 1 at the end of their thought."""
    rollouts = [
        rollout_with(
            [1] * LENGTHS[sample][stage], problem_id=problem, sample=sample * 3 + stage, reward=float(stage == 2),
            boundaries=[0, LENGTHS[sample][stage] - 2], stage=stage, stages=3, answer="1",
        ) for sample in (0, 1) for stage in (2, 0, 1)
    ]  # fmt: skip
    values = [prefix_value(problem, last, j, (j + 1) / 2) for last in (2, 5) for j in (0, 1)]
    return replace(sampled(*rollouts), values=values)


@pytest.mark.parametrize(("mode", "tokens"), [("linearised", (60, 18)), ("budget_forcing", (10, 7))])
def test_tokens_of_a_sample(tmp_path: Path, mode: str, tokens: tuple[int, int]) -> None:
    layout = run_of(tmp_path / "run", *benchmark_of(1, 1, MODES[mode]))
    recipe = read_lock(layout.recipe_lock)
    (benchmark,) = recipe.evaluation.benchmarks
    part = rounds(read_problems(layout.benchmark_data(BENCHMARK))[0].id)
    settings = settings_of(layout, recipe, benchmark).sampled
    commit_group(layout.evaluation_shard(0, BENCHMARK, 0), part, settings=settings)
    samples = EvaluatedRun.open(str(layout.root)).samples(0, BENCHMARK, "model")
    ((first, second),) = samples.problems.values()
    assert (first.tokens, second.tokens) == tokens
    starts = tokens[0] - LENGTHS[0][2], tokens[1] - LENGTHS[1][2]
    assert [b.tokens for b in first.boundaries] == [starts[0], starts[0] + 8]
    assert [b.tokens for b in second.boundaries] == [starts[1], starts[1] + 5]
    summary = summary_of(layout, recipe, benchmark, 0, [part])
    assert samples.mean_tokens == summary.tokens_per_rollout == sum(tokens) / 2
    assert summary.regret == {}, "of these boundaries it would be another quantity"


# -- votes of k of n answers, against votes counted one by one


RIGHT = "right"


def counted(counts: AnswerCounts, k: int) -> float:
    """The mean outcome over all draws of k answers."""
    wrong = [f"w{i}" for i, size in enumerate(counts.wrong) for _ in range(size)]
    samples: list[str | None] = [RIGHT] * counts.right + wrong + [None] * counts.none
    return float(np.mean([outcome([s for s in draw if s is not None]) for draw in combinations(samples, k)]))


def outcome(votes: list[str]) -> float:
    most = max(Counter(votes).values(), default=0)
    winners = [answer for answer, count in Counter(votes).items() if count == most]
    return winners.count(RIGHT) / len(winners) if winners else 0.0


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 4), st.lists(st.integers(1, 3), max_size=3), st.integers(0, 3), st.data())
def test_the_formula_equals_counting_all_draws(right: int, wrong: list[int], none: int, data: st.DataObject) -> None:
    counts = AnswerCounts(right, tuple(wrong), none)
    if counts.total:
        k = data.draw(st.integers(1, counts.total))
        assert majority_at_k(counts, k) == pytest.approx(counted(counts, k), abs=1e-10)


def test_many_answers_do_not_overflow_and_more_voters_than_answers_are_refused() -> None:
    """600 right against 400 wrong of 1,000: a vote of 101 is nearly that of independent draws, 0.979."""
    few = majority_at_k(AnswerCounts(600, (400,)), 3)
    assert few == pytest.approx((600 * 599 * 598 + 3 * 600 * 599 * 400) / (1000 * 999 * 998), abs=1e-12)
    assert 0.979 < majority_at_k(AnswerCounts(600, (400,)), 101) < 0.99
    assert majority_at_k(AnswerCounts(600, (400,)), 1000) == pytest.approx(1.0, abs=1e-12)
    for k in (0, 1001):
        with pytest.raises(ValueError, match="maj@"):
            majority_at_k(AnswerCounts(600, (400,)), k)


def test_answers_are_counted_by_class() -> None:
    """``3`` and ``3.0`` are both right; ``1/2`` and ``1/2.`` are one class, and ``7`` and nothing are others; a grader
    may say which wrong answers are the same.
    """
    answers = [("3", 1.0), ("3.0", 1.0), ("1/2", 0.0), (" 1/2. ", 0.0), ("7", 0.0), (None, 0.0)]
    assert AnswerCounts.of(answers) == AnswerCounts(2, (2, 1), 1)
    wrong = [("1/2", 0.0), ("0.5", 0.0), ("7", 0.0)]
    assert AnswerCounts.of(wrong).wrong == (1, 1, 1)
    assert AnswerCounts.of(wrong, lambda answer: {"0.5": "1/2"}.get(answer, answer)).wrong == (2, 1)
    for answer, cleaned in (
        (r" \left( 1, 2 \right) ", "(1,2)"), (r"$\dfrac{1}{2}$.", r"\frac{1}{2}"), (r"10\,000", "10000"),
        (r"\leftarrow", r"\leftarrow"), ("A B", "AB"), ("x", "x"),
    ):  # fmt: skip
        assert cleaned_answer(answer) == cleaned


REWARDS = {"1/2": 0.0, "0.5": 0.0, "3": 1.0, "3.0": 1.0, "7": 0.0}


def vote(answers: list[str | None], same: dict[str, str]) -> float:
    branches = [branch_with([1], answer=answer, reward=REWARDS.get(str(answer), 0.0)) for answer in answers]
    prover = MajorityVote(Branches(None), len(answers))  # type: ignore[arg-type]  # nothing is asked
    return prover.estimate(GradedBoundary(BoundaryPlan(0, len(answers), 0.0), branches, [], same)).value


def test_spellings_of_one_answer_vote_together() -> None:
    """Only wrong answers are compared by the grader; by their texts all three tie."""
    assert pairs_to_compare(set(REWARDS), REWARDS) == [("0.5", "1/2"), ("0.5", "7"), ("1/2", "7")]
    same = representatives(REWARDS, {("0.5", "1/2")})
    assert same == {"0.5": "0.5", "1/2": "0.5", "3": "3", "3.0": "3", "7": "7"}
    assert vote(["1/2", "0.5", "3", None], same) == 0.0
    assert vote(["1/2", "0.5", "3", None], {}) == 0.5
    assert vote(["3", "3.0", "7"], representatives(REWARDS, set())) == 1.0
