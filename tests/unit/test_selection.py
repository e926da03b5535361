"""What is learnt of sampled traces: STaR, MRT by filtered likelihood, a length penalty, backtracking, branches."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from commands import recipe
from samples import branch_with, rollout_with

from mrt_hpc import Batch, UserError
from mrt_hpc.algorithms.backtracking import Backtracking
from mrt_hpc.algorithms.grpo import Grpo
from mrt_hpc.algorithms.learnt_batch import treat_overlong
from mrt_hpc.algorithms.length_penalty import LengthPenalty
from mrt_hpc.algorithms.mrt_online import branch_sequences
from mrt_hpc.mrt import backtracking
from mrt_hpc.mrt.backtracking import Attempt, StepContinuation, Variant, best_boundary, first_loss, revise
from mrt_hpc.mrt.grpo import Baseline, outcome_advantages
from mrt_hpc.mrt.length_penalty import budgeted_rewards, penalised_rewards
from mrt_hpc.mrt.sft import ASSISTANT, USER, ChatFormat, Conversation, Message, mask_conversation, mask_suffix
from mrt_hpc.mrt.star import Selected, first_peak, select_correct, select_progressing
from mrt_hpc.recipe.choices import Aggregation
from mrt_hpc.recipe.sections import Training
from mrt_hpc.run.records import Branch, FinishReason
from mrt_hpc.training.engine import TrainerEngine
from mrt_hpc.training.settings import TrainerSettings


def test_star_learns_what_is_right_and_mrt_ranks_it_by_progress_and_cuts_it_at_the_first_peak() -> None:
    assert select_correct([0.0, 1.0, 1.0, 0.0, 1.0]) == [1, 2, 4]
    assert select_correct([0.0, 1.0, 1.0, 0.0, 1.0], keep=2) == [1, 2]
    right = [1.0, 1.0, 1.0, 0.0, 1.0]
    values = [
        np.array([0.0, 0.5, 1.0, 0.5, 1.0]),  # peaks after two episodes, total 1.0
        np.array([0.5, 0.25, 0.75]),  # a loss of 0.25 before its peak, total 0.5
        np.array([0.25, 0.5]),  # total 0.25
        np.array([0.0, 1.0]),  # wrong in the end
        np.array([1.0, 0.5]),  # best before it thought at all
    ]
    assert first_peak(np.array([0.25, 0.75, 0.5, 0.75])) == 1
    assert select_progressing(right, values, threshold=-0.3) == [Selected(0, 2), Selected(1, 2), Selected(2, 1)]
    kept = select_progressing(right, values, threshold=-0.2)
    assert kept == [Selected(0, 2), Selected(2, 1)], "the loss of the first comes after its cut"


def test_only_right_answers_are_penalised_against_the_other_right_ones_by_what_the_coefficient_says() -> None:
    # right ones of problem a: lengths 10 and 30, mean 20, std 10: sigmoid(-1) = 0.26894, sigmoid(1) = 0.73106
    rewards, lengths = np.array([1.0, 1.0, 0.0, 1.0]), np.array([10.0, 30.0, 500.0, 77.0])
    got = penalised_rewards(rewards, rewards == 1.0, lengths, ["a", "a", "a", "b"], coefficient=0.5)
    assert got == pytest.approx([1 - 0.5 * 0.268941, 1 - 0.5 * 0.731059, 0.0, 0.75], abs=1e-6)
    assert LengthPenalty().normalise == "none", "where all are right, dividing would cancel the coefficient"
    for coefficient in (0.4, 0.01):
        rewards = penalised_rewards(np.ones(2), np.ones(2, bool), lengths[:2], ["a", "a"], coefficient=coefficient)
        advantages = outcome_advantages(rewards, ["a", "a"], baseline=Baseline.GROUP)
        assert advantages == pytest.approx(np.array([1, -1]) * coefficient * (0.731059 - 0.268941) / 2, rel=1e-4)
    assert budgeted_rewards(np.array([1.0, 1, 1, 0, 0.5]), lengths[[0, 1, 2, 0, 1]], budget=20, coefficient=0.02) == (
        pytest.approx([0.7, 0.3, 0.0, 0.0, 0.15])
    )


def rollouts(*rewards: float) -> list[StepContinuation]:
    return [StepContinuation(f"<{n}>", r, True) for n, r in enumerate(rewards)]


STEPS = ["a ", "b ", "c"]
CONTINUATIONS = [rollouts(0, 0, 0, 1), rollouts(0, 1, 1, 1), rollouts(1, 1, 0, 0), rollouts(1, 0, 1, 1)]
ATTEMPT = Attempt("p", "What?", STEPS, "!", 0.0, CONTINUATIONS)


def test_the_first_loss_is_one_that_is_larger_than_its_noise() -> None:
    """The first loss is 0.1, of a standard error of 0.158 with 20 rollouts; the second 0.4, of one of 0.137."""
    for sigmas, boundary in ((0, 1), (0.6, 1), (0.7, 2), (2.9, 2), (3, 3)):
        assert first_loss(np.array([0.55, 0.45, 0.05, 0.05]), [20] * 4, sigmas) == boundary, sigmas
    assert first_loss(np.array([0.1, 0.2]), [10] * 2, 0) == 1
    default = Backtracking.model_fields["min_loss_sigmas"].default
    assert first_loss(np.array([1.0, 1.0, 0.0, 0.0, 0.0]), [20] * 5, default) == 2


def test_the_four_variants_of_backtracking() -> None:
    assert ATTEMPT.values().tolist() == [0.25, 0.75, 0.5, 0.75]
    assert best_boundary(ATTEMPT.values()) == 3, "the last of the best"
    for variant, attempt, boundary, revised in (
        (Variant.RESAMPLE, "a b c!", 0, "<3>"),
        (Variant.SHARED_PREFIX, "a b c!", 3, "a b c<0>"),
        (Variant.NO_SHARED_PREFIX, "a b c!", 3, "<0>"),
        (Variant.NO_FULL_ROLLOUT, "a b ", 1, "<1>"),
    ):
        found = revise(ATTEMPT, variant, min_loss_sigmas=0)
        assert found and (found.attempt, found.boundary, found.revised) == (attempt, boundary, revised)
        back = "Back to step {step}."
        conversation = backtracking.revision_conversation(found, back, instruction=" Think.", opening="<t>")
        said = ["What? Think.", f"<t>{attempt}", f"Back to step {boundary}.", f"<t>{revised}"]
        assert [(m.role, m.content) for m in conversation.messages] == [*zip([USER, ASSISTANT] * 2, said, strict=True)]
        suffix = backtracking.revision_suffix(found, back)
        assert (suffix.problem, suffix.suffix) == ("What?", revised)
        assert suffix.prefix == f"{attempt}\n\nBack to step {boundary}.\n\n"
    cut = [*CONTINUATIONS[:-1], [replace(CONTINUATIONS[-1][0], whole=False), *CONTINUATIONS[-1][1:]]]
    found = revise(replace(ATTEMPT, continuations=cut), Variant.NO_SHARED_PREFIX, min_loss_sigmas=0)
    assert found and (found.boundary, found.revised) == (3, "<2>"), "one that was cut counts, and is not learnt"
    hopeless = Attempt("p", "What?", ["a"], "", 0.0, [rollouts(0, 0), rollouts(0, 0)])
    for attempt in (replace(ATTEMPT, reward=1.0), hopeless):
        assert revise(attempt, Variant.SHARED_PREFIX, min_loss_sigmas=0) is None


def render(messages: Sequence[Message], open_next: bool) -> str:
    turns = [f"A{m.content}.\n" if m.role == ASSISTANT else f"U{m.content}\n" for m in messages]
    return "".join(turns) + ("A" if open_next else "")


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


CHAT = ChatFormat(render, encode, ".")
TURNS = (Message(USER, "q"), Message(ASSISTANT, "ab"), Message(USER, "r"), Message(ASSISTANT, "c"))


def test_every_turn_of_the_assistant_is_learnt_with_its_end_and_no_further() -> None:
    masked = mask_conversation(Conversation("s", TURNS), CHAT)
    assert masked.token_ids == encode("Uq\nAab.\nUr\nAc.\n")
    learnt = "".join(chr(i) for i, is_learnt in zip(masked.token_ids, masked.learnt, strict=True) if is_learnt)
    assert (learnt, masked.first_learnt) == ("ab.c.", 4)
    seen: list[str] = []
    mask_conversation(Conversation("s", TURNS[:2]), ChatFormat(render, lambda t: seen.append(t) or encode(t), "."))
    assert seen == ["Uq\nA", "ab.", "\n"], "as when sampled, a learnt stretch becomes tokens by itself"


def test_a_suffix_is_learnt_by_its_position_and_what_cannot_be_learnt_is_refused() -> None:
    masked = mask_suffix("s", [1, 2], [3], [4, 5])
    assert (masked.token_ids, masked.learnt.tolist()) == ([1, 2, 3, 4, 5], [False, False, False, True, True])
    with pytest.raises(ValueError, match="no suffix"):
        mask_suffix("s", [1], [2], [])
    rewriting = ChatFormat(lambda messages, open_next: render(messages[-1:], open_next), encode, ".")
    with pytest.raises(ValueError, match="turn 1"):
        mask_conversation(Conversation("s", TURNS), rewriting)
    with pytest.raises(ValueError, match="no turn of the assistant"):
        mask_conversation(Conversation("s", (Message(USER, "q"),)), CHAT)


def test_a_trace_that_was_cut_is_learnt_or_left_out_of_the_loss_or_penalised() -> None:
    """Two problems of two traces; the right one of `a` and both of `b` were cut at 8 tokens, after 6 at least."""
    lengths, rewards, cut = [8, 4, 8, 6], [1.0, 0.0, 0.0, 0.0], [True, False, True, True]
    reasons = (FinishReason.STOP, FinishReason.LENGTH)
    traces = [
        rollout_with([5] * n, problem_id="aabb"[i], sample=i % 2, reward=r, finish_reason=reasons[c])
        for i, (n, r, c) in enumerate(zip(lengths, rewards, cut, strict=True))
    ]
    batch = Batch(traces, [{}] * 4, [], "", np.zeros(0), [])
    kept, masked, penalised = (
        treat_overlong(batch, recipe("small_world/grpo", "sampling.max_tokens=8", *changes))
        for changes in ((), ("training.overlong=mask",), ("training.overlong=penalise", "training.overlong_buffer=4"))
    )
    assert kept is batch
    for treated, advantages, trained, signal in (
        (kept, [1, -1, 0, 0], [8, 4, 8, 6], {"a"}),
        (masked, [1, -1, 0, 0], [0, 4, 0, 0], {"a"}),
        (penalised, [0.5, -0.5, -0.25, 0.25], [8, 4, 8, 6], {"a", "b"}),
    ):
        learnt = Grpo().learnt(treated)
        assert [s.advantages[0] for s in learnt.sequences] == advantages, "a masked reward stays in the baseline"
        assert ([s.trained_tokens for s in learnt.sequences], learnt.groups_with_signal) == (trained, signal)
    assert Grpo(without_outcome="drop").learnt(penalised).groups_with_signal == {"a"}
    assert [treated.right.tolist() for treated in (kept, penalised)] == [[True, False, False, False]] * 2
    for aggregation, divisor in {"token": 4, "sequence": 1, "constant": 4 * 8}.items():
        training = Training(learning_rate=1e-3, aggregation=Aggregation(aggregation))
        engine: Any = SimpleNamespace(settings=TrainerSettings(training, 1, 1.0, longest_trace=8))
        assert TrainerEngine.divisor(engine, [0, 4, 0, 0]) == divisor


FORCED = [90, 91]
ROLLOUT = rollout_with([10, 11, 12, 13], problem_id="p", sample=3, prompt_ids=[1, 2], boundaries=[0, 2, 3])


def branch(boundary: int, number: int, reward: float, prompt_tokens: int | None = None) -> Branch:
    """One that is sampled after its prefix and the forced text, unless it says otherwise."""
    usual = len(ROLLOUT.prompt_ids) + ROLLOUT.boundaries[boundary] + len(FORCED)
    return branch_with(
        [50 + number, 60], problem_id="p", sample=3, boundary=boundary, branch=number, reward=reward,
        logprobs=[-1.0, -0.25 * number], prompt_tokens=prompt_tokens or usual,
    )  # fmt: skip


def batch(*branches: Branch) -> Batch:
    return Batch([ROLLOUT], [{}], [], "", np.zeros(0), list(branches))


MIXED = [branch(1, 0, 1.0), branch(1, 1, 0.0)]


def test_a_branch_is_learnt_after_its_prefix_and_the_forced_text() -> None:
    right, wrong = branch_sequences(batch(*MIXED), FORCED)[0]
    assert right.prompt_ids == wrong.prompt_ids == [1, 2, 10, 11, 90, 91]
    assert (right.token_ids, wrong.token_ids) == ([50, 60], [51, 60])
    assert (right.advantages.tolist(), wrong.advantages.tolist()) == ([1.0, 1.0], [-1.0, -1.0])
    assert wrong.behaviour_logprobs.tolist() == [-1.0, -0.25]
    assert right.mask.all() and right.group == "p"
    agreeing = [branch(0, 0, 0.0), branch(0, 1, 0.0), branch(2, 0, 1.0), branch(2, 1, 1.0)]
    sequences = branch_sequences(batch(*agreeing, *MIXED), FORCED)[0]
    assert [s.has_signal for s in sequences] == [False, False, True, True, False, False]
    assert sum(s.trained_tokens for s in sequences) == 12, "those that agree count in the divisor, as traces do"


def test_a_boundary_whose_branches_had_another_text_is_dropped_and_counted() -> None:
    """A committed group is met again at every restart: it must not stop a run, unless none of its branches fits."""
    odd = branch(1, 1, 0.0, prompt_tokens=13)
    found, dropped = branch_sequences(batch(branch(1, 0, 1.0), odd, branch(2, 0, 1.0), branch(2, 1, 0.0)), FORCED)
    assert (dropped, [s.prompt_ids for s in found]) == (2, [[1, 2, 10, 11, 12, 90, 91]] * 2)
    with pytest.raises(UserError, match="6 tokens"):
        branch_sequences(batch(*(branch(1, n, float(n), prompt_tokens=7) for n in range(2))), FORCED)
