"""Decides whether two expressions are equal by their values, to as many digits as it takes.

math-verify takes a small difference, or one with a small term, for zero (``chop``). Here rational numbers are compared
exactly, decimals to six places, others to ``MOST_DIGITS`` digits that sympy vouches for. Expressions are compared at
``LEAST_POINTS`` points with positive symbols: those of physics are positive, and sympy proves few equalities of roots
and logarithms over all reals. An absolute value lets its symbols be negative, and ``(-1)^n`` says that n is whole.
"""

from typing import Any

import sympy
from sympy.core.evalf import PrecisionExhausted

DIGITS = 30
FAR_APART = sympy.Rational(1, 10**20)
"""Relative to the larger value: more than 30 digits lose, so that such values differ for certain."""
MOST_DIGITS = 1000
"""Numbers with an irrational difference are equal if they agree to so many digits: sympy proves few equalities, and no
answer agrees so far by chance.
"""
DIGITS_AT_A_POINT = 200
"""The same at one point of expressions with symbols, where factorials take long."""
DECIMAL_PLACES = sympy.Rational(5, 10**7)
"""Absolute, where one of two numbers is a decimal: half of the sixth place, as math-verify compares."""
SMALL_TOLERANCE = sympy.Rational(1, 1000)
"""Relative, in the same case; the smaller tolerance counts, since six places of 1e-4 are fewer than three digits."""
NEVER_EVALUATED = (
    sympy.Derivative, sympy.Integral, sympy.Limit, sympy.Piecewise, sympy.Product, sympy.Sum,
)  # fmt: skip
"""sympy approximates these without a bound on the error."""

COORDINATES = tuple(
    sympy.Rational(above, below)
    for above, below in (
        (37, 29), (53, 31), (61, 43), (73, 47), (19, 23), (127, 17), (41, 67), (211, 59), (13, 71), (89, 11), (23, 37),
        (157, 61), (29, 97), (107, 19), (67, 103), (193, 83), (17, 41), (139, 13), (71, 101), (229, 107),
    )
)  # fmt: skip
"""The values of symbols: from 0.1 to 11, and no root that an exercise asks for."""
STRIDE = 7
"""Between one point and the next; each symbol takes its own coordinate in the order of names."""
POINTS = 16
LEAST_POINTS = 4
INTEGERS = frozenset("jklmnN")
"""Integers in a floor, a ceiling or the exponent of a negative number."""
_STEPS = (sympy.floor, sympy.ceiling, sympy.Mod)
_SIGNED = (sympy.Abs, sympy.sign, sympy.Max, sympy.Min)


def is_number(expression: Any) -> bool:
    """Whether it has no symbol and nothing that sympy only approximates."""
    return isinstance(expression, sympy.Expr) and not expression.free_symbols and not expression.has(*NEVER_EVALUATED)


def numbers_equal(gold: Any, other: Any) -> bool:
    """Without symbols; with a tolerance where one of them has a decimal."""
    decimal = gold.has(sympy.Float) or other.has(sympy.Float)
    gold, other = _comparable_form(gold), _comparable_form(other)
    expected, value = _value(gold, {}), _value(other, {})
    if expected is not None and value is not None:
        if decimal:
            return bool(abs(value - expected) <= min(DECIMAL_PLACES, SMALL_TOLERANCE * abs(expected)))
        if _far_apart(expected, value):
            return False
    return _is_zero(gold.doit() - other.doit(), {})


def expressions_agree(gold: Any, other: Any) -> bool | None:
    """At every point where both have a value; None where such points are too few, so that sympy has to prove it."""
    points = _points(gold, other)
    has_steps = any(side.has(*_STEPS, *_SIGNED) for side in (gold, other))
    is_complex = any(side.has(sympy.I) for side in (gold, other))
    gold, other, agreeing = _comparable_form(gold), _comparable_form(other), []
    for point in points:
        first, second = _value(gold, point), _value(other, point)
        if first is None or second is None or not (is_complex or first.is_real or second.is_real):
            continue
        if _far_apart(first, second):
            return False
        agreeing.append(point)
        if len(agreeing) == LEAST_POINTS and not has_steps:
            break
    if len(agreeing) < LEAST_POINTS:
        return None
    return _is_zero(gold - other, agreeing[0])


def _points(gold: Any, other: Any) -> list[dict[Any, Any]]:
    """Positive, of both signs where an expression has an absolute value, or integers."""
    symbols = sorted(gold.free_symbols | other.free_symbols, key=str)
    whole = {*_integers_of(gold), *_integers_of(other)}.intersection(symbols)
    signed = gold.has(*_SIGNED) or other.has(*_SIGNED)
    if len(symbols) > len(COORDINATES):
        return []
    return [
        {s: _whole(n, k) if s in whole else _coordinate(n, k, signed=signed) for k, s in enumerate(symbols)}
        for n in range(POINTS)
    ]


def _whole(n: int, k: int) -> Any:
    """The k-th symbol of the n-th point, where it is an integer: each of 1 to ``POINTS`` once."""
    return sympy.Integer(1 + (n * (2 * k + 1) + k) % POINTS)


def _coordinate(n: int, k: int, *, signed: bool) -> Any:
    value = COORDINATES[(STRIDE * n + k) % len(COORDINATES)]
    return -value if signed and (n + 1) >> (k % 4) & 1 else value


def _integers_of(expression: Any) -> set[Any]:
    """By their names and by where they stand."""
    stepped = [part for part in expression.atoms(*_STEPS) if not part.args[0].is_Symbol]
    stepped += [power.exp for power in expression.atoms(sympy.Pow) if power.base.is_negative]
    return {s for part in stepped for s in part.free_symbols if s.name[:1] in INTEGERS}


def _far_apart(first: Any, second: Any) -> bool:
    return bool(abs(first - second) > FAR_APART * max(abs(first), abs(second)))


def _value(expression: Any, point: dict[Any, Any]) -> Any:
    """The finite value to ``DIGITS`` digits, None where sympy does not vouch for one."""
    if expression.has(*NEVER_EVALUATED):
        return None
    try:
        value = _integer_form(expression, point).evalf(DIGITS, subs=point, strict=not expression.has(sympy.I))
    except Exception:  # for an unknown function, or a zero that no digits show, other points decide
        return None
    return value if value.is_number and value.is_finite else None


def _integer_form(expression: Any, point: dict[Any, Any]) -> Any:
    """With its integers: sympy finds no exact value of ``(-1)^n`` by digits."""
    whole = {symbol: value for symbol, value in point.items() if value.is_Integer}
    return expression.xreplace(whole) if whole else expression


def _is_zero(difference: Any, point: dict[Any, Any]) -> bool:
    """A number whose digits do not differ from zero is."""
    difference = _integer_form(difference, point)
    if difference.is_Rational:
        return bool(difference == 0)
    most = DIGITS_AT_A_POINT if point else MOST_DIGITS
    try:
        return bool(difference.evalf(2, subs=point, maxn=most, strict=True) == 0)
    except PrecisionExhausted:
        return bool(abs(difference.evalf(2, subs=point, maxn=most)) < sympy.Rational(1, 10 ** (most // 2)))


def _comparable_form(expression: Any) -> Any:
    """Decimals become their fractions, and odd roots the real ones."""
    if decimals := expression.atoms(sympy.Float):
        expression = expression.xreplace({decimal: sympy.Rational(str(decimal)) for decimal in decimals})
    if expression.has(sympy.I) or not any(map(_may_be_odd_root, expression.atoms(sympy.Pow))):
        return expression
    return expression.replace(_may_be_odd_root, _real_root)


def _may_be_odd_root(power: Any) -> bool:
    """Whether it may be an odd root of something negative where all symbols are positive."""
    if not (power.is_Pow and power.exp.is_Rational and power.exp.q % 2 and power.exp.q > 1):
        return False
    return not (power.base.is_Symbol or power.base.is_positive)


def _real_root(power: Any) -> Any:
    return sympy.sign(power.base) ** power.exp.p * sympy.Abs(power.base) ** power.exp
