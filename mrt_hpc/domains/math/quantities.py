"""Reads an answer that is one number with its unit or base, and says whether an answer was evaluated.

math-verify drops units and bases, and evaluates sums, factorials and powers itself: a model that is rewarded for
``\\sum_{k=1}^{100} k`` learns to leave the work to the grader. Owns which forms count as a number. Leaves out how near
two numbers must be (``numbers``) and every gold answer that is no number (``equivalence``). Takes linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrt_hpc.domains.math.numbers import Number, leading_number, numbers_agree
from mrt_hpc.domains.math.words import STATEMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRAPPED = re.compile(
    r"\\(?:text|textbf|textrm|mbox|mathbf|mathrm|mathsf|mathit|boldsymbol|bm|underline)\s*\{([^{}]*)\}"
    r"|\{([^{}]*)\}|(?:\\left\s*)?\\\{([^{}]*?)(?:\\right\s*)?\\\}|\$([^$]*)\$|(?:\\left\s*)?\(([^()]*?)(?:\\right\s*)?\)"
)
_SENTENCE = re.compile(r"\s*\\(?:text|textbf|textrm|mbox)\s*\{[^{}]*[0-9] [^{}0-9]+\}\s*\Z")
"""A number and words in one text, as ``\\text{5 apples}``."""
_SPACE = re.compile(r"\\(?:[ ,;:!]|quad(?![A-Za-z])|displaystyle(?![A-Za-z]))|\s")
_TEXT = re.compile(r"\\(?:text|textrm|textnormal|mbox|hbox|mathrm|rm)(?![A-Za-z])\s*")
_BASE = re.compile(r"_\s*(?:\{\s*([0-9]{1,2})\s*\}|([0-9]))")
_DEGREES = re.compile(r"(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![A-Za-z]))(?:\s*[CF](?![A-Za-z]))?")
_POWER_OF_UNIT = re.compile(r"(?<=[A-Za-z}])\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9])")
_UNIT = re.compile(r"[A-Za-z'./{}\s]*")
_DIGITS = r"\s*(?:\{\s*[0-9]+\s*\}|[0-9])"
_FRACTION = re.compile(rf"[+-]?\s*(?:[0-9]*\s*\\[dt]?frac{_DIGITS}{_DIGITS}|[0-9]+\s*/\s*[0-9]+)(?:\s*\\?%)?")

_GLUED = re.compile(r"[+-]?[0-9.,]*[0-9](?:\s*/\s*[A-Za-z]|[A-Za-z](?:\^(?:[0-9]|\{-?[0-9]\}))?)")
_LAST_LETTERS = re.compile(r"(?<![A-Za-z\\])([A-Za-z]+)(\^(?:[0-9]|\{-?[0-9]\}))?\s*\Z")
_LETTER_AS_TEXT = re.compile(r"\\(?:text|textrm|textit|mbox|mathrm|mathit)\s*\{\s*([A-Za-z])\s*\}\s*\Z")
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9.,]+(?:\s|\\[ ,;:!])+")
_NO_SYMBOLS = re.compile(r"(?:[^A-Za-z\\]|\\[A-Za-z]+|\\[^A-Za-z])*(?:\s|\\[ ,;:!])|[+-]?[0-9.,]+")
_SPELLINGS = {
    "millimetre": "mm millimeter millimeters millimetre millimetres",
    "centimetre": "cm centimeter centimeters centimetre centimetres",
    "metre": "m meter meters metre metres",
    "kilometre": "km kilometer kilometers kilometre kilometres kmh kph",
    "inch": "inch inches",
    "foot": "ft foot feet",
    "yard": "yd yard yards",
    "mile": "mi mile miles mph",
    "second": "s sec second seconds",
    "minute": "min minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "day days",
    "hertz": "hz hertz",
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
    if _UNIT.fullmatch(plain) is None or words[-1:] == ["right"] or not STATEMENTS.isdisjoint(words):
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


def evaluated(sides: Sequence[str]) -> Quantity | None:
    """The one number that the sides of an answer come down to, None where there is none or more than one.

    ``7`` and ``3 + 4 = 7`` name 7; ``8 = 7``, ``3 + 4``, ``10!`` and ``2^{10}`` name no number or two.
    """
    numbers = [side for text in sides if (side := read_quantity(text)) is not None]
    return numbers[0] if len(numbers) == 1 else None


def is_fraction(value: str) -> bool:
    """Whether ``value`` is a fraction of integers or a mixed number."""
    return _FRACTION.fullmatch(_unwrapped(value)) is not None


def ends_with_symbol(text: str) -> bool:
    """Whether a number and a single letter without a space make up ``text``: the letter may be a unit or a variable."""
    return _GLUED.fullmatch(text.strip()) is not None


def with_symbols_kept(answer: str, gold: str) -> tuple[str, str]:
    r"""The two with their last letters in braces where those are symbols, and in ``\\text{}`` where they are a unit:
    math-verify drops some fifty words, and most single letters, behind a number, a brace or a blank.

    Two letters or more are a unit only if ``UNITS`` has them. A single letter of the gold answer is one only behind a
    plain number and a space, as in ``5 m``; ``\\frac{37}{4} m`` may be a product, so that an answer must have the m. An
    answer may add the unit that the gold answer leaves out, behind a number without symbols and a space.
    """
    expected, symbol = _kept(gold, _PLAIN_NUMBER)
    found = _LETTER_AS_TEXT.search(answer) or _LAST_LETTERS.search(answer)
    if found is not None and symbol == found[1]:
        return f"{answer[: found.start()]}{{{symbol}}}{answer[found.end(1) :].strip(' }')}", expected
    return _kept(answer, _NO_SYMBOLS)[0], expected


def _kept(text: str, may_have_unit: re.Pattern[str]) -> tuple[str, str]:
    """``text`` with its last letters marked, and those that are symbols."""
    found = _LAST_LETTERS.search(text)
    if found is None:
        return text, ""
    before, letters, power = text[: found.start()], found[1], found[2] or ""
    known, behind_value = letters.lower() in UNITS, before.rstrip().endswith((*"0123456789})", "\\,", "\\pi"))
    if letters.lower() == "percent" and behind_value:
        return rf"{before}\%", ""
    if known and behind_value and (len(letters) > 1 or (not power and may_have_unit.fullmatch(before) is not None)):
        return rf"{before}\text{{ {letters}}}{power}", ""
    return (text, "") if power else (f"{before}{{{letters}}}", letters)
