"""Decides whether an answer equals the gold answer, by math-verify.

Owns the verdict on one pair. Leaves out time and memory limits: sympy may take forever on a hostile answer, so anything
a model wrote goes through ``pool``. math-verify's own time-out is switched off: it works by SIGALRM, in the main thread
only, and turns a hang into a silent False.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import MatrixBase, Tuple, zoo

from mrt_hpc.domains.base import Judgement
from mrt_hpc.domains.boxed import braces_balance
from mrt_hpc.domains.math import two_stages, values_differ
from mrt_hpc.domains.math.cleanup import MAX_ANSWER_CHARS, clean
from mrt_hpc.domains.math.numbers import as_fraction, power_as_latex
from mrt_hpc.domains.math.quantities import evaluated, is_fraction, quantities_agree, read_quantity
from mrt_hpc.domains.math.words import same_words

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOXED_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)
"""Only LaTeX, only the box: math-verify's plain search would find a 7 in ``\\frac{1}{ = 7``."""

SMALL = 1e-3
"""Below it the six decimal places that math-verify compares are fewer than three digits."""
SMALL_TOLERANCE = 1e-3
"""Relative, between numbers below ``SMALL``: as close as six places are to a number of that size."""
VALUE_DIGITS = 30
GOLDS = 1024
"""Gold answers whose expressions a process keeps."""

_LAST_LETTER = re.compile(r"(?<![A-Za-z\\])([A-Za-z])\Z")
_SYMBOL_BEFORE_IT = re.compile(r"(?:[-+*/=^]|(?<![A-Za-z\\])[A-Za-z])\s*[A-Za-z]\Z")
_NAME = re.compile(r"\A[A-Za-z](?:_(?:[A-Za-z0-9]|\{\w+\}))?(?:\([a-z]\))?\s*=(?!.*=)\s*", re.DOTALL)
_PERCENT = re.compile(r"\\?%\s*\Z")
_STRIPPED_BY_MATH_VERIFY = ("\\text", "\\mbox", "\\math")
"""Commands whose content math-verify may take for a unit and drop, so that nothing is left to compare."""

two_stages.install()
values_differ.install()
for _module in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_module).setLevel(logging.ERROR)  # they warn that their time-out is off, which is meant


def certain_verdict(answer: str, gold: str, *, strict: bool = False) -> bool | None:
    """The verdict where it is known without asking math-verify, None elsewhere.

    Two numbers are equal as numbers or not at all; units and bases count where both name one. Identical text is equal,
    since math-verify compares the text too, as long as its clean-up leaves something of it: a digit outside of what it
    may take for a unit stays.

    Args:
        answer: what a model gave.
        gold: what it should have given.
        strict: whether an answer to a gold number must be evaluated: one number, alone or on one side of an equation.
            An integer must be written as a number, so that ``\\frac{6}{2}`` is no answer to 3 and ``3.0`` is one; any
            other number may be a fraction too.
    """
    answer, gold = clean(answer), clean(gold)
    expected = read_quantity(gold)
    given = None if expected is None else evaluated(answer)
    if expected is not None and given is not None:
        return quantities_agree(given, expected)
    if strict and expected is not None and (expected.is_whole or not is_fraction(answer)):
        return False
    if same_words(answer, gold):
        return True
    if answer == gold and _keeps_its_text(gold):
        return True
    return None


def _keeps_its_text(gold: str) -> bool:
    return (
        any(character in "0123456789" for character in gold)
        and not any(command in gold for command in _STRIPPED_BY_MATH_VERIFY)
        and len(gold) <= MAX_ANSWER_CHARS
        and braces_balance(gold)
    )


def judge(answer: str, gold: str) -> Judgement:
    """math-verify's judgement of ``answer``; a hostile one may hang, raise anything or exhaust the memory."""
    answer, gold = clean(answer), clean(gold)
    if len(answer) > MAX_ANSWER_CHARS or not braces_balance(answer):
        return Judgement(correct=False, readable=False)
    answer, gold = _with_last_symbols(answer, gold)
    expected, parsed = _parse_gold(gold), _parse(answer)
    readable = _is_read(parsed)
    both_read = readable and _is_read(expected) and zoo not in expected  # a time such as 05:00 is a division by zero
    correct = _right(expected, parsed) or any(
        _right(*reading) for reading in _other_readings(answer, gold, both_read=both_read)
    )
    return Judgement(correct=correct, readable=readable)


def _is_read(parsed: list[object]) -> bool:
    return any(not isinstance(expression, str) for expression in parsed)


def _right(expected: list[object], parsed: list[object]) -> bool:
    return _verified(expected, parsed) and not _was_chopped(parsed, expected)


def _other_readings(answer: str, gold: str, *, both_read: bool) -> Iterator[tuple[list[object], list[object]]]:
    """The two without the sign of per cent where one of them has none; and the answer without the name of its value
    where the gold answer names none and one of them was not read: else math-verify has seen the name.
    """
    if (_PERCENT.search(answer) is None) != (_PERCENT.search(gold) is None):
        yield _parse_gold(_PERCENT.sub("", gold)), _parse(_PERCENT.sub("", answer))
    if not both_read and "=" not in gold and (value := _NAME.sub("", answer)) != answer:
        yield _parse_gold(gold), _parse(value)


def _with_last_symbols(answer: str, gold: str) -> tuple[str, str]:
    """The two with their last letters in braces where those are symbols: math-verify drops any single letter behind a
    space as a unit, so that ``a + b + c`` and ``a + b + d`` were equal to it. A letter is a unit only behind a number,
    and only where the other has none.
    """
    both = _LAST_LETTER.search(answer) is not None and _LAST_LETTER.search(gold) is not None
    first, second = (
        _LAST_LETTER.sub(r"{\1}", text) if both or _SYMBOL_BEFORE_IT.search(text) else text for text in (answer, gold)
    )
    return first, second


def _verified(expected: list[object], parsed: list[object]) -> bool:
    """math-verify's verdict; an interval may be an inequality, and a column of a matrix a vector in brackets."""
    if verify(expected, parsed, allow_set_relation_comp=True, timeout_seconds=None):
        return True
    if any(isinstance(e, MatrixBase) for e in expected) == any(isinstance(e, MatrixBase) for e in parsed):
        return False
    return bool(verify(_vectors_as_tuples(expected), _vectors_as_tuples(parsed), timeout_seconds=None))


def _vectors_as_tuples(parsed: list[object]) -> list[object]:
    return [Tuple(*e.flat()) if isinstance(e, MatrixBase) and 1 in e.shape and len(e) > 1 else e for e in parsed]


def _was_chopped(answer: list[object], gold: list[object]) -> bool:
    """Whether a small gold number and another number are equal to math-verify only because it rounds both to zero."""
    value, expected = _value(answer), _value(gold)
    if value is None or expected is None or not 0 < abs(expected) < SMALL:
        return False
    return bool(abs(value - expected) > SMALL_TOLERANCE * abs(expected))


def _value(parsed: list[object]) -> Any:
    """The finite number that math-verify found first, as sympy's; None where it found something else."""
    first: Any = next((expression for expression in parsed if not isinstance(expression, str)), None)
    value = first.doit().evalf(VALUE_DIGITS) if getattr(first, "is_number", False) else None
    return value if getattr(value, "is_finite", False) else None


@lru_cache(maxsize=GOLDS)
def _parse_gold(gold: str) -> list[object]:
    """Many answers are compared with one gold answer; sympy's expressions never change."""
    return _parse(gold)


def _parse(answer: str) -> list[object]:
    """The expression and the cleaned-up text of ``answer``; only the text where it is no expression."""
    boxed = f"\\boxed{{{power_as_latex(as_fraction(answer))}}}"
    return list(parse(boxed, extraction_config=_BOXED_LATEX, parsing_timeout=None))
