"""Finds by two numbers that two expressions differ, before sympy tries to simplify their difference to zero.

Simplifying takes 10 to 100 ms, and most of it is spent on wrong answers, whose difference is no zero. Expressions that
are equal have equal values wherever both have one, so that one point where the values differ decides. Where the values
agree, or are no finite numbers, sympy decides as before.
"""

from __future__ import annotations

from typing import Any

import sympy
from math_verify import grader

_simplifies_to_zero = grader.sympy_symbolic_eq

POINT = (sympy.Rational(37, 29), sympy.Rational(53, 31), sympy.Rational(61, 43), sympy.Rational(73, 47))
"""Where the expressions are evaluated, symbol by symbol in the order of their names: positive, and no root of anything
that an exercise asks for.
"""
DIGITS = 15
TOLERANCE = 1e-6
"""Relative to the larger value, or to 1 where both are smaller: far more than what 15 digits lose."""
NEVER_EVALUATED = (
    sympy.Derivative, sympy.Integral, sympy.Limit, sympy.Piecewise, sympy.Product, sympy.Sum,
)  # fmt: skip
"""sympy approximates these by procedures whose error is not bounded by the digits asked for."""


def install() -> None:
    """Have every comparison of this process look at values first."""
    grader.sympy_symbolic_eq = _symbolic_eq


def uninstall() -> None:
    """Take it back."""
    grader.sympy_symbolic_eq = _simplifies_to_zero


def _symbolic_eq(a: Any, b: Any) -> bool:
    return not values_differ(a, b) and bool(_simplifies_to_zero(a, b))


def values_differ(a: Any, b: Any) -> bool:
    """Whether ``a`` and ``b`` are certain to differ, because their values at ``POINT`` do."""
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return False
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    if len(symbols) > len(POINT) or any(symbol.assumptions0.get("integer") for symbol in symbols):
        return False
    point = dict(zip(symbols, POINT, strict=False))
    first, second = _value(a, point), _value(b, point)
    if first is None or second is None:
        return False
    return abs(first - second) > TOLERANCE * max(1.0, abs(first), abs(second))


def _value(expression: Any, point: dict[Any, Any]) -> complex | None:
    """The finite value of ``expression`` at ``point``, None where sympy finds none."""
    if expression.has(*NEVER_EVALUATED):
        return None
    try:
        value = complex(expression.evalf(DIGITS, subs=point))
    except Exception:  # for an unknown function or a value beyond the floats, simplifying decides
        return None
    return value if abs(value) < float("inf") else None  # not a number compares as False
