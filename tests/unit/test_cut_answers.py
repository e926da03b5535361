"""One rule for what the token limit cut: an answer counts where its box is closed after the thought."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.math.verifier import MathVerifier
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.tokens import thought_and_answer
from mrt_hpc.inference.traces import PromptedGroup, SampledBranch, SampledTrace, Start, Valuation
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.history import AnswerHistory
from mrt_hpc.provers.monte_carlo import MonteCarlo
from mrt_hpc.provers.prover_session import ProverSession
from mrt_hpc.roles.sampling.grading import TraceGrader
from mrt_hpc.run.records import FinishReason, Gold, Problem

if TYPE_CHECKING:
    from mrt_hpc.run.groups import Sampled

CLOSED, OPEN, THINKING = "so</think>\\boxed{7} as", "so</think>\\boxed{7}, no, \\boxed{8", "so \\boxed{7}"


def trace(text: str, thought_end: str, *, cut: bool, forced: int = 0, gold: Gold = "7") -> SampledTrace:
    start = Start([1], 1, None, forced=forced)  # type: ignore[arg-type]  # nothing is sampled
    group = PromptedGroup(Problem("p", "What is it?", gold), [1], (start,))
    reason = FinishReason.LENGTH if cut else FinishReason.STOP
    completion = Completion(0, 0, 0, [5], [-0.5], reason, 0, 1, 0, [], 0.0, 0.0)
    _, answer = thought_and_answer(text.encode(), thought_end.encode())
    answer_text = text if answer is None else answer.decode()
    return SampledTrace(0, group, start, 0, text, answer_text, [0], completion)


def branch(text: str, *, cut: bool) -> SampledBranch:
    return SampledBranch(
        boundary=0, branch=0, text=text, token_ids=[5], logprobs=[-0.5], seed=0, weights_version=0, known=False,
        finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP, prompt_tokens=1, cached_tokens=0,
    )  # fmt: skip


def graded(valued: SampledTrace, thought_end: str, *, branches_think: bool = True) -> Sampled:
    """By a pool without processes: whole numbers need none."""
    prover = MonteCarlo(Branches(None), 1)  # type: ignore[arg-type]  # nothing is asked
    asking = ProverSession(prover, AnswerHistory(8), branches_think)
    return asyncio.run(TraceGrader(GraderPool(MathVerifier()), thought_end, asking).grade(valued))


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    ("text", "whole", "limited"),
    [(CLOSED, ("7", 1.0), ("7", 1.0)), (OPEN, ("7", 1.0), (None, 0.0)), (THINKING, (None, 0.0), (None, 0.0))],
)
@pytest.mark.parametrize("forced", [0, 3])
def test_a_trace_and_a_branch_that_thinks_count_by_their_closed_box(
    text: str, whole: tuple[str | None, float], limited: tuple[str | None, float], cut: bool, forced: int
) -> None:
    valued = trace(text, "</think>", cut=cut, forced=forced)
    found = graded(replace(valued, valuation=Valuation(branches=[branch(text, cut=cut)])), "</think>")
    assert (found.rollouts[0].answer, found.rollouts[0].reward) == (limited if cut else whole)
    assert (found.branches[0].answer, found.branches[0].reward) == (limited if cut else whole)


@pytest.mark.parametrize(
    ("text", "reward"), [("\\boxed{7} as", 1.0), ("\\boxed{7}, \\boxed{8", 0.0), ("\\boxed{7", 0.0)]
)
def test_a_forced_branch_and_a_forced_trace_follow_the_same_rule(text: str, reward: float) -> None:
    valued = trace(text, "", cut=True, forced=3)
    valued = replace(valued, valuation=Valuation(branches=[branch(text, cut=True)]))
    found = graded(valued, "", branches_think=False)
    assert (found.rollouts[0].reward, found.branches[0].reward) == (reward, reward)


@pytest.mark.parametrize(("cut", "reward"), [(False, 1.0), (True, 0.0)])
def test_without_tags_a_text_that_the_limit_cut_has_no_answer(cut: bool, reward: float) -> None:
    valued = replace(trace(THINKING, "", cut=cut), valuation=Valuation(branches=[branch(THINKING, cut=cut)]))
    found = graded(valued, "")
    assert (found.rollouts[0].reward, found.branches[0].reward) == (reward, reward)


@pytest.mark.parametrize(("gold", "reward"), [(("8", "7"), 1.0), (("8", "9"), 0.0)])
def test_a_trace_and_its_branches_are_graded_by_any_of_several_gold_answers(gold: Gold, reward: float) -> None:
    valued = trace(CLOSED, "</think>", cut=False, gold=gold)
    found = graded(replace(valued, valuation=Valuation(branches=[branch(CLOSED, cut=False)])), "</think>")
    assert (found.rollouts[0].answer, found.rollouts[0].reward, found.branches[0].reward) == ("7", reward, reward)
