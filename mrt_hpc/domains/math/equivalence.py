"""Decides whether an answer equals the gold answer, by math-verify.

Model output goes through ``pool``, since sympy may take forever on a hostile answer. math-verify's own time-out is off:
it works by SIGALRM, in the main thread only, and turns a hang into a silent False.
"""

import logging
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import latex2sympy2
from math_verify import LatexExtractionConfig, verify
from math_verify.grader import is_relation
from math_verify.parser import get_last_eq
from sympy import Derivative, Intersection, MatrixBase, Rational, S, Symbol, Tuple, Union

from mrt_hpc.domains.base import Judgement
from mrt_hpc.domains.extraction import braces_balance
from mrt_hpc.domains.math import math_verify_changes, numbers
from mrt_hpc.domains.math.cleanup import MAX_ANSWER_CHARS, clean
from mrt_hpc.domains.math.names import EITHER, named_value, outer_parts, readable_names, value_sides
from mrt_hpc.domains.math.reading import compared_parts, paired_values, same_time
from mrt_hpc.domains.math.words import has_words, same_words, words_as_text

_CLEAN_UP = replace(LatexExtractionConfig().normalization_config, boxed="none")
"""Commands of layout, units, operators without their braces."""
_WITH_CASE = latex2sympy2.ConversionConfig(lowercase_symbols=False)

GOLDS = 1024
"""Gold answers whose expressions a process keeps."""

_PERCENT = re.compile(r"\\?%\s*\Z")
_SHARE = re.compile(r"(-?\\frac\{[0-9]+\}\{[0-9]+\})\s*\\?%")
"""A fraction of per cent, which the grammar lacks."""
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_INEQUALITY = re.compile(r"[<>]|\\(?:[lgn]eq?(?:slant)?|[lg]t)(?![A-Za-z])")
_SYMBOL = re.compile(r"\\(?!(?:[dtc]?frac|sqrt|cdot|times|left|right|pi)(?![A-Za-z]))[A-Za-z]+|(?<![A-Za-z\\])[A-Za-z]")
_NAME_OF_Y = re.compile(r"\A[fy]\([a-z]\)\Z")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ")
_STRIPPED_BY_MATH_VERIFY = ("\\text", "\\mbox", "\\math")
"""math-verify may take the content for a unit and drop it."""

math_verify_changes.install()
for _module in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_module).setLevel(logging.ERROR)  # they warn that their time-out is off, which is meant


def certain_verdict(answer: str, gold: str, *, strict: bool = False) -> bool | None:
    """None where math-verify must say.

    Two numbers are equal as numbers or not at all; units and bases count where both name one. Identical text is equal,
    as long as math-verify's clean-up leaves something of it.

    Args:
        strict: whether an answer to a gold number must be evaluated: one number, alone or on one side of an equation.
            An integer must be written as a number, so that ``\\frac{6}{2}`` is no answer to 3 and ``3.0`` is one; any
            other number may be a fraction too. An answer to a number of any kind must have no sine or cosine.
    """
    answer, gold = compared_parts(_plain(answer), _plain(gold))
    expected = numbers.read_quantity(gold)
    if expected is not None:
        sides = value_sides(answer) if _may_be_read(answer) else []
        given = numbers.evaluation_line(sides)
        if numbers.ends_with_symbol(gold) and (given is None or not given.units):
            return None
        agree = None if given is None else numbers.quantities_agree(given, expected)
        if given is not None and (agree is False or len(sides) == 1):
            return agree
        if strict and given is None and (expected.is_whole or not (sides and numbers.is_fraction(sides[-1]))):
            return False
    elif strict and _leaves_a_function(answer, gold):
        return False
    if same_words(answer, gold):
        return True
    if answer == gold and _keeps_its_text(gold):
        return True
    return None


def _leaves_a_function(answer: str, gold: str) -> bool:
    """An unevaluated sine or cosine in an answer to a number without functions."""
    if _FUNCTION.search(answer) is None or _SYMBOL.search(gold) is not None or not _may_be_read(answer):
        return False
    return any(map(_FUNCTION.search, value_sides(answer)))


def _keeps_its_text(gold: str) -> bool:
    return (
        any(character in "0123456789" for character in gold)
        and not any(command in gold for command in _STRIPPED_BY_MATH_VERIFY)
        and len(gold) <= MAX_ANSWER_CHARS
        and braces_balance(gold)
    )


def _plain(text: str) -> str:
    """Without the marks that change no value, words and names as they are compared; a too long text as is."""
    return text if len(text) > MAX_ANSWER_CHARS else readable_names(words_as_text(clean(text)))


def _may_be_read(answer: str) -> bool:
    return len(answer) <= MAX_ANSWER_CHARS and braces_balance(answer)


def judge(answer: str, gold: str) -> Judgement:
    """A hostile answer may hang, raise anything or exhaust the memory."""
    answer, gold = compared_parts(_plain(answer), _plain(gold))
    if not _may_be_read(answer):
        return Judgement(correct=False, readable=False)
    if (same := same_time(answer, gold)) is not None:
        return Judgement(correct=same, readable=True)
    if (pairs := paired_values(answer, gold)) is not None:
        return Judgement(correct=bool(pairs) and all(_is_right(*pair) for pair in pairs), readable=True)
    sides, gold = _comparison_sides(answer, gold)
    judged = [_value_judgement(side, gold) for side in sides]
    correct = any(side.correct for side in judged) and all(
        verdict.correct or _rounds(side, gold, whole="approx" in answer)
        for verdict, side in zip(judged, sides, strict=True)
    )
    return Judgement(correct=correct, readable=any(side.readable for side in judged))


def _is_right(answer: str, gold: str) -> bool:
    certain = certain_verdict(answer, gold)
    return bool(judge(answer, gold).correct) if certain is None else certain


def _comparison_sides(answer: str, gold: str) -> tuple[list[str], str]:
    """The values of an answer and that of the gold answer: without a name that only one has, or that both share."""
    named = named_value(gold)
    if named is None:
        return ([answer] if "=" in gold else value_sides(answer)), gold
    given = named_value(answer)
    if given is not None and _NAME_OF_Y.sub("y", given[0].replace(" ", "")) == _NAME_OF_Y.sub(
        "y", named[0].replace(" ", "")
    ):
        return [given[1]], named[1]
    return [answer], gold if "=" in answer else named[1]


def _value_judgement(answer: str, gold: str) -> Judgement:
    """Of one value; and without the sign of per cent, where one of the two has none."""
    if answer == gold and _keeps_its_text(gold):
        return Judgement(correct=True, readable=True)
    if numbers.units_differ(answer, gold):
        return Judgement(correct=False, readable=True)
    answer, gold = numbers.texts_with_symbols(answer, gold)
    expected, parsed = _parse_gold(gold), _parse(answer)
    correct = _are_equal(expected, parsed)
    if not correct and (_PERCENT.search(answer) is None) != (_PERCENT.search(gold) is None):
        correct = _are_equal(_parse_gold(_PERCENT.sub("", gold)), _parse(_PERCENT.sub("", answer)))
    is_read = any(not isinstance(expression, str) for expression in parsed)
    return Judgement(correct=correct, readable=is_read and not has_words(answer))


def _rounds(side: str, gold: str, *, whole: bool) -> bool:
    """Whether a number differs from the gold answer by a rounding: half of the last place of the one that is a decimal,
    or a whole number where the answer says so.
    """
    read = [quantity.number for text in (side, gold) if (quantity := numbers.read_quantity(text)) is not None]
    places = [number.last_place for number in read if whole or not number.is_integer]
    first, second = _number(_parse(side)), _number(_parse_gold(gold))
    if not places or first is None or second is None:
        return False
    return bool(abs(first - second) <= Rational(str(max(places))) / 2)


def _number(parsed: list[object]) -> Any:
    first: Any = next((expression for expression in parsed if not isinstance(expression, str)), None)
    value = first.doit().evalf() if getattr(first, "is_number", False) else None
    return value if getattr(value, "is_finite", False) else None


def _are_equal(expected: list[object], parsed: list[object]) -> bool:
    """An interval may be an inequality, and a column of a matrix a vector in brackets."""
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
    """Only the text where it is no expression."""
    if _INEQUALITY.search(answer) is not None and (solutions := _solutions(answer)) is not None:
        return [solutions, answer]
    text = latex2sympy2.normalize_latex(numbers.power_as_latex(numbers.fractions_as_latex(answer)), _CLEAN_UP)
    for side in dict.fromkeys((text, get_last_eq(text))):
        try:
            return [_expression(side), text]
        except Exception:
            continue
    return [text]


def _solutions(text: str) -> Any:
    """Of several inequalities of one variable, with "or", "and" or commas between them. Commas stand for "and", unless
    nothing fulfils all of them.
    """
    parts = [outer_parts(either) for either in outer_parts(text, EITHER)]
    if sum(map(len, parts)) < 2:
        return None
    alternatives: list[list[Any]] = [[_parse(part)[0] for part in several] for several in parts]
    relations = [relation for several in alternatives for relation in several]
    if not all(map(is_relation, relations)) or len({s for relation in relations for s in relation.free_symbols}) != 1:
        return None
    return Union(*(_common_solutions([relation.as_set() for relation in several]) for several in alternatives))


def _common_solutions(sets: list[Any]) -> Any:
    common = Intersection(*sets)
    return Union(*sets) if common is S.EmptySet else common


def _expression(text: str) -> Any:
    if (share := _SHARE.fullmatch(text)) is not None:
        return latex2sympy2.convert_to_pct(_expression(share[1]))
    in_degrees = _FUNCTION.search(text) is not None and _DEGREES.search(text) is not None
    read = latex2sympy2.latex2sympy(
        text, is_real=True, convert_degrees=in_degrees, normalization_config=None, conversion_config=_WITH_CASE
    )
    return read.replace(_is_derivative, lambda part: Symbol(str(part), real=True)) if read.has(Derivative) else read


def _is_derivative(part: Any) -> bool:
    """Of a letter, of which sympy does not know that it depends on anything."""
    return isinstance(part, Derivative) and part.expr.is_Symbol
