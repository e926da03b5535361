"""Rewards: in [0, 1], of texts that were cut or cannot be judged, and several as one, from a verifier to advantages."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from basics import ROOT
from commands import refusal
from graded import grade_all, own, recipe_beside
from samples import branch_with, rollout_with, sampled

from mrt_hpc import Branches, MonteCarlo, MrtOnline
from mrt_hpc.algorithms.batch import batch_of
from mrt_hpc.algorithms.grpo import Grpo
from mrt_hpc.algorithms.learnt_batch import part_weights
from mrt_hpc.algorithms.mrt import Mrt
from mrt_hpc.domains.grader_queue import GraderPool, VerdictStatus
from mrt_hpc.domains.verifiers import MathVerifier
from mrt_hpc.domains.weighted import WeightedVerifier
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.tokens import thought_and_answer
from mrt_hpc.inference.traces import BoundaryPlan, PromptedGroup, SampledBranch, SampledTrace, Start, Valuation
from mrt_hpc.mrt.rewards import is_right, normalised_rewards, weighted_sum
from mrt_hpc.provers.history import AnswerHistory
from mrt_hpc.provers.prover_session import ProverSession
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.sampling.grading import TraceGrader
from mrt_hpc.roles.training.metrics import rollout_measures
from mrt_hpc.run.groups import Group, Sampled, commit_group, part_file, read_group
from mrt_hpc.run.parquet import read_columns
from mrt_hpc.run.records import FinishReason, Gold, PrefixValue, Problem, Rollout
from mrt_hpc.submit.create import try_own_verifiers

EXAMPLE, BOXED = ROOT / "recipes" / "examples" / "my_verifier.py", "prover.type=boxed_answer"
OF_THE_USER = """
import numpy
REPLIES = {"half": 0.5, "third": numpy.float32(0.25), "yes": numpy.bool_(True), "unknown": None, "one": 1, "above": 1.5,
           "below": -0.1, "nan": float("nan"), "word": "right", "list": [1.0]}
def grades(answer, gold):
    return REPLIES.get(answer, answer == gold)
def long_enough(answer, gold, problem, trace):
    return None if "unjudged" in trace else min(1.0, len(trace) / 100) if problem == "What is it?" else 0.0
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = EXAMPLE.read_text() + OF_THE_USER
    return recipe_beside(tmp_path_factory.mktemp("rewards"), "own_rewards", code, "mrt_online")


def test_two_ways_of_comparing_several_rewards() -> None:
    """Correctness 1 1 0 0: mean 1/2, deviation 1/2; format 1 0 0 0: mean 1/4, deviation sqrt(3)/4; and a third that is
    equal in its group, which adds nothing whatever its rounding.
    """
    parts, weights, groups = np.array([[1, 1, 0.1], [1, 0, 0.1], [0, 0, 0.1], [0, 0, 0.1]]), [0.5, 0.2, 0.3], ["p"] * 4
    root = 3**-0.5
    expected = [0.5 + 0.2 * 3 * root, 0.5 - 0.2 * root, -0.5 - 0.2 * root, -0.5 - 0.2 * root]
    assert normalised_rewards(parts, weights, groups) == pytest.approx(expected, rel=1e-5)
    assert normalised_rewards(parts[:1], weights, ["p"]).tolist() == [0.0]
    assert [weighted_sum(row, weights) for row in parts] == pytest.approx([0.73, 0.53, 0.03, 0.03])
    assert weighted_sum([1, 1, 1], [0.7, 0.2, 0.1]) == 1.0 and is_right(1.0) and not is_right(0.999)
    rollouts = [rollout_with([1, 2], sample=n, reward=r, reward_parts=[*row]) for n, (r, row) in
                enumerate(zip((0.73, 0.53, 0.03, 0.03), parts.tolist(), strict=True))]  # fmt: skip
    rollouts[3] = replace(rollouts[3], reward=0.0, reward_parts=[])  # it has no answer
    first = [s.advantages[0] for s in Grpo().learnt(batch_of([group(*rollouts)])).sequences]
    assert first == pytest.approx([0.73 - 0.56 / 3, 0.53 - 0.76 / 3, 0.03 - 1.26 / 3, -1.29 / 3])
    batch = batch_of([group(*[replace(r, reward_parts=r.reward_parts[:2]) for r in rollouts])], weights=(0.5, 0.2))
    found = [s.advantages[0] for s in Grpo(baseline="group").learnt(batch).sequences]
    assert found == pytest.approx(expected, rel=1e-5) and batch.reward_mean == pytest.approx(1.29 / 4)


@pytest.mark.parametrize("gate", ["keep", "drop"])
def test_a_right_answer_of_several_rewards_is_that_of_the_first(gate: str) -> None:
    """A right answer that is long has a reward of 0.93, and passes the gate; a wrong one that is short does not."""
    groups = [
        group(*(
            rollout_with([1, 2], problem_id=name, sample=n, reward=weighted_sum(row, (0.9, 0.1)), reward_parts=[*row])
            for n, row in enumerate(rows)
        ))
        for name, rows in {"all wrong": [(0.0, 1.0), (0.0, 0.2)], "one right": [(1.0, 0.3), (0.0, 1.0)]}.items()
    ]  # fmt: skip
    batch = batch_of(groups)
    assert batch.right.tolist() == [False, False, True, False]
    learnt = Grpo.model_validate({"without_outcome": gate}).learnt(batch).sequences
    assert [sequence.has_signal for sequence in learnt] == [gate == "keep"] * 2 + [True] * 2


def group(*rollouts: Rollout, **parts: list[object]) -> Group:
    return Group(**{**vars(sampled(*rollouts)), **parts}, digest="0" * 64)


def test_a_rollout_that_cannot_be_judged_is_in_no_mean_no_baseline_and_no_loss() -> None:
    judged = [rollout_with([1, 2], sample=n, reward=reward) for n, reward in ((0, 1.0), (2, 0.25), (3, 0.0))]
    lost = rollout_with([1, 2], sample=1, reward=0.0, judged=False)
    values: list[object] = [
        PrefixValue(0, "problem", n, j, v, 0.1, 0.1, 2, 0.0)
        for n in range(4) for j, v in enumerate((0.25, 0.0 if n == 1 else 0.5))
    ]  # fmt: skip
    branches: list[object] = [branch_with([1], sample=n, judged=n != 2) for n in range(4)]
    with_it = batch_of([group(*judged, lost, values=values, branches=branches)])
    without = batch_of([group(*judged, values=[v for v in values if getattr(v, "sample", 1) != 1])])
    for algorithm in (Grpo(), Grpo(baseline="group", normalise="group_std"), MrtOnline()):
        first, second = (algorithm.learnt(batch).sequences for batch in (with_it, without))
        assert [s.advantages.tolist() for s in first] == [s.advantages.tolist() for s in second]
    # 1, 1/4 and 0: each less the mean of the two others
    assert [s.advantages[0] for s in Grpo().learnt(with_it).sequences] == pytest.approx([0.875, -0.25, -0.625])
    assert [b.sample for b in with_it.branches] == [0, 3]
    measured = rollout_measures(0, with_it, {})
    assert (measured["rollouts"], measured["unjudged"], measured["reward_mean"]) == (3, 1, pytest.approx(1.25 / 3))
    halves = [rollout_with([1, 2], sample=n, forced=n // 2, judged=n < 2, prompt_ids=[1, 1]) for n in range(4)]
    assert Mrt().learnt(batch_of([group(*halves)])).sequences == [], "one half of the group has no reward"


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.9])
def test_a_group_of_equal_rewards_has_no_signal_whatever_their_rounding(reward: float) -> None:
    batch = batch_of([group(*(rollout_with([1, 2], sample=n, reward=reward) for n in range(7)))])
    for baseline in ("group", "leave_one_out"):
        assert not any(s.has_signal for s in Grpo(baseline=baseline).learnt(batch).sequences)


def test_groups_without_such_rewards_have_the_columns_of_before_and_others_are_read_back(tmp_path: Path) -> None:
    usual, branch = rollout_with([1, 2]), branch_with([3])
    graded = replace(usual, sample=1, reward=0.75, reward_parts=[1.0, 0.0], judged=False)
    for name, rollouts in (("before", [usual]), ("now", [usual, graded])):
        stored = replace(sampled(*rollouts), branches=[replace(branch, judged=name == "before")])
        commit_group(tmp_path / name, stored)
        whole = read_group(tmp_path / name)
        assert (whole.rollouts, whole.branches) == (stored.rollouts, stored.branches)
        columns = {c for part in ("rollouts", "branches") for c in names_in(part_file(tmp_path / name, part))}
        assert {"judged", "reward_parts"} & columns == (set() if name == "before" else {"judged", "reward_parts"})
    table = read_columns(part_file(tmp_path / "before", "rollouts"), Rollout)
    assert table["judged"].to_pylist() == [True] and table["reward_parts"].to_pylist() == [[]]


def names_in(path: Path) -> list[str]:
    import pyarrow.parquet

    return list(pyarrow.parquet.ParquetFile(path).schema_arrow.names)


def test_a_function_returns_a_number_or_nothing_and_all_else_is_refused(recipe: Path) -> None:
    expected = {"half": 0.5, "third": 0.25, "yes": 1.0, "one": 1.0, "g": 1.0, "no": 0.0}
    wrong = ("above", "below", "nan", "word", "list")
    with GraderPool(own(recipe, "own_rewards:grades", BOXED), processes=1) as pool:
        answers = (*expected, "unknown", *wrong)
        verdicts = dict(zip(answers, grade_all(pool, [(a, "g") for a in answers]), strict=True))
        (best, lost) = grade_all(pool, [("half", ("g", "half")), ("unknown", ("g", "h"))])
    assert {name: verdicts[name].reward for name in expected} == expected
    assert not verdicts["unknown"].judged and verdicts["unknown"].status is VerdictStatus.UNJUDGED
    assert (best.reward, lost.judged) == (0.5, False)
    for name in wrong:
        assert verdicts[name].status is VerdictStatus.MALFORMED and "which is none of true" in str(verdicts[name].error)


def test_what_is_no_verdict_on_sample_answers_is_refused_before_a_run_is_made(recipe: Path) -> None:
    module = recipe.with_name("own_rewards_refused.py")
    module.write_text("def silent(answer, gold, trace):\n    return 2 if answer is None else answer == gold\n")
    wrong, right = (load_recipe(recipe, (f"data.verifier={name}", BOXED))
                    for name in ("own_rewards_refused:silent", "own_rewards:long_enough"))  # fmt: skip
    told = refusal(lambda: try_own_verifiers(wrong, here=True, warn=pytest.fail))
    assert "returned 2" in str(told.where) and "None, gold answer" in str(told.value)
    try_own_verifiers(right, here=True, warn=pytest.fail)


OF_PARTS = "{verifier: math, weight: 0.75}, {verifier: 'own_rewards:long_enough', weight: 0.25}"
WEIGHTED = f"{{type: weighted, parts: [{OF_PARTS}]"
GDPO = f"{WEIGHTED}, combine: normalise_then_sum}}"


def test_a_weighted_sum_keeps_its_parts(recipe: Path) -> None:
    verifier = own(recipe, WEIGHTED + "}", BOXED)
    assert isinstance(verifier, WeightedVerifier) and verifier.sees_trace
    texts = [("What is it?", "x" * 40), ("What is it?", "x" * 200), ("What is it?", "unjudged"), ("Other", "x")]
    with GraderPool(verifier, processes=1) as pool:
        graded = asyncio.run(pool.grade([("7", "7"), (None, "7"), ("7", "7"), ("8", "7")], texts))
    assert [v.reward for v in graded] == [0.85, 0.25, 0.0, 0.0]
    assert [v.parts for v in graded] == [(1.0, 0.4), (0.0, 1.0), (), (0.0, 0.0)]
    assert [v.judged for v in graded] == [True, True, False, True]


@pytest.mark.parametrize(("changes", "told"), [
    (["data.verifier=own_rewards:long_enough"], "look_ahead has answers without a trace judged"),
    ([f"data.verifier={GDPO}", BOXED], "sum_then_normalise"),
    (["data.verifier={type: weighted, parts: [{verifier: math, weight: 0.9}, {verifier: exact, weight: 0.2}]}"],
     "sum to 1, and not to 1.1"),
    (["data.verifier={type: weighted, parts: [{verifier: math, weight: 1.0}]}"], "data.verifier.parts"),
])  # fmt: skip
def test_rewards_that_do_not_fit_are_refused(recipe: Path, changes: list[str], told: str) -> None:
    assert told in str(refusal(load_recipe, recipe, ("prover={type: look_ahead, temperature: 1.0}", *changes)))


def test_only_grpo_learns_rewards_that_are_normalised_first(recipe: Path) -> None:
    plain, gdpo = (
        load_recipe(recipe, ("algorithm={type: grpo}", "prover=null", f"data.verifier={named}"))
        for named in (WEIGHTED + "}", GDPO)
    )
    assert (part_weights(plain), part_weights(gdpo)) == ((), (0.75, 0.25))


def trace_with(*branches: str) -> SampledTrace:
    """Two episodes of one token, with branches at both boundaries of this text."""
    completion = Completion(0, 0, 0, [5, 6], [-0.5, -0.5], FinishReason.STOP, 0, 1, 0, [], 0.0, 0.0)
    start = Start([1], 1, None)  # type: ignore[arg-type]  # nothing is sampled
    drawn = [SampledBranch(j, n, text, completion) for j in (0, 1) for n, text in enumerate(branches)]
    plans = [BoundaryPlan(j, len(branches), 0.0) for j in (0, 1)]
    text = "I think." + "." * 20 + "</think>\\boxed{7}"
    prompted, valuation = PromptedGroup(Problem("p", "What is it?", "7"), [1], (start,)), Valuation(plans, drawn)
    return SampledTrace(0, prompted, start, 0, text, "\\boxed{7}", [0, 1], completion, valuation=valuation)


def test_a_verifier_sees_the_whole_trace_also_of_a_branch(recipe: Path) -> None:
    """The value of a prefix is the mean reward of the branches that can be judged."""
    asking = ProverSession(
        MonteCarlo(Branches(None), 2),  # type: ignore[arg-type]  # nothing is asked
        AnswerHistory(8),
        False,
        lambda prefix, ids: f"{'#' * 10 * len(ids)}</think>" + prefix.decode(),
    )

    def graded(*branches: str) -> Sampled:
        with GraderPool(own(recipe, "own_rewards:long_enough", BOXED), processes=1) as pool:
            grader = TraceGrader(pool, "</think>", asking)
            first = asyncio.run(grader.grade(trace_with(*branches)))
            again = asyncio.run(grader.regrade(first, Problem("p", "What is it?", "7")))
        assert repr(again) == repr(first)  # a variance is NaN
        return first

    found = graded("\\boxed{1}", "\\boxed{unjudged}")
    (rollout,) = found.rollouts
    assert rollout.reward == pytest.approx(0.45) and rollout.judged
    assert [(b.judged, b.reward) for b in found.branches] == [(True, 0.17), (False, 0.0), (True, 0.27), (False, 0.0)]
    assert [v.value for v in found.values] == [0.17, 0.27], "8 or 18 characters of prefix, and 9 of the branch"
    assert found.troubles == 2
    nothing = graded("\\boxed{unjudged}")
    assert not nothing.rollouts[0].judged and [v.value for v in nothing.values] == [0.0, 0.0]
    assert batch_of([group(*nothing.rollouts, branches=[*nothing.branches])]).rollouts == []


# -- one rule for what the token limit cut


CLOSED, OPEN, THINKING = "so</think>\\boxed{7} as", "so</think>\\boxed{7}, no, \\boxed{8", "so \\boxed{7}"


def trace(text: str, thought_end: str, *, cut: bool, forced: int = 0, gold: Gold = "7") -> SampledTrace:
    start = Start([1], 1, None, forced=forced)  # type: ignore[arg-type]  # nothing is sampled
    group = PromptedGroup(Problem("p", "What is it?", gold), [1], (start,))
    reason = FinishReason.LENGTH if cut else FinishReason.STOP
    completion = Completion(0, 0, 0, [5], [-0.5], reason, 0, 1, 0, [], 0.0, 0.0)
    _, answer = thought_and_answer(text.encode(), thought_end.encode())
    return SampledTrace(0, group, start, 0, text, text if answer is None else answer.decode(), [0], completion)


def graded(
    text: str, thought_end: str, *, cut: bool, thinks: bool = True, **of_trace: Any
) -> list[tuple[str | None, float]]:
    """Answer and reward of a trace and of a branch with this text, by a pool without processes: whole numbers need
    none.
    """
    prover = MonteCarlo(Branches(None), 1)  # type: ignore[arg-type]  # nothing is asked
    asking = ProverSession(prover, AnswerHistory(8), thinks, lambda *_: "")
    whole = trace(text, thought_end, cut=cut, **of_trace)
    branch = SampledBranch(boundary=0, branch=0, text=text, completion=whole.completion)
    valued = replace(whole, valuation=Valuation(branches=[branch]))
    found = asyncio.run(TraceGrader(GraderPool(MathVerifier()), thought_end, asking).grade(valued))
    return [(one.answer, one.reward) for one in (found.rollouts[0], found.branches[0])]


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(("text", "whole", "limited"), [
    (CLOSED, ("7", 1.0), ("7", 1.0)), (OPEN, ("7", 1.0), (None, 0.0)), (THINKING, (None, 0.0), (None, 0.0))
])  # fmt: skip
@pytest.mark.parametrize("forced", [0, 3])
def test_a_trace_and_a_branch_that_thinks_count_by_their_closed_box(
    text: str, whole: tuple[str | None, float], limited: tuple[str | None, float], cut: bool, forced: int
) -> None:
    assert graded(text, "</think>", cut=cut, forced=forced) == [limited if cut else whole] * 2


def test_forced_answers_texts_without_tags_and_several_gold_answers_follow_the_same_rule() -> None:
    for text, reward in (("\\boxed{7} as", 1.0), ("\\boxed{7}, \\boxed{8", 0.0), ("\\boxed{7", 0.0)):
        found = graded(text, "", cut=True, thinks=False, forced=3)
        assert [one for _, one in found] == [reward] * 2, text
    for cut, reward in ((False, 1.0), (True, 0.0)):
        assert [found for _, found in graded(THINKING, "", cut=cut)] == [reward] * 2
    for gold, reward in ((("8", "7"), 1.0), (("8", "9"), 0.0)):
        assert graded(CLOSED, "</think>", cut=False, gold=gold) == [("7", reward)] * 2
