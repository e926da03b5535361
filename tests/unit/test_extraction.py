"""The rules that find an answer in a completion, beside those of other trainers, on one table of completions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from extraction_references import REFERENCES
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt_hpc.domains.extraction import RULES, braces_balance
from mrt_hpc.recipe.choices import DEFAULT_EXTRACTION, Extraction

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "extraction_cases.jsonl").read_text("utf-8").splitlines()
]
TEXTS = st.lists(
    st.sampled_from(["\\boxed{", "\\fbox{", "</think>", "\\(", "\\)", "\\[", "\\]", "$$", "answer"])
    | st.sampled_from(["\\frac{1}{2}", "1,234"])
    | st.sampled_from("{}\\$7.5+=%é \n"),
    max_size=60,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_what_each_rule_finds(case: dict[str, Any], rule: Extraction) -> None:
    assert RULES[rule](case["text"], thinking=case["thinking"], cut=case["cut"]) == case[rule], case["why"]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_what_the_rules_of_others_find(case: dict[str, Any]) -> None:
    assert {name: rule(case["text"]) for name, rule in REFERENCES.items()} == case["others"]


def test_the_table_tells_the_rules_apart() -> None:
    assert len(CASES) >= 40
    assert len({case["id"] for case in CASES}) == len(CASES)
    found = {(case["after_thought"], case["any_box"], case["last_mathematics"]) for case in CASES}
    assert {(None, "42", None), (None, "41", "42"), (None, None, "5"), ("42", "42", "42")} <= found


def test_every_rule_of_a_recipe_exists_and_the_default_is_the_first() -> None:
    assert tuple(RULES) == get_args(Extraction)
    assert next(iter(RULES)) == DEFAULT_EXTRACTION


def test_another_closing_tag() -> None:
    text = "\\boxed{1} [done] it is 2"
    found = {name: rule(text, thinking=True, thought_end="[done]") for name, rule in RULES.items()}
    assert found == {"after_thought": None, "any_box": "1", "last_mathematics": "2"}


@settings(deadline=None)
@given(TEXTS, st.booleans(), st.booleans())
def test_what_a_rule_finds_is_a_part_of_the_text(text: str, thinking: bool, cut: bool) -> None:
    for rule in RULES.values():
        found = rule(text, thinking=thinking, cut=cut)
        assert found is None or (found and found == found.strip() and found in text)


@settings(deadline=None)
@given(TEXTS, TEXTS, st.booleans())
def test_the_rules_agree_where_a_whole_completion_ends_with_a_box(thought: str, before: str, thinking: bool) -> None:
    text = f"{thought}</think>{before} \\boxed{{12}}"
    assert {rule(text, thinking=thinking) for rule in RULES.values()} == {"12"}


@settings(deadline=None)
@given(TEXTS)
def test_any_box_finds_whatever_the_usual_rule_finds_in_a_text_without_a_thought(text: str) -> None:
    text = text.replace("</think>", "")
    assert RULES["any_box"](text) == RULES["after_thought"](text)
    assert braces_balance(RULES["any_box"](text) or "")


LINEAR = [
    "\\(", "\\[ ", "$", "$$ ", "$5 ", "5 ", "5", "1,", ",123", "5+", "5 +", "(5", "-", "answer", "answer 5 ",
    "\\frac{", "\\frac{1}{2}",
    "\\frac{1}{2", "\\boxed{", "\\boxed{x}", "{", "\n", "\\", ".5", "5%", "5" + " " * 50, "\\frac" + " " * 50,
]  # fmt: skip


@pytest.mark.parametrize("unit", LINEAR)
def test_time_grows_linearly_with_the_text(unit: str) -> None:
    text = unit * (500_000 // len(unit))
    started = time.process_time()
    for rule in RULES.values():
        rule(text)
    assert time.process_time() - started < 6.0  # a quadratic scan of half a million characters takes minutes
