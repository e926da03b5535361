"""Reads plain numbers, as digits or with a power of ten, and compares them without math-verify.

math-verify reads ``4.5e33`` as a product with Euler's number, and compares decimals at six places, so that all values
below 1e-7 are equal to it. Owns the tolerance between two numbers. Leaves out every other expression (``equivalence``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal

from mrt_hpc.domains.math.cleanup import MAX_ANSWER_CHARS

LARGEST_TOLERANCE = Decimal("0.01")
"""Relative, for powers of ten. 1 % is a choice of this project, and no published rule. The checker of MinervaMATH's
physics problems (OCWCourses, Lewkowycz et al. 2022, arXiv 2206.14858), as public evaluation code repeats it, names a
threshold of 0.01, but applies it only to values that ``numpy.isclose`` takes for 0 or for equal; all others must agree
by ``isclose``, to about 1e-5. That would refuse answers that are rounded rightly to a gold answer of few digits.
"""
DECIMAL_TOLERANCE = Decimal("1e-6")
"""Relative, for decimals without a power of ten: the noise of floating-point numbers, and no rounding of results."""
DECIMAL_PLACES = Decimal("5e-7")
"""Absolute, for the same: never looser than the six places that math-verify compares."""

_CONTEXT = Context(prec=2000, Emax=999999, Emin=-999999)
"""More digits than the longest answer has, so that a difference is exact."""

_EXPONENT = r"\{\s*(?P<braced>[+-]?[0-9]{1,4})\s*\}|(?P<bare>-?[0-9])(?![0-9])"
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)\s*(?:"
    rf"10\s*\^\s*(?:{_EXPONENT.replace('braced', 'braced_alone').replace('bare', 'bare_alone')})"
    r"|(?P<mantissa>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    rf"(?:[eE](?P<plain>[+-]?[0-9]{{1,4}})|\s*(?:\\times|\\cdot|×)\s*10\s*\^\s*(?:{_EXPONENT}))?)"
)
_REPEATING = re.compile(r"(?<![0-9.])([0-9]{0,9})\.([0-9]{0,9})\\(?:overline|bar)\s*\{\s*([0-9]{1,9})\s*\}")
_MIXED_SHARE = re.compile(
    r"(?<![0-9.}])([0-9]{1,9})\s*\\[dt]?frac\s*(?:\{\s*([0-9]{1,9})\s*\}|([0-9]))\s*(?:\{\s*([0-9]{1,9})\s*\}|([0-9]))"
    r"(?=\s*\\?%)"
)
_E_NOTATION = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?|[+-]?\.[0-9]+)[eE]([+-]?[0-9]{1,4})")


@dataclass(frozen=True)
class Number:
    """A number as it was written."""

    value: Decimal
    last_place: Decimal
    """One unit of its last digit."""
    is_integer: bool
    """Written with digits alone, so that it is exact."""
    has_power: bool
    """Written with a power of ten, so that its digits say how exactly it is known."""


def leading_number(text: str) -> tuple[Number, int] | None:
    """The number that ``text`` begins with and where it ends; None where it begins with none."""
    found = _NUMBER.match(text)
    if found is None or len(text) > MAX_ANSWER_CHARS:
        return None
    powers = (found[name] for name in ("plain", "braced", "bare", "braced_alone", "bare_alone"))
    power = next((int(text) for text in powers if text is not None), None)
    mantissa = (found["mantissa"] or "1").replace(",", "")
    last_place = -len(mantissa.partition(".")[2]) + (power or 0)
    number = Number(
        value=_CONTEXT.scaleb(Decimal(found["sign"] + mantissa), power or 0),
        last_place=Decimal(1).scaleb(last_place, _CONTEXT),
        is_integer=power is None and "." not in mantissa,
        has_power=power is not None,
    )
    return number, found.end()


def power_as_latex(text: str) -> str:
    """``4.5e33`` as ``4.5 \\times 10^{33}``, since LaTeX reads the e as Euler's number; any other text as it is."""
    found = _E_NOTATION.fullmatch(text.strip())
    return rf"{found[1]} \times 10^{{{int(found[2])}}}" if found else text


def as_fraction(text: str) -> str:
    """A text whose repeating decimals and mixed numbers of per cent are fractions: math-verify reads neither."""
    return _MIXED_SHARE.sub(_share_as_fraction, _REPEATING.sub(_repeating_as_fraction, text))


def _repeating_as_fraction(found: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` is (16 - 1) / 90."""
    once, period = found[1] + found[2], found[3]
    above = int(once + period) - int(once or 0)
    return rf"\frac{{{above}}}{{{(10 ** len(period) - 1) * 10 ** len(found[2])}}}"


def _share_as_fraction(found: re.Match[str]) -> str:
    """``12\\frac12\\%`` is 25 / 2 per cent."""
    above, below = int(found[2] or found[3]), int(found[4] or found[5])
    return rf"\frac{{{int(found[1]) * below + above}}}{{{below}}}"


def numbers_agree(answer: Number, gold: Number) -> bool:
    """Whether two numbers are equal, exactly where both or the gold answer are integers, within a tolerance elsewhere.

    Where one is written with a power of ten it is the result of a measurement or a computation: an answer is right that
    rounds to the digits of the gold answer, and lies within ``LARGEST_TOLERANCE`` of it where these digits are few
    (``6e13`` alone would let 5.5e13 pass). Other decimals differ by noise at most.
    """
    difference = _CONTEXT.abs(_CONTEXT.subtract(answer.value, gold.value))
    return difference <= _tolerance(answer, gold)


def _tolerance(answer: Number, gold: Number) -> Decimal:
    size = _CONTEXT.abs(gold.value)
    if gold.is_integer and (answer.is_integer or answer.has_power):
        return Decimal(0)
    if answer.has_power or gold.has_power:
        return min(_CONTEXT.divide(gold.last_place, Decimal(2)), _CONTEXT.multiply(LARGEST_TOLERANCE, size))
    return min(_CONTEXT.multiply(DECIMAL_TOLERANCE, size), DECIMAL_PLACES)
