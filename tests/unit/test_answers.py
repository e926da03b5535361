"""Where the final answer stands in a completion."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrt_hpc.domains.extraction import braces_balance, extract_answer

HOSTILE = st.lists(
    st.sampled_from(["\\boxed{", "\\boxed", "\\fbox {", "</think>", "<think>"]) | st.sampled_from("{}\\7é \n"),
    max_size=60,
).map("".join)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{42}", "42"),
        ("so \\boxed{ 42 }.", "42"),
        ("\\boxed{1}, no, \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}} done", "\\frac{1}{2}"),
        ("\\boxed{\\left\\{1, 2\\right\\}}", "\\left\\{1, 2\\right\\}"),
        ("\\boxed{\\{1\\}}", "\\{1\\}"),
        ("\\boxed{a\\\\}", "a\\\\"),
        ("\\boxed {7}", "7"),
        ("\\fbox{7}", "7"),
        ("\\boxed{the answer is \\boxed{5}}", "5"),
        ("\\boxed{1} and then \\boxed{2", "1"),
        ("a stray { and \\boxed{3}", "3"),
        ("a stray } and \\boxed{3}", "3"),
        ("\\boxed{1 \\boxed{2}", "2"),
        ("\\boxed{4}}}", "4"),
        ("\\boxed{}", None),
        ("\\boxed{5} or \\boxed{ }", None),
        ("\\boxed{5", None),
        ("\\boxed", None),
        ("42", None),
        ("", None),
        ("<think> \\boxed{1} </think> \\boxed{2}", "2"),
        ("\\boxed{1} </think> no box here", None),
        ("\\boxed{1} </think>", None),
        ("x </think> \\boxed{2} </think> \\boxed{3}", "3"),
        ("Time is up.\n</think>\n\nThe answer is \\boxed{8}", "8"),
    ],
)
def test_the_answer_is_the_last_balanced_box_after_the_thought(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


def test_a_thought_cut_off_has_no_answer() -> None:
    assert extract_answer("I try \\boxed{1}", thinking=True) is None
    assert extract_answer("I try \\boxed{1}</think>\\boxed{2}", thinking=True) == "2"


def test_another_closing_tag() -> None:
    assert extract_answer("\\boxed{1} [done] \\boxed{2}", thinking=True, thought_end="[done]") == "2"


@settings(deadline=None)
@given(HOSTILE)
def test_what_is_extracted_is_balanced_stripped_and_part_of_the_text(text: str) -> None:
    answer = extract_answer(text)
    if answer is not None:
        assert answer
        assert answer == answer.strip()
        assert answer in text
        assert braces_balance(answer)


@settings(deadline=None)
@given(st.text(), HOSTILE, st.text(alphabet="0123456789+-x{} ").filter(braces_balance))
def test_a_box_at_the_end_is_found_whatever_comes_before(thought: str, before: str, content: str) -> None:
    text = f"{thought}</think>{before} \\boxed{{{content}}}"
    assert extract_answer(text) == (content.strip() or None)


@settings(deadline=None)
@given(st.text() | HOSTILE)
def test_braces_balance_agrees_with_counting(text: str) -> None:
    plain = text.replace("\\", "")
    depth, lowest = 0, 0
    for character in plain:
        depth += (character == "{") - (character == "}")
        lowest = min(lowest, depth)
    assert braces_balance(plain) == (depth == 0 and lowest == 0)


LINEAR = ["\\boxed{", "{", "}", "\\boxed{x}", "\\boxed ", "\\", "\\boxed" + " " * 50, "\\boxed{{}"]


@pytest.mark.parametrize("unit", LINEAR)
def test_time_grows_linearly_with_the_text(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    started = time.process_time()
    extract_answer(text)
    assert time.process_time() - started < 3.0  # a quadratic scan of a million characters takes minutes


def test_deeply_nested_boxes_are_linear() -> None:
    depth = 50_000
    text = "\\boxed{" * depth + "7" + "}" * depth
    started = time.process_time()
    assert extract_answer(text) == "7"
    assert time.process_time() - started < 2.0


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
