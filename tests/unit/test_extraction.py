"""Where thoughts end and answers stand, by each rule on one table; and what recipes force and leave out."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from commands import recipe
from extraction_references import REFERENCES
from hypothesis import given
from hypothesis import strategies as st

from mrt_hpc.domains.extraction import RULES, braces_balance, extract_answer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.tokens import answer_start, last_box, thought_and_answer
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION, Extraction
from mrt_hpc.recipe.kinds import DEFAULT_FORCED_TEXT
from mrt_hpc.recipe.load import OPEN_FORCED_TEXT
from mrt_hpc.recipe.lock import lock_text, read_recipe_lock

TABLE = (Path(__file__).parent / "extraction_cases.jsonl").read_text("utf-8")
CASES = [json.loads(line) for line in TABLE.splitlines()]
TEXTS = st.lists(
    st.sampled_from(["\\boxed{", "\\boxed", "\\fbox{", "\\fbox {", "<think>", "</think>", "\\(", "\\)", "\\[", "\\]"])
    | st.sampled_from(["$$", "answer", "\\frac{1}{2}", "1,234"])
    | st.sampled_from("{}\\$7.5+=%é \n"),
    max_size=60,
).map("".join)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_what_each_rule_finds_and_the_rules_of_others(case: dict[str, Any]) -> None:
    for name, rule in RULES.items():
        assert rule(case["text"], thinking=case["thinking"], cut=case["cut"]) == case[name], (name, case["why"])
    assert {name: rule(case["text"]) for name, rule in REFERENCES.items()} == case["others"]


def test_the_table_keeps_its_cases_and_the_default_is_the_usual_rule() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) >= 40
    assert tuple(RULES) == get_args(Extraction)
    assert RULES[DEFAULT_EXTRACTION] is extract_answer


def test_a_thought_ends_with_the_closing_tag_of_the_recipe() -> None:
    text = "\\boxed{1} [done] it is 2"
    found = {name: rule(text, thinking=True, thought_end="[done]") for name, rule in RULES.items()}
    assert found == {"after_thought": None, "any_box": "1", "last_mathematics": "2"}
    assert extract_answer("\\boxed{1} [done] \\boxed{2}", thinking=True, thought_end="[done]") == "2"


def test_the_first_closing_tag_or_the_last_box_ends_the_thought() -> None:
    assert thought_and_answer(b"a\n</think>\n\nb</think>c", b"</think>") == (b"a\n", b"\n\nb</think>c")
    assert thought_and_answer(rb"so \boxed{3}", b"</think>") == (rb"so \boxed{3}", None)
    whole = rb"First \boxed{2}. No: \boxed{\frac{1}{2}}."
    assert thought_and_answer(whole, b"") == (rb"First \boxed{2}. No: ", rb"\boxed{\frac{1}{2}}.")


@given(TEXTS, st.booleans(), st.booleans())
def test_what_a_rule_finds_is_a_stripped_part_of_the_text_and_balanced(text: str, thinking: bool, cut: bool) -> None:
    for rule in RULES.values():
        found = rule(text, thinking=thinking, cut=cut)
        assert found is None or (found and found == found.strip() and found in text)
    assert braces_balance(extract_answer(text) or "")
    text = text.replace("</think>", "")
    assert RULES["any_box"](text) == extract_answer(text), "without a thought the two rules agree"


@given(st.text(), TEXTS, st.text(alphabet="0123456789+-x{} ").filter(braces_balance))
def test_a_box_at_the_end_is_found_whatever_comes_before(thought: str, before: str, content: str) -> None:
    assert extract_answer(f"{thought}</think>{before} \\boxed{{{content}}}") == (content.strip() or None)


@given(st.lists(st.sampled_from([r"\boxed{", "{", "}", r"\{", r"\fbox {", "1", "\n"]), max_size=30))
def test_the_box_that_ends_a_thought_is_the_one_that_is_graded(parts: list[str]) -> None:
    text = "".join(parts)
    thought, answer = thought_and_answer(text.encode(), b"")
    assert thought + (answer or b"") == text.encode()
    assert extract_answer((answer or b"").decode()) == extract_answer(text)
    if last_box(text.encode()) is None:
        assert answer is None


def test_what_of_the_forced_text_is_the_answers_and_where_it_starts() -> None:
    assert answer_start(DEFAULT_FORCED_TEXT, "</think>") == "\n\n**Final Answer**\n\nThe final answer is"
    assert (answer_start(OPEN_FORCED_TEXT, ""), answer_start("", "")) == ("The final answer is", "")
    # behind what ends with a newline, as every prefix with tags does; and in the sentence that opens a box
    assert DEFAULT_FORCED_TEXT.startswith("Time is up.") and OPEN_FORCED_TEXT.startswith("\nTime is up.")


def test_provers_of_a_recipe_without_tags_force_answers_without_tags(tmp_path: Path) -> None:
    boxed = ("evaluation.prover={type: boxed_answer}", "evaluation.regret_budgets=[2048]")
    asked = recipe("instruct_mrt_online", *boxed)
    assert asked.prover is not None and asked.evaluation.prover is not None
    assert asked.prover.forced_text == asked.evaluation.prover.forced_text == OPEN_FORCED_TEXT
    assert "think>" not in OPEN_FORCED_TEXT
    (tmp_path / "recipe.lock.yaml").write_text(lock_text(asked))
    assert read_recipe_lock(tmp_path / "recipe.lock.yaml") == asked
    own = recipe("instruct_mrt_online", 'prover.forced_text="So:"')
    assert own.prover is not None and own.prover.forced_text == "So:"


def test_every_algorithm_can_do_without_tags_but_for_learning_to_stop() -> None:
    tagless = 'prompt={thought_start: "", thought_end: ""}'
    for name in ("mrt_online", "mrt", "backtracking", "mrt_star", "star", "grpo", "length_penalty"):
        assert recipe(name, tagless).prompt.thought_end == ""
    with pytest.raises(UserError, match="train_terminated"):
        recipe("mrt", tagless, "algorithm.train_terminated=true")
    with pytest.raises(UserError, match="thought_start"):
        recipe("mrt_online", 'prompt={thought_end: ""}')
