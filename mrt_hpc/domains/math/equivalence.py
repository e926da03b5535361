"""Decides whether an answer equals the gold answer, by math-verify.

Owns the verdict on one pair. Leaves out time and memory limits: sympy may take forever on a hostile answer, so anything
a model wrote goes through ``pool``. math-verify's own time-out is switched off: it works by SIGALRM, in the main thread
only, and turns a hang into a silent False.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import MatrixBase, Rational, Tuple

from mrt_hpc.domains.base import Judgement
from mrt_hpc.domains.extraction import braces_balance
from mrt_hpc.domains.math import math_verify_changes, numbers
from mrt_hpc.domains.math.names import named_value, spelt, value_sides
from mrt_hpc.domains.math.words import has_words, same_words, words_as_text

_BOXED_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)
"""LaTeX in a box and nothing else: math-verify's plain search would find a 7 in ``\\frac{1}{ = 7``."""

GOLDS = 1024
"""Gold answers whose expressions a process keeps."""

_PERCENT = re.compile(r"\\?%\s*\Z")
_STRIPPED_BY_MATH_VERIFY = ("\\text", "\\mbox", "\\math")
"""Commands whose content math-verify may take for a unit and drop, so that nothing is left to compare."""

math_verify_changes.install_two_stages()
math_verify_changes.install_values()
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
    answer, gold = _plain(answer), _plain(gold)
    expected = numbers.read_quantity(gold)
    if expected is not None:
        sides = value_sides(answer) if _may_be_read(answer) else []
        given = numbers.evaluated(sides)
        if numbers.ends_with_symbol(gold) and (given is None or not given.units):
            return None
        agree = None if given is None else numbers.quantities_agree(given, expected)
        if given is not None and (agree is False or len(sides) == 1):
            return agree
        if strict and given is None and (expected.is_whole or not (sides and numbers.is_fraction(sides[-1]))):
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
        and len(gold) <= numbers.MAX_ANSWER_CHARS
        and braces_balance(gold)
    )


def _plain(text: str) -> str:
    """A text without the marks that change no value, its words and names as they are compared; a too long one as is."""
    return text if len(text) > numbers.MAX_ANSWER_CHARS else spelt(words_as_text(numbers.clean(text)))


def _may_be_read(answer: str) -> bool:
    return len(answer) <= numbers.MAX_ANSWER_CHARS and braces_balance(answer)


def judge(answer: str, gold: str) -> Judgement:
    """math-verify's judgement of ``answer``; a hostile one may hang, raise anything or exhaust the memory."""
    answer, gold = _plain(answer), _plain(gold)
    if not _may_be_read(answer):
        return Judgement(correct=False, readable=False)
    sides, gold = _compared(answer, gold)
    judged = [_judged(side, gold) for side in sides]
    correct = any(side.correct for side in judged) and all(
        verdict.correct or _rounds(side, gold, whole="approx" in answer)
        for verdict, side in zip(judged, sides, strict=True)
    )
    return Judgement(correct=correct, readable=any(side.readable for side in judged))


def _compared(answer: str, gold: str) -> tuple[list[str], str]:
    """The values of an answer and that of the gold answer: without a name that only one has, or that both share."""
    named = named_value(gold)
    if named is None:
        return ([answer] if "=" in gold else value_sides(answer)), gold
    given = named_value(answer)
    if given is not None and given[0].replace(" ", "") == named[0].replace(" ", ""):
        return [given[1]], named[1]
    return [answer], gold if "=" in answer else named[1]


def _judged(answer: str, gold: str) -> Judgement:
    """The judgement of one value; and without the sign of per cent, where one of the two has none."""
    if answer == gold and _keeps_its_text(gold):
        return Judgement(correct=True, readable=True)
    answer, gold = numbers.with_symbols_kept(answer, gold)
    expected, parsed = _parse_gold(gold), _parse(answer)
    correct = _verified(expected, parsed)
    if not correct and (_PERCENT.search(answer) is None) != (_PERCENT.search(gold) is None):
        correct = _verified(_parse_gold(_PERCENT.sub("", gold)), _parse(_PERCENT.sub("", answer)))
    return Judgement(correct=correct, readable=_is_read(parsed) and not has_words(answer))


def _is_read(parsed: list[object]) -> bool:
    return any(not isinstance(expression, str) for expression in parsed)


def _rounds(side: str, gold: str, *, whole: bool) -> bool:
    """Whether one side of an equation is a number that differs from the gold answer by a rounding: by half of the last
    place of the one of the two that is a decimal, or a whole number where the answer says that it is rounded.
    """
    read = [quantity.number for text in (side, gold) if (quantity := numbers.read_quantity(text)) is not None]
    places = [number.last_place for number in read if whole or not number.is_integer]
    first, second = _number(_parse(side)), _number(_parse_gold(gold))
    if not places or first is None or second is None:
        return False
    return bool(abs(first - second) <= Rational(str(max(places))) / 2)


def _number(parsed: list[object]) -> Any:
    """The finite number that math-verify found first, as sympy's; None where it found something else."""
    first: Any = next((expression for expression in parsed if not isinstance(expression, str)), None)
    value = first.doit().evalf() if getattr(first, "is_number", False) else None
    return value if getattr(value, "is_finite", False) else None


def _verified(expected: list[object], parsed: list[object]) -> bool:
    """math-verify's verdict; an interval may be an inequality, and a column of a matrix a vector in brackets."""
    if verify(expected, parsed, allow_set_relation_comp=True, timeout_seconds=None):
        return True
    if any(isinstance(e, MatrixBase) for e in expected) == any(isinstance(e, MatrixBase) for e in parsed):
        return False
    return bool(verify(_vectors_as_tuples(expected), _vectors_as_tuples(parsed), timeout_seconds=None))


def _vectors_as_tuples(parsed: list[object]) -> list[object]:
    return [Tuple(*e.flat()) if isinstance(e, MatrixBase) and 1 in e.shape and len(e) > 1 else e for e in parsed]


@lru_cache(maxsize=GOLDS)
def _parse_gold(gold: str) -> list[object]:
    """Many answers are compared with one gold answer; sympy's expressions never change."""
    return _parse(gold)


def _parse(answer: str) -> list[object]:
    """The expression and the cleaned-up text of ``answer``; only the text where it is no expression."""
    boxed = f"\\boxed{{{numbers.power_as_latex(numbers.as_fraction(answer))}}}"
    return list(parse(boxed, extraction_config=_BOXED_LATEX, parsing_timeout=None))
