"""One rule for what the token limit cut: an answer counts where its box is closed after the thought."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mrt_hpc.domains.grader_queue import GraderPool
from mrt_hpc.domains.verifiers import MathVerifier
from mrt_hpc.inference.client import Completion
from mrt_hpc.inference.tokens import thought_and_answer
from mrt_hpc.inference.traces import PromptedGroup, SampledBranch, SampledTrace, Start, Valuation
from mrt_hpc.provers.branches import Branches
from mrt_hpc.provers.history import AnswerHistory
from mrt_hpc.provers.prover_session import ProverSession
from mrt_hpc.provers.sampled_answers import MonteCarlo
from mrt_hpc.roles.sampling.grading import TraceGrader
from mrt_hpc.run.records import FinishReason, Gold, Problem

CLOSED, OPEN, THINKING = "so</think>\\boxed{7} as", "so</think>\\boxed{7}, no, \\boxed{8", "so \\boxed{7}"


def trace(text: str, thought_end: str, *, cut: bool, forced: int = 0, gold: Gold = "7") -> SampledTrace:
    start = Start([1], 1, None, forced=forced)  # type: ignore[arg-type]  # nothing is sampled
    group = PromptedGroup(Problem("p", "What is it?", gold), [1], (start,))
    reason = FinishReason.LENGTH if cut else FinishReason.STOP
    completion = Completion(0, 0, 0, [5], [-0.5], reason, 0, 1, 0, [], 0.0, 0.0)
    _, answer = thought_and_answer(text.encode(), thought_end.encode())
    answer_text = text if answer is None else answer.decode()
    return SampledTrace(0, group, start, 0, text, answer_text, [0], completion)


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
@pytest.mark.parametrize(
    ("text", "whole", "limited"),
    [(CLOSED, ("7", 1.0), ("7", 1.0)), (OPEN, ("7", 1.0), (None, 0.0)), (THINKING, (None, 0.0), (None, 0.0))],
)
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
