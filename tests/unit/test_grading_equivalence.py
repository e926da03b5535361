"""Verdicts on single pairs, and that the short cut around math-verify never differs from it.

``grading_cases.jsonl`` holds pairs of answer and gold answer: the verdict that a mathematician would give, what
math-verify alone says, and the reason. A verdict that the grader cannot give has a ``known_limit``.
"""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from math_verify import parse, parser, verify

from mrt_hpc.domains.math import equal_values, equivalence, math_verify_changes
from mrt_hpc.domains.math.cleanup import MAX_ANSWER_CHARS, clean
from mrt_hpc.domains.math.equivalence import Judgement, certain_verdict, judge
from mrt_hpc.domains.verifiers import MathVerifier, may_take_long


def is_correct(answer: str, gold: str, *, strict: bool = False) -> bool:
    verifier = MathVerifier(strict=strict)
    certain = verifier.certain(answer, gold)
    return verifier.judge(answer, gold).correct if certain is None else certain


CASES = [json.loads(line) for line in (Path(__file__).parent / "grading_cases.jsonl").read_text("utf-8").splitlines()]


def answer_of(case: dict[str, Any]) -> str | None:
    """The answer of a case: as it stands, or what the usual rule finds in its completion."""
    return case["answer"] if "answer" in case else MathVerifier().extract(case["completion"], thinking=True)


PAIRS = [(answer, case["gold"]) for case in CASES if (answer := answer_of(case)) is not None]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_every_verdict_of_the_table(case: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if limit := case.get("known_limit"):
        request.applymarker(pytest.mark.xfail(reason=limit, strict=True))
    answer = answer_of(case)
    right = answer is not None and is_correct(answer, case["gold"], strict=case.get("strict", False))
    assert right is case["right"], case["reason"]


def as_installed(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Give math-verify these functions of its own back."""
    for name in names:
        patch.setattr(math_verify_changes.OWNERS[name], name, math_verify_changes.STOCK[name])


def test_what_math_verify_alone_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is installed, with its defaults: each answer in a box, or a whole completion."""
    read = partial(parse, parsing_timeout=None)
    as_installed(monkeypatch, *math_verify_changes.STOCK)
    for case in CASES:
        text = case.get("completion") or f"\\boxed{{{case['answer']}}}"
        said = bool(verify(read(f"\\boxed{{{case['gold']}}}"), read(text), timeout_seconds=None))
        assert said is case["math_verify"], case["id"]


def test_lists_and_brackets_are_left_alone_and_only_without_strictness_answers_are_evaluated() -> None:
    for text in ("1,\\,234", "\\{1, 234\\}", "(1,\\ 234)", "x_1\\,234", "\\left\\{ 1 \\right."):
        assert clean(text) == text
    assert [is_correct("10!", "3628800", strict=strict) for strict in (False, True)] == [True, False]


@given(st.text(st.sampled_from("17x.,;*= ~\\!{}°"), max_size=40))
def test_the_clean_up_takes_no_digit_and_no_letter(text: str) -> None:
    assert re.findall("[17x]", clean(text)) == re.findall("[17x]", text)


MALFORMED = ["\\frac{1}{", "3}", "\\left( 3", "))((", "\\frac", "{" * 1000, "1" * (MAX_ANSWER_CHARS + 1)]
WORDS = {"9 (apples)": True, "apples + pears": False, "mgh + \\frac{1}{2}mv^2": True, "abcd + xyz": True}
"""Words between operators are not read as products."""


def test_what_cannot_be_read_is_said_to_be_unreadable() -> None:
    for answer in MALFORMED:
        assert judge(answer, "7") == Judgement(correct=False, readable=False), answer
    for text, readable in WORDS.items():
        assert judge(text, text) == Judgement(correct=True, readable=readable), text


INTEGERS = st.from_regex(r"\A\s{0,2}[+-]?[0-9]{1,18}\s{0,2}\Z").map(lambda text: text.replace("\x1c", " "))
SHORT_LATEX = st.lists(
    st.sampled_from("017x/,().=+ ") | st.sampled_from(["\\pi", "\\frac{1}{2}", "\\frac{1}{0}", "^2", "cm", "\\$"]),
    min_size=1,
    max_size=5,
).map("".join)


@given(INTEGERS, INTEGERS)
def test_the_short_cut_for_integers_gives_math_verifys_verdict(answer: str, gold: str) -> None:
    assert certain_verdict(answer, gold) == judge(answer, gold).correct
    assert certain_verdict(answer, answer) is judge(answer, answer).correct is True


@given(SHORT_LATEX)
def test_the_short_cut_for_identical_text_gives_math_verifys_verdict(text: str) -> None:
    certain = certain_verdict(text, text)
    assert certain is None or certain == judge(text, text).correct


def test_no_short_cut_where_it_would_be_a_guess() -> None:
    for answer, gold in (("\\text{cm}^2", "\\text{cm}^2"), ("\\$", "\\$"), ("1/2", "0.5"), ("e", "e")):
        assert certain_verdict(answer, gold) is None


def judged(pairs: list[tuple[str, str]]) -> list[Judgement]:
    """Without what earlier parses have left."""
    equivalence._parse_gold.cache_clear()
    parser.parse_latex_cached.cache_clear()
    return [judge(*pair) for pair in pairs]


def test_the_parser_gives_the_same_in_two_stages_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ("\\frac{1}{", "1,2,3", "\\{1, 2\\}", "[1, 2)", "x^2+1", "a = b = 3")
    pairs = [*PAIRS, *((answer, "\\frac{1}{2}") for answer in answers)]
    in_two = judged(pairs)
    as_installed(monkeypatch, "parse", "create_parser")
    assert judged(pairs) == in_two


def test_what_sympy_only_approximates_is_left_to_it() -> None:
    x = sympy.Symbol("x")
    assert equal_values.expressions_agree(sympy.Integral(sympy.sin(x) / x, (x, 0, sympy.oo)) + x, 7 + x) is None
    assert equal_values.expressions_agree(sympy.Function("f")(x), x) is None
    assert equal_values.expressions_agree(sympy.sin(x), sympy.cos(x)) is False


LONG = ["(10^9)!", "123456!", "\\sum_{n=1}^{9} n", "\\int_0^1 x", "9^{9^{9}}", "9^9^9", "2^{99999}",
        "(" * 50 + "1" + ")" * 50, "\\binom{100000}{5}", "x+" * 200]  # fmt: skip
SHORT = ["10!", "x^2+y^2", "2^{4950}", "\\binom{10}{3}", "40,\\!320", "\\frac{1}{2}", "\\limits", "e^{-2t}"]


def test_answers_that_may_take_long_are_told_from_those_that_do_not() -> None:
    assert [answer for answer in (*LONG, *SHORT) if may_take_long(answer)] == LONG
