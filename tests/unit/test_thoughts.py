"""Where thoughts end and answers begin, with closing tags and without; and which recipes may leave tags out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.domains.extraction import extract_answer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.tokens import answer_start, last_box, thought_and_answer
from mrt_hpc.recipe.kinds import DEFAULT_FORCED_TEXT
from mrt_hpc.recipe.load import OPEN_FORCED_TEXT, load_recipe
from mrt_hpc.recipe.lock import lock_text, read_recipe_lock

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def tagless(name: str, *changes: str) -> Recipe:
    return load_recipe(RECIPES / f"{name}.yaml", ('prompt={thought_start: "", thought_end: ""}', *changes))


def test_with_tags_the_first_closing_tag_ends_the_thought() -> None:
    assert thought_and_answer(b"a\n</think>\n\nb</think>c", b"</think>") == (b"a\n", b"\n\nb</think>c")
    assert thought_and_answer(rb"so \boxed{3}", b"</think>") == (rb"so \boxed{3}", None)


def test_without_tags_the_last_box_that_closes_begins_the_answer() -> None:
    text = rb"First \boxed{2}. No: \boxed{\frac{1}{2}}."
    assert thought_and_answer(text, b"") == (rb"First \boxed{2}. No: ", rb"\boxed{\frac{1}{2}}.")
    assert thought_and_answer(rb"so \boxed{3", b"") == (rb"so \boxed{3", None)
    assert thought_and_answer(b"", b"") == (b"", None)


@given(st.lists(st.sampled_from([r"\boxed{", "{", "}", r"\{", r"\fbox {", "1", "\n"]), max_size=30))
def test_the_box_that_ends_a_thought_is_the_one_that_is_graded(parts: list[str]) -> None:
    text = "".join(parts)
    thought, answer = thought_and_answer(text.encode(), b"")
    assert thought + (answer or b"") == text.encode()
    assert extract_answer((answer or b"").decode()) == extract_answer(text)
    if last_box(text.encode()) is None:
        assert answer is None


def test_many_open_boxes_take_linear_time() -> None:
    assert last_box(rb"\boxed{" * 200_000) is None


def test_what_of_the_forced_text_is_the_answers() -> None:
    assert answer_start(DEFAULT_FORCED_TEXT, "</think>") == "\n\n**Final Answer**\n\nThe final answer is"
    assert answer_start(OPEN_FORCED_TEXT, "") == "The final answer is"
    assert answer_start("", "") == ""


@pytest.mark.parametrize("before", ["Try 3.\n\n", "<think>\n", "So it is 8.\n"])
def test_the_forced_text_starts_a_line_behind_every_prefix_without_a_second_blank_line(before: str) -> None:
    """Behind an inner prefix, the prompt's end, and a whole thought."""
    assert "\n\n\n" not in before + DEFAULT_FORCED_TEXT
    assert "\nTime is up." in before + DEFAULT_FORCED_TEXT


@pytest.mark.parametrize("before", ["Try 3.\n\n", "Solve it.\n", "The answer is $"])
def test_the_forced_text_without_tags_adds_no_blank_line_and_runs_into_no_words(before: str) -> None:
    assert "\n\n\n\n" not in before + OPEN_FORCED_TEXT
    assert "\nTime is up." in before + OPEN_FORCED_TEXT


def test_provers_of_a_recipe_without_tags_force_answers_without_tags() -> None:
    recipe = load_recipe(
        RECIPES / "instruct_mrt_online.yaml",
        ("evaluation.prover={type: boxed_answer}", "evaluation.regret_budgets=[2048]"),
    )
    assert recipe.prover is not None
    assert recipe.evaluation.prover is not None
    assert recipe.prover.forced_text == recipe.evaluation.prover.forced_text == OPEN_FORCED_TEXT
    assert "think>" not in OPEN_FORCED_TEXT
    own = load_recipe(RECIPES / "instruct_mrt_online.yaml", ('prover.forced_text="So:"',))
    assert own.prover is not None
    assert own.prover.forced_text == "So:"


def test_the_forced_text_of_a_recipe_without_tags_survives_the_lock(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPES / "instruct_mrt_online.yaml")
    (tmp_path / "recipe.lock.yaml").write_text(lock_text(recipe))
    assert read_recipe_lock(tmp_path / "recipe.lock.yaml") == recipe


@pytest.mark.parametrize("name", ["mrt_online", "mrt", "backtracking", "mrt_star", "star", "grpo", "length_penalty"])
def test_every_algorithm_can_do_without_tags(name: str) -> None:
    assert tagless(name).prompt.thought_end == ""


def test_an_opening_tag_without_a_closing_one_is_refused() -> None:
    with pytest.raises(UserError, match="thought_start"):
        load_recipe(RECIPES / "mrt_online.yaml", ('prompt={thought_end: ""}',))


def test_the_choice_to_stop_cannot_be_learnt_without_a_tag() -> None:
    with pytest.raises(UserError, match="train_terminated"):
        tagless("mrt", "algorithm.train_terminated=true")
