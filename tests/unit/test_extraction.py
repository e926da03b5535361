"""Where thoughts end and answers stand: the rules that find an answer in a completion, beside those of other trainers,
on one table of completions; and what recipes force and leave out.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from extraction_references import REFERENCES
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt_hpc.domains.extraction import RULES, braces_balance, extract_answer
from mrt_hpc.errors import UserError
from mrt_hpc.inference.tokens import answer_start, last_box, thought_and_answer
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION, Extraction
from mrt_hpc.recipe.kinds import DEFAULT_FORCED_TEXT
from mrt_hpc.recipe.load import OPEN_FORCED_TEXT, load_recipe
from mrt_hpc.recipe.lock import lock_text, read_recipe_lock

RECIPES = Path(__file__).parents[2] / "recipes"

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "extraction_cases.jsonl").read_text("utf-8").splitlines()
]
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


def test_the_table_tells_the_rules_apart_and_the_default_is_the_usual_one() -> None:
    assert len(CASES) >= 40
    assert len({case["id"] for case in CASES}) == len(CASES)
    found = {(case["after_thought"], case["any_box"], case["last_mathematics"]) for case in CASES}
    assert {(None, "42", None), (None, "41", "42"), (None, None, "5"), ("42", "42", "42")} <= found
    assert tuple(RULES) == get_args(Extraction)
    assert next(iter(RULES)) == DEFAULT_EXTRACTION
    assert RULES[DEFAULT_EXTRACTION] is extract_answer


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        ("\\boxed{1} and then \\boxed{2", "1", None),
        ("\\boxed{1} and then", "1", "1"),
        ("\\boxed{1} and then \\boxed{\\frac{1}{2}", "1", None),
        ("\\boxed{1 \\boxed{2}", "2", "2"),
        ("\\boxed{1} \\fbox{", "1", None),
        ("\\boxed{2", None, None),
        ("\\boxed{1} \\{", "1", "1"),
    ],
)
def test_a_last_box_that_the_limit_left_open_is_no_answer_and_no_earlier_one_is(
    text: str, whole: str | None, cut: str | None
) -> None:
    assert extract_answer(text) == whole
    assert extract_answer(text, cut=True) == cut
    assert extract_answer("x</think>" + text, thinking=True, cut=True) == cut


def test_a_thought_ends_with_the_closing_tag_of_the_recipe() -> None:
    text = "\\boxed{1} [done] it is 2"
    found = {name: rule(text, thinking=True, thought_end="[done]") for name, rule in RULES.items()}
    assert found == {"after_thought": None, "any_box": "1", "last_mathematics": "2"}
    assert extract_answer("\\boxed{1} [done] \\boxed{2}", thinking=True, thought_end="[done]") == "2"


@pytest.mark.parametrize(
    ("tag", "thought", "answer"),
    [
        (b"</think>", b"a\n", b"\n\nb</think>c"),
        (b"</think>", rb"so \boxed{3}", None),
        (b"", rb"First \boxed{2}. No: ", rb"\boxed{\frac{1}{2}}."),
        (b"", rb"so \boxed{3", None),
        (b"", b"", None),
    ],
)
def test_the_first_closing_tag_or_without_tags_the_last_box_that_closes_ends_the_thought(
    tag: bytes, thought: bytes, answer: bytes | None
) -> None:
    text = thought if answer is None else thought + tag + answer
    assert thought_and_answer(text, tag) == (thought, answer)


@settings(deadline=None)
@given(TEXTS, st.booleans(), st.booleans())
def test_what_a_rule_finds_is_a_stripped_part_of_the_text_and_balanced(text: str, thinking: bool, cut: bool) -> None:
    for rule in RULES.values():
        found = rule(text, thinking=thinking, cut=cut)
        assert found is None or (found and found == found.strip() and found in text)
    assert braces_balance(extract_answer(text) or "")
    text = text.replace("</think>", "")
    assert RULES["any_box"](text) == extract_answer(text), "without a thought the two rules agree"


@settings(deadline=None)
@given(TEXTS, TEXTS, st.booleans())
def test_the_rules_agree_where_a_whole_completion_ends_with_a_box(thought: str, before: str, thinking: bool) -> None:
    text = f"{thought}</think>{before} \\boxed{{12}}"
    assert {rule(text, thinking=thinking) for rule in RULES.values()} == {"12"}


@settings(deadline=None)
@given(st.text(), TEXTS, st.text(alphabet="0123456789+-x{} ").filter(braces_balance))
def test_a_box_at_the_end_is_found_whatever_comes_before(thought: str, before: str, content: str) -> None:
    text = f"{thought}</think>{before} \\boxed{{{content}}}"
    assert extract_answer(text) == (content.strip() or None)


@settings(deadline=None)
@given(st.text() | TEXTS)
def test_braces_balance_agrees_with_counting(text: str) -> None:
    plain = text.replace("\\", "")
    depth, lowest = 0, 0
    for character in plain:
        depth += (character == "{") - (character == "}")
        lowest = min(lowest, depth)
    assert braces_balance(plain) == (depth == 0 and lowest == 0)


@given(st.lists(st.sampled_from([r"\boxed{", "{", "}", r"\{", r"\fbox {", "1", "\n"]), max_size=30))
def test_the_box_that_ends_a_thought_is_the_one_that_is_graded(parts: list[str]) -> None:
    text = "".join(parts)
    thought, answer = thought_and_answer(text.encode(), b"")
    assert thought + (answer or b"") == text.encode()
    assert extract_answer((answer or b"").decode()) == extract_answer(text)
    if last_box(text.encode()) is None:
        assert answer is None


LINEAR = [
    "\\(", "\\[ ", "$", "$$ ", "$5 ", "5 ", "5", "1,", ",123", "5+", "5 +", "(5", "-", "answer", "answer 5 ",
    "\\frac{", "\\frac{1}{2}", "\\frac{1}{2", "\\boxed{", "\\boxed{x}", "\\boxed{{}", "\\boxed ", "{", "}", "\n", "\\",
    ".5", "5%", "5" + " " * 50, "\\frac" + " " * 50, "\\boxed" + " " * 50,
]  # fmt: skip
"""A quadratic scan of half a million characters of these takes minutes."""


@pytest.mark.parametrize("unit", LINEAR)
def test_time_grows_linearly_with_the_text(unit: str) -> None:
    text = unit * (500_000 // len(unit))
    started = time.process_time()
    for rule in RULES.values():
        rule(text)
    last_box(text.encode())
    assert extract_answer("\\boxed{" * 20_000 + "7" + "}" * 20_000) == "7"
    assert time.process_time() - started < 6.0


def test_what_of_the_forced_text_is_the_answers_and_where_it_starts() -> None:
    assert answer_start(DEFAULT_FORCED_TEXT, "</think>") == "\n\n**Final Answer**\n\nThe final answer is"
    assert answer_start(OPEN_FORCED_TEXT, "") == "The final answer is"
    assert answer_start("", "") == ""
    # it starts a line behind an inner prefix, the prompt's end and a whole thought, and adds no second blank line
    tagged = [before + DEFAULT_FORCED_TEXT for before in ("Try 3.\n\n", "<think>\n", "So it is 8.\n")]
    tagless = [before + OPEN_FORCED_TEXT for before in ("Try 3.\n\n", "Solve it.\n", "The answer is $")]
    assert all("\nTime is up." in text for text in (*tagged, *tagless))
    assert not any("\n\n\n" in text for text in tagged)
    assert not any("\n\n\n\n" in text for text in tagless)


def test_provers_of_a_recipe_without_tags_force_answers_without_tags(tmp_path: Path) -> None:
    recipe = load_recipe(
        RECIPES / "instruct_mrt_online.yaml",
        ("evaluation.prover={type: boxed_answer}", "evaluation.regret_budgets=[2048]"),
    )
    assert recipe.prover is not None
    assert recipe.evaluation.prover is not None
    assert recipe.prover.forced_text == recipe.evaluation.prover.forced_text == OPEN_FORCED_TEXT
    assert "think>" not in OPEN_FORCED_TEXT
    (tmp_path / "recipe.lock.yaml").write_text(lock_text(recipe))
    assert read_recipe_lock(tmp_path / "recipe.lock.yaml") == recipe
    own = load_recipe(RECIPES / "instruct_mrt_online.yaml", ('prover.forced_text="So:"',))
    assert own.prover is not None
    assert own.prover.forced_text == "So:"


def test_every_algorithm_can_do_without_tags_but_for_learning_to_stop() -> None:
    tagless = 'prompt={thought_start: "", thought_end: ""}'
    for name in ("mrt_online", "mrt", "backtracking", "mrt_star", "star", "grpo", "length_penalty"):
        assert load_recipe(RECIPES / f"{name}.yaml", (tagless,)).prompt.thought_end == ""
    with pytest.raises(UserError, match="train_terminated"):
        load_recipe(RECIPES / "mrt.yaml", (tagless, "algorithm.train_terminated=true"))
    with pytest.raises(UserError, match="thought_start"):
        load_recipe(RECIPES / "mrt_online.yaml", ('prompt={thought_end: ""}',))
