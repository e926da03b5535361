"""What is learnt of sampled traces: STaR, MRT by filtered likelihood, a length penalty, backtracking."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mrt_hpc.algorithms.backtracking import Backtracking
from mrt_hpc.algorithms.length_penalty import LengthPenalty
from mrt_hpc.mrt.backtracking import (
    Attempt,
    StepContinuation,
    Variant,
    as_conversation,
    as_suffix,
    best_boundary,
    first_loss,
    revise,
)
from mrt_hpc.mrt.grpo import outcome_advantages
from mrt_hpc.mrt.length_penalty import penalised_rewards
from mrt_hpc.mrt.sft import ASSISTANT, USER, ChatFormat, Conversation, Message, mask_conversation, mask_suffix
from mrt_hpc.mrt.star import Selected, first_peak, select_correct, select_progressing
from mrt_hpc.provers.monte_carlo import Continuation
from mrt_hpc.recipe.load import load_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

RECIPES = Path(__file__).parents[2] / "recipes"
MIN_LOSS_SIGMAS = Backtracking.model_fields["min_loss_sigmas"].default


def test_star_learns_what_is_right() -> None:
    assert select_correct([0.0, 1.0, 1.0, 0.0, 1.0]) == [1, 2, 4]
    assert select_correct([0.0, 1.0, 1.0, 0.0, 1.0], keep=2) == [1, 2]
    assert select_correct([0.0, 0.0]) == []


VALUES = [
    np.array([0.0, 0.5, 1.0, 0.5, 1.0]),  # peaks after two episodes, total 1.0
    np.array([0.5, 0.25, 0.75]),  # a loss of 0.25 before its peak, total 0.5
    np.array([0.25, 0.5]),  # total 0.25
    np.array([0.0, 1.0]),  # wrong in the end
    np.array([1.0, 0.5]),  # best before it thought at all
]
RIGHT = [1.0, 1.0, 1.0, 0.0, 1.0]


def test_mrt_star_ranks_by_progress_and_cuts_at_the_first_peak() -> None:
    kept = select_progressing(RIGHT, VALUES, keep=None, threshold=-0.3)
    assert kept == [Selected(0, 2), Selected(1, 2), Selected(2, 1)]  # the last was best before it thought


def test_mrt_star_drops_a_trace_with_an_episode_below_the_threshold() -> None:
    kept = select_progressing(RIGHT, VALUES, keep=2, threshold=-0.2)
    assert kept == [Selected(0, 2), Selected(2, 1)]  # the loss of the first comes after its cut


def test_the_first_of_equal_peaks() -> None:
    assert first_peak(np.array([0.25, 0.75, 0.5, 0.75])) == 1


def test_only_right_answers_are_penalised_against_the_other_right_ones() -> None:
    # right ones of problem a: lengths 10 and 30, mean 20, std 10: sigmoid(-1) = 0.26894, sigmoid(1) = 0.73106
    rewards = np.array([1.0, 1.0, 0.0, 1.0])
    got = penalised_rewards(rewards, np.array([10.0, 30.0, 500.0, 77.0]), ["a", "a", "a", "b"], coefficient=0.5)
    assert got == pytest.approx([1 - 0.5 * 0.268941, 1 - 0.5 * 0.731059, 0.0, 0.75], abs=1e-6)


def rollouts(*rewards: float) -> list[StepContinuation]:
    return [StepContinuation(f"<{n}>", r) for n, r in enumerate(rewards)]


ATTEMPT = Attempt(
    problem_id="p",
    problem="What?",
    steps=["a ", "b ", "c"],
    ending="!",
    reward=0.0,
    # values 0.25, 0.75, 0.5, 0.75
    continuations=[rollouts(0, 0, 0, 1), rollouts(0, 1, 1, 1), rollouts(1, 1, 0, 0), rollouts(1, 0, 1, 1)],
)


def test_values_boundary_and_loss_of_an_attempt() -> None:
    values = ATTEMPT.values()
    assert values.tolist() == [0.25, 0.75, 0.5, 0.75]
    assert best_boundary(values) == 3  # the last of the best
    assert first_loss(values, [4, 4, 4, 4], 0) == 2
    assert first_loss(np.array([0.1, 0.2]), [10, 10], 0) == 1


@pytest.mark.parametrize(
    ("sigmas", "boundary"),
    # the first loss is 0.1 of a standard error of 0.158, the second 0.4 of 0.137, so 0.63 and 2.92 of them
    [(0, 1), (0.6, 1), (0.7, 2), (2.9, 2), (3, 3)],
)
def test_a_loss_counts_where_it_is_larger_than_its_noise(sigmas: float, boundary: int) -> None:
    values = np.array([0.55, 0.45, 0.05, 0.05])
    assert first_loss(values, [20] * 4, sigmas) == boundary


def test_a_loss_from_all_right_to_all_wrong_counts_and_none_where_nothing_changes() -> None:
    assert first_loss(np.array([1.0, 1.0, 0.0, 0.0, 0.0]), [20] * 5, MIN_LOSS_SIGMAS) == 2


@pytest.mark.parametrize("value", [0.1, 0.5, 0.9])
def test_attempts_of_constant_value_are_seldom_cut(value: float) -> None:
    """Ten steps with 20 rollouts at each boundary, whose shares differ by chance alone."""
    shares = np.random.default_rng(0).binomial(20, value, (4000, 11)) / 20
    cut = {s: np.mean([first_loss(v, [20] * 11, s) < 10 for v in shares]) for s in (0, MIN_LOSS_SIGMAS)}
    assert cut[0] > 0.9
    assert cut[MIN_LOSS_SIGMAS] < 0.04


def test_a_clear_loss_is_found_among_20_rollouts() -> None:
    """From 0.8 to 0.2 in the fifth of ten steps."""
    shares = np.random.default_rng(0).binomial(20, [0.8] * 5 + [0.2] * 6, (1000, 11)) / 20
    assert np.mean([first_loss(v, [20] * 11, MIN_LOSS_SIGMAS) == 5 for v in shares]) > 0.75


def test_what_the_paper_scale_recipe_learns_to_go_back_from_fits_together() -> None:
    recipe = load_recipe(RECIPES / "backtracking.yaml")
    assert isinstance(recipe.algorithm, Backtracking)
    assert isinstance(recipe.prover, Continuation)
    sampling, most = recipe.sampling, recipe.algorithm.max_tokens
    # the attempt, all of its steps once more, the continuation; and some tokens for the sentence between
    assert sampling.max_prompt_tokens + 2 * sampling.max_tokens + recipe.prover.max_tokens + 200 <= most
    assert recipe.training.max_tokens_per_micro_batch >= most


@pytest.mark.parametrize(
    ("variant", "attempt", "boundary", "revised"),
    [
        (Variant.RESAMPLE, "a b c!", 0, "<3>"),
        (Variant.SHARED_PREFIX, "a b c!", 3, "a b c<0>"),
        (Variant.NO_SHARED_PREFIX, "a b c!", 3, "<0>"),
        (Variant.NO_FULL_ROLLOUT, "a b ", 1, "<1>"),
    ],
)
def test_the_four_variants_of_backtracking(variant: Variant, attempt: str, boundary: int, revised: str) -> None:
    revision = revise(ATTEMPT, variant, min_loss_sigmas=0)
    assert revision is not None
    assert (revision.attempt, revision.boundary, revision.revised) == (attempt, boundary, revised)
    conversation = as_conversation(revision, "Back to step {step}.", instruction=" Think.", opening="<t>")
    said = ["What? Think.", f"<t>{attempt}", f"Back to step {boundary}.", f"<t>{revised}"]
    assert [m.content for m in conversation.messages] == said
    assert [m.role for m in conversation.messages] == [USER, ASSISTANT, USER, ASSISTANT]
    suffix = as_suffix(revision, "Back to {step}.")
    assert (suffix.problem, suffix.suffix) == ("What?", revised)
    assert suffix.prefix == f"{attempt}\n\nBack to {boundary}.\n\n"


def test_nothing_is_revised_where_nothing_was_wrong_or_nothing_right_is_known() -> None:
    right = Attempt("p", "What?", ATTEMPT.steps, "", 1.0, ATTEMPT.continuations)
    hopeless = Attempt("p", "What?", ["a"], "", 0.0, [rollouts(0, 0), rollouts(0, 0)])
    assert revise(right, Variant.SHARED_PREFIX, min_loss_sigmas=0) is None
    assert revise(hopeless, Variant.SHARED_PREFIX, min_loss_sigmas=0) is None


@pytest.mark.parametrize("coefficient", [0.4, 0.01])
def test_a_length_penalty_weighs_what_its_coefficient_says(coefficient: float) -> None:
    """Two right answers of 10 and 30 tokens: sigmoid(-1) = 0.269 and sigmoid(1) = 0.731 of the coefficient are lost."""
    assert not LengthPenalty().divide_by_std, "where all are right, dividing would cancel the coefficient"
    rewards = penalised_rewards(np.ones(2), np.array([10.0, 30.0]), ["a", "a"], coefficient=coefficient)
    advantages = outcome_advantages(rewards, ["a", "a"], divide_by_std=LengthPenalty().divide_by_std)
    assert advantages == pytest.approx(np.array([1, -1]) * coefficient * (0.731059 - 0.268941) / 2, rel=1e-4)


def test_every_prefix_needs_rollouts() -> None:
    with pytest.raises(ValueError, match="from each of 2 prefixes"):
        Attempt("p", "What?", ["a"], "", 0.0, [rollouts(1)]).values()


def render(messages: Sequence[Message], open_next: bool) -> str:
    """A chat template: U or A, the content, and at the end of an assistant's turn a full stop and a line end."""
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
    assert learnt == "ab.c."
    assert masked.first_learnt == 4


def test_learnt_stretches_become_tokens_by_themselves() -> None:
    """As a prompt and its answer do when sampled: nothing merges across."""
    seen: list[str] = []
    mask_conversation(Conversation("s", TURNS[:2]), ChatFormat(render, lambda t: seen.append(t) or encode(t), "."))
    assert seen == ["Uq\nA", "ab.", "\n"]


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    form = ChatFormat(lambda messages, open_next: render(messages[-1:], open_next), encode, ".")
    with pytest.raises(ValueError, match="writes turn 1 differently"):
        mask_conversation(Conversation("s", TURNS), form)


def test_a_suffix_is_learnt_by_its_position() -> None:
    masked = mask_suffix("s", [1, 2], [3], [4, 5])
    assert masked.token_ids == [1, 2, 3, 4, 5]
    assert masked.learnt.tolist() == [False, False, False, True, True]
    with pytest.raises(ValueError, match="no suffix"):
        mask_suffix("s", [1], [2], [])


def test_a_conversation_without_an_assistant_teaches_nothing() -> None:
    with pytest.raises(ValueError, match="no turn of the assistant"):
        mask_conversation(Conversation("s", (Message(USER, "q"),)), CHAT)
