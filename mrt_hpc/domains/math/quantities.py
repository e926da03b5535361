"""Reads an answer that is one number with its unit or base, and says whether an answer was evaluated.

math-verify drops units and bases, and evaluates sums, factorials and powers itself: a model that is rewarded for
``\\sum_{k=1}^{100} k`` learns to leave the work to the grader. Owns which forms count as a number. Leaves out how near
two numbers must be (``numbers``) and every gold answer that is no number (``equivalence``). Takes linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mrt_hpc.domains.boxed import braces_balance
from mrt_hpc.domains.math.cleanup import MAX_ANSWER_CHARS
from mrt_hpc.domains.math.numbers import Number, leading_number, numbers_agree

_WRAPPED = re.compile(
    r"\\(?:text|textbf|textrm|mbox|mathbf|mathrm|mathsf|mathit|boldsymbol|bm|underline)\s*\{([^{}]*)\}"
    r"|\{([^{}]*)\}|(?:\\left\s*)?\\\{([^{}]*?)(?:\\right\s*)?\\\}|\$([^$]*)\$|(?:\\left\s*)?\(([^()]*?)(?:\\right\s*)?\)"
)
_SENTENCE = re.compile(r"\s*\\(?:text|textbf|textrm|mbox)\s*\{[^{}]*[0-9] [^{}0-9]+\}\s*\Z")
"""A number and words in one text, as ``\\text{5 apples}``."""
_SPACE = re.compile(r"\\(?:[ ,;:!]|quad(?![A-Za-z])|displaystyle(?![A-Za-z]))|\s")
_TEXT = re.compile(r"\\(?:text|textrm|textnormal|mbox|hbox|mathrm|rm)(?![A-Za-z])\s*")
_BASE = re.compile(r"_\s*(?:\{\s*([0-9]{1,2})\s*\}|([0-9]))")
_DEGREES = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])")
_POWER_OF_UNIT = re.compile(r"(?<=[A-Za-z}])\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9])")
_UNIT = re.compile(r"[A-Za-z'./{}\s]*")
_DIGITS = r"\s*(?:\{\s*[0-9]+\s*\}|[0-9])"
_FRACTION = re.compile(rf"[+-]?\s*(?:[0-9]*\s*\\[dt]?frac{_DIGITS}{_DIGITS}|[0-9]+\s*/\s*[0-9]+)(?:\s*\\?%)?")
_SIDES = re.compile(r"=|\\approx(?![A-Za-z])")

_NO_UNITS = frozenset(
    {"is", "are", "was", "be", "isn't", "not", "no", "wrong", "false", "incorrect", "true"}
    | {"or", "either", "and", "but", "if", "to", "than", "maybe", "perhaps"}
)
"""Words that make a statement about the number in place of naming its unit."""
_SPELLINGS = {
    "millimetre": "mm millimeter millimeters millimetre millimetres",
    "centimetre": "cm centimeter centimeters centimetre centimetres",
    "metre": "m meter meters metre metres",
    "kilometre": "km kilometer kilometers kilometre kilometres",
    "inch": "inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles",
    "second": "s sec second seconds",
    "minute": "min minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years",
    "milligram": "mg milligram milligrams",
    "gram": "g gram grams",
    "kilogram": "kg kilogram kilograms",
    "pound": "lb lbs pound pounds",
    "ounce": "oz ounce ounces",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "euro": "euro euros",
    "degree": "deg degree degrees",
    "radian": "rad radian radians",
    "percent": "percent",
}
UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}


@dataclass(frozen=True)
class Quantity:
    """A number with its base and its units."""

    number: Number
    base: str
    """Empty where none is named."""
    units: frozenset[str]
    """The known ones that are named: those of lengths, times, masses, money, angles, and per cent."""

    @property
    def is_whole(self) -> bool:
        """Whether it is an integer and no number of per cent, which may be a share too."""
        return self.number.is_integer and "percent" not in self.units


def read_quantity(text: str) -> Quantity | None:
    """The number with unit or base that ``text`` is, None where it is anything else."""
    in_text, text = _SENTENCE.match(text) is not None, _unwrapped(text)
    money = text.startswith((r"\$", "$"))
    text = text.lstrip("\\$") if money else text
    if (found := leading_number(text)) is None:
        return None
    number, end = found
    rest = _SPACE.sub(" ", text[end:]).strip()
    if (base := _BASE.fullmatch(rest)) is not None:
        return Quantity(number, base[1] or base[2], frozenset())
    units = _units(rf"\text{{{rest}}}" if in_text else rest)
    return None if units is None else Quantity(number, "", units | ({"dollar"} if money else set()))


def _unwrapped(text: str) -> str:
    """``text`` without one pair of braces, brackets or dollar signs and without a font, where they hold all of it."""
    text = _SPACE.sub(" ", text).strip()
    found = _WRAPPED.fullmatch(text)
    return next(part for part in found.groups() if part is not None).strip() if found else text


def _units(rest: str) -> frozenset[str] | None:
    """The known units in what follows a number; None where that is no unit, or an unknown one outside of text."""
    degrees, percent = _DEGREES.match(rest), re.match(r"\\?%", rest)
    signs = {"degree"} if degrees else {"percent"} if percent else set()
    rest = rest[degrees.end() if degrees else percent.end() if percent else 0 :]
    plain = _POWER_OF_UNIT.sub("", _TEXT.sub("", rest)).replace(r"\cdot", "/")
    words = re.findall(r"[a-z']+", plain.lower())
    in_text = _TEXT.search(rest) is not None
    if _UNIT.fullmatch(plain) is None or words[-1:] == ["right"] or not _NO_UNITS.isdisjoint(words):
        return None
    if not in_text and any(word not in UNITS for word in words):
        return None
    return frozenset(signs | {UNITS[word] for word in words if word in UNITS})


def quantities_agree(answer: Quantity, gold: Quantity) -> bool | None:
    """Whether two quantities are equal; base and units count where both name one. None where math-verify must say.

    Units agree where those of one are among those of the other, so that ``feet`` may stand for ``feet per second``.
    """
    if answer.base and gold.base and answer.base != gold.base:
        return False
    if ("percent" in answer.units) != ("percent" in gold.units):
        return True if numbers_agree(answer.number, gold.number) else None
    common = answer.units & gold.units
    if answer.units and gold.units and common not in (answer.units, gold.units):
        return False
    return numbers_agree(answer.number, gold.number)


def evaluated(answer: str) -> Quantity | None:
    """The one number that ``answer`` comes down to: itself, or the only number among the sides of its equations.

    ``x = 7`` and ``3 + 4 = 7`` name 7; ``8 = 7``, ``3 + 4``, ``10!`` and ``2^{10}`` name no number or two.
    """
    if len(answer) > MAX_ANSWER_CHARS or not braces_balance(answer):
        return None
    sides = [side for part in _SIDES.split(answer) if (side := read_quantity(part)) is not None]
    return sides[0] if len(sides) == 1 else None


def is_fraction(answer: str) -> bool:
    """Whether ``answer`` is a fraction of integers or a mixed number."""
    return _FRACTION.fullmatch(_unwrapped(answer.rpartition("=")[2])) is not None
