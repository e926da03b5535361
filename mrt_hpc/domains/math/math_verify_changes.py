"""math-verify's LaTeX parser, first in the fast one of ANTLR's two modes.

Most of a verdict's time is ANTLR's full prediction (LL). Its simpler one (SLL) either gives the same tree or reports a
syntax error (documentation of ``PredictionMode``), so that the full one is needed only where the simple one fails.
"""

from typing import Any

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2
from math_verify import grader, parser
from sympy.core.evalf import PrecisionExhausted

_Parser: Any = latex2sympy2._Latex2Sympy
_parse_whole, _create_parser = _Parser.parse, _Parser.create_parser


def install_two_stages() -> None:
    """Have every parse of this process try the simple mode first."""
    _Parser.parse, _Parser.create_parser = _parse, _create


def uninstall_two_stages() -> None:
    """Take it back."""
    _Parser.parse, _Parser.create_parser = _parse_whole, _create_parser


def _parse(self: Any, latex: str) -> Any:
    self.prediction_mode = PredictionMode.SLL
    try:
        return _parse_whole(self, latex)
    except Exception:  # of which kind does not matter: the second stage decides
        self.prediction_mode = PredictionMode.LL
        return _parse_whole(self, latex)


def _create(self: Any, latex: str) -> Any:
    parser = _create_parser(self, latex)
    parser._interp.predictionMode = self.prediction_mode
    return parser


# -- values differ -----------------------------------------------------------------------------------------------------
# Compares two expressions by their values, to as many digits as it takes, before sympy simplifies their difference.
#
# math-verify takes a difference for zero whose value is small, or the value of one of its terms (``chop``): 2^-101 and
# 1/2 + 2^-101 were equal to it. Here values are compared relatively, with digits that sympy vouches for: rational
# numbers exactly, decimals to six places, all other numbers to ``MOST_DIGITS`` digits. Of expressions with symbols one
# point where the values differ decides; where they agree, or are no finite numbers, sympy has to simplify the
# difference to zero, which takes 10 to 100 ms.


_simplifies_to_zero = grader.sympy_symbolic_eq
_compare_values = grader.sympy_numeric_eq
_treat_as_complex = parser.should_treat_as_complex

POINT = (sympy.Rational(37, 29), sympy.Rational(53, 31), sympy.Rational(61, 43), sympy.Rational(73, 47))
"""Where the expressions are evaluated, symbol by symbol in the order of their names: positive, and no root of anything
that an exercise asks for.
"""
DIGITS = 30
FAR_APART = 1e-6
"""Relative to the larger value: far more than what 30 digits lose, so that such values differ for certain."""
MOST_DIGITS = 1000
"""Numbers whose difference is not rational are equal if they agree to so many digits: sympy proves few of the
equalities that hold, and no answer agrees so far by chance.
"""
DECIMAL_PLACES = sympy.Rational(5, 10**7)
"""Absolute, between two numbers of which one is a decimal: half of the sixth place, as math-verify compares."""
SMALL_TOLERANCE = sympy.Rational(1, 1000)
"""Relative, between the same: the smaller one counts, since six places of 1e-4 are fewer than three digits."""
NEVER_EVALUATED = (
    sympy.Derivative, sympy.Integral, sympy.Limit, sympy.Piecewise, sympy.Product, sympy.Sum,
)  # fmt: skip
"""sympy approximates these by procedures whose error is not bounded by the digits asked for."""


def install_values() -> None:
    """Have every comparison of this process look at values first, and all symbols be real: math-verify looks for an i
    that stands alone, so that ``e^{i t}`` and ``e^{it}`` had different symbols.
    """
    grader.sympy_numeric_eq, grader.sympy_symbolic_eq = _numeric_eq, _symbolic_eq
    parser.should_treat_as_complex = lambda _: False
    parser.parse_latex_cached.cache_clear()


def uninstall_values() -> None:
    """Take it back."""
    grader.sympy_numeric_eq, grader.sympy_symbolic_eq = _compare_values, _simplifies_to_zero
    parser.should_treat_as_complex = _treat_as_complex
    parser.parse_latex_cached.cache_clear()


def _numeric_eq(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
    """Math-verify compares of matrices the elements, which come here one by one; symbols are left to simplifying."""
    if _is_number(a) and _is_number(b):
        whole = [grader.get_pct_val(value, value) for value in (a, b)]  # 9 and 9 % are equal to math-verify
        return numbers_equal(*whole) if all(value.is_Integer for value in whole) else numbers_equal(a, b)
    if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
        return False
    return bool(_compare_values(a, b, float_rounding, numeric_precision))


def _symbolic_eq(a: Any, b: Any) -> bool:
    if (_is_number(a) and _is_number(b)) or values_differ(a, b):
        return False
    return bool(_simplifies_to_zero(_exact(a), _exact(b)))


def _is_number(expression: Any) -> bool:
    """Whether it has no symbol and nothing that sympy only approximates."""
    return isinstance(expression, sympy.Expr) and not expression.free_symbols and not expression.has(*NEVER_EVALUATED)


def numbers_equal(gold: Any, other: Any) -> bool:
    """Whether two expressions without symbols are the same number, with a tolerance where one of them has a decimal."""
    decimal = gold.has(sympy.Float) or other.has(sympy.Float)
    gold, other = _exact(gold), _exact(other)
    expected, value = _value(gold, {}), _value(other, {})
    if expected is not None and value is not None:
        if decimal:
            return bool(abs(value - expected) <= min(DECIMAL_PLACES, SMALL_TOLERANCE * abs(expected)))
        if _far_apart(expected, value):
            return False
    return _is_zero(gold.doit() - other.doit())


def _is_zero(difference: Any) -> bool:
    """Whether a number is zero; one whose digits do not differ from zero is."""
    if difference.is_Rational:
        return bool(difference == 0)
    try:
        return bool(difference.evalf(2, maxn=MOST_DIGITS, strict=True) == 0)
    except PrecisionExhausted:
        return bool(abs(difference.evalf(2, maxn=MOST_DIGITS)) < sympy.Rational(1, 10 ** (MOST_DIGITS // 2)))


def values_differ(a: Any, b: Any) -> bool:
    """Whether ``a`` and ``b`` are certain to differ, because their values at ``POINT`` do."""
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return False
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    if len(symbols) > len(POINT) or any(symbol.assumptions0.get("integer") for symbol in symbols):
        return False
    point = dict(zip(symbols, POINT, strict=False))
    first, second = _value(a, point), _value(b, point)
    return first is not None and second is not None and _far_apart(first, second)


def _far_apart(first: Any, second: Any) -> bool:
    return bool(abs(first - second) > FAR_APART * max(abs(first), abs(second)))


def _value(expression: Any, point: dict[Any, Any]) -> Any:
    """The finite value of ``expression`` at ``point`` to ``DIGITS`` digits, None where sympy does not vouch for one."""
    if expression.has(*NEVER_EVALUATED):
        return None
    try:
        value = expression.evalf(DIGITS, subs=point, strict=True)
    except Exception:  # for an unknown function, or a zero that no digits show, simplifying decides
        return None
    return value if value.is_number and value.is_finite else None


def _exact(expression: Any) -> Any:
    """``expression`` with its decimals as the fractions that they stand for."""
    if not isinstance(expression, sympy.Expr) or not (decimals := expression.atoms(sympy.Float)):
        return expression
    return expression.xreplace({decimal: sympy.Rational(str(decimal)) for decimal in decimals})
