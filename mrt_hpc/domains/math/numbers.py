"""Compares plain numbers, as digits or with a power of ten, without math-verify, which reads ``4.5e33`` as a product
with Euler's number, and compares decimals at six places, so that all values below 1e-7 are equal to it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

from mrt_hpc.domains.math.cleanup import MAX_ANSWER_CHARS
from mrt_hpc.domains.math.words import STATEMENTS

LARGEST_TOLERANCE = Decimal("0.01")
"""Relative, for powers of ten: 1 %, a choice of this project. The checker of MinervaMATH's physics problems
(OCWCourses, Lewkowycz et al. 2022, arXiv 2206.14858) names 0.01, but applies it only to values that ``numpy.isclose``
takes for 0 or for equal; others must agree to about 1e-5, which refuses answers rounded rightly to a gold answer of few
digits.
"""
DECIMAL_TOLERANCE = Decimal("1e-6")
"""Relative, for decimals without a power of ten: the noise of floating-point numbers, and no rounding of results."""
DECIMAL_PLACES = Decimal("5e-7")
"""Absolute, for the same: never looser than math-verify's six places."""

_CONTEXT = Context(prec=2000, Emax=999999, Emin=-999999)
"""More digits than the longest answer, so that a difference is exact."""

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
    value: Decimal
    last_place: Decimal
    """One unit of its last digit."""
    is_integer: bool
    """Written with digits alone, so that it is exact."""
    has_power: bool
    """With a power of ten, so that its digits say how exactly it is known."""


def leading_number(text: str) -> tuple[Number, int] | None:
    """The number that ``text`` begins with and where it ends."""
    match = _NUMBER.match(text)
    if match is None or len(text) > MAX_ANSWER_CHARS:
        return None
    powers = (match[name] for name in ("plain", "braced", "bare", "braced_alone", "bare_alone"))
    power = next((int(text) for text in powers if text is not None), None)
    mantissa = (match["mantissa"] or "1").replace(",", "")
    last_place = -len(mantissa.partition(".")[2]) + (power or 0)
    number = Number(
        value=_CONTEXT.scaleb(Decimal(match["sign"] + mantissa), power or 0),
        last_place=Decimal(1).scaleb(last_place, _CONTEXT),
        is_integer=power is None and "." not in mantissa,
        has_power=power is not None,
    )
    return number, match.end()


def power_as_latex(text: str) -> str:
    """``4.5e33`` as ``4.5 \\times 10^{33}``, since LaTeX reads the e as Euler's number."""
    match = _E_NOTATION.fullmatch(text.strip())
    return rf"{match[1]} \times 10^{{{int(match[2])}}}" if match else text


def fractions_as_latex(text: str) -> str:
    """Repeating decimals and mixed numbers of per cent become fractions: math-verify reads neither."""
    return _MIXED_SHARE.sub(_mixed_share, _REPEATING.sub(_repeating_decimal, text))


def _repeating_decimal(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` is (16 - 1) / 90."""
    once, period = match[1] + match[2], match[3]
    above = int(once + period) - int(once or 0)
    return rf"\frac{{{above}}}{{{(10 ** len(period) - 1) * 10 ** len(match[2])}}}"


def _mixed_share(match: re.Match[str]) -> str:
    """``12\\frac12\\%`` is 25 / 2 per cent."""
    above, below = int(match[2] or match[3]), int(match[4] or match[5])
    return rf"\frac{{{int(match[1]) * below + above}}}{{{below}}}"


def numbers_agree(answer: Number, gold: Number) -> bool:
    """Exact where both or the gold answer are integers, within a tolerance elsewhere.

    A power of ten shows a measurement or a computation: right is an answer that rounds to the digits of the gold
    answer, and lies within ``LARGEST_TOLERANCE`` of it (``6e13`` alone would let 5.5e13 pass). Other decimals differ by
    noise at most.
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


# -- quantities --------------------------------------------------------------------------------------------------------
# Reads an answer that is one number with its unit or base, and says whether an answer was evaluated.
#
# math-verify drops units and bases, and evaluates sums, factorials and powers itself: a model that is rewarded for
# ``\sum_{k=1}^{100} k`` learns to leave the work to the grader. Owns which forms count as a number. Leaves out how near
# two numbers must be (``numbers``) and every gold answer that is no number (``equivalence``). Takes linear time.


_WRAPPED = re.compile(
    r"\\(?:text|textbf|textrm|mbox|mathbf|mathrm|mathsf|mathit|boldsymbol|bm|underline)\s*\{([^{}]*)\}"
    r"|\{([^{}]*)\}|(?:\\left\s*)?\\\{([^{}]*?)(?:\\right\s*)?\\\}|\$([^$]*)\$|(?:\\left\s*)?\(([^()]*?)(?:\\right\s*)?\)"
)
_SENTENCE = re.compile(r"\s*\\(?:text|textbf|textrm|mbox)\s*\{[^{}]*[0-9] [^{}0-9]+\}\s*\Z")
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
_UNIT_AT_END = re.compile(r"\\(?:text|textrm|mbox|hbox|mathrm|rm)\s*\{([^{}]*)\}\s*(?:\^\s*(?:\{[^{}]*\}|[0-9]))?\s*\Z")
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
    number: Number
    base: str
    """Empty where none is named."""
    units: frozenset[str]
    """The known ones: of lengths, times, masses, money, angles, and per cent."""

    @property
    def is_whole(self) -> bool:
        """A number of per cent may be a share too."""
        return self.number.is_integer and "percent" not in self.units


def read_quantity(text: str) -> Quantity | None:
    in_text, text = _SENTENCE.match(text) is not None, _text_within(text)
    money = text.startswith((r"\$", "$"))
    text = text.lstrip("\\$") if money else text
    if (leading := leading_number(text)) is None:
        return None
    number, end = leading
    rest = _SPACE.sub(" ", text[end:]).strip()
    if (base := _BASE.fullmatch(rest)) is not None:
        return Quantity(number, base[1] or base[2], frozenset())
    units = _units(rf"\text{{{rest}}}" if in_text else rest)
    return None if units is None else Quantity(number, "", units | ({"dollar"} if money else set()))


def _text_within(text: str) -> str:
    """Without one pair of braces, brackets or dollar signs and without a font around all of it."""
    text = _SPACE.sub(" ", text).strip()
    match = _WRAPPED.fullmatch(text)
    return next(part for part in match.groups() if part is not None).strip() if match else text


def _units(rest: str) -> frozenset[str] | None:
    """None for no unit, or an unknown one outside of text."""
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
    """Base and units count where both name one; None where math-verify must say. Units of one may be among those of the
    other, so that ``feet`` may stand for ``feet per second``.
    """
    if answer.base and gold.base and answer.base != gold.base:
        return False
    if ("percent" in answer.units) != ("percent" in gold.units):
        return True if numbers_agree(answer.number, gold.number) else None
    common = answer.units & gold.units
    if answer.units and gold.units and common not in (answer.units, gold.units):
        return False
    return numbers_agree(answer.number, gold.number)


def units_differ(answer: str, gold: str) -> bool:
    """Both texts end with known units in a text command."""
    given, expected = _units_at_end(answer), _units_at_end(gold)
    return bool(given and expected) and given & expected not in (given, expected)


def _units_at_end(text: str) -> frozenset[str]:
    match = _UNIT_AT_END.search(text)
    return (
        frozenset(UNITS[word] for word in re.findall(r"[a-z]+", match[1].lower()) if word in UNITS)
        if match
        else frozenset()
    )


def evaluation_line(sides: Sequence[str]) -> Quantity | None:
    """``7`` and ``3 + 4 = 7`` name 7; ``8 = 7``, ``3 + 4``, ``10!`` and ``2^{10}`` name no number or two."""
    numbers = [side for text in sides if (side := read_quantity(text)) is not None]
    return numbers[0] if len(numbers) == 1 else None


def is_fraction(value: str) -> bool:
    """Of integers, or a mixed number."""
    return _FRACTION.fullmatch(_text_within(value)) is not None


def ends_with_symbol(text: str) -> bool:
    """A number and a single letter without a space: a unit or a variable."""
    return _GLUED.fullmatch(text.strip()) is not None


def texts_with_symbols(answer: str, gold: str) -> tuple[str, str]:
    r"""The two with their last letters in braces where those are symbols, and in ``\\text{}`` where they are a unit:
    math-verify drops some fifty words, and most single letters, behind a number, a brace or a blank.

    Two letters or more are a unit only if ``UNITS`` has them. A single letter of the gold answer is one only behind a
    plain number and a space, as in ``5 m``; ``\\frac{37}{4} m`` may be a product, so an answer needs the m. An answer
    may add a unit behind a number and a space.
    """
    expected, symbol = _symbol_text(gold, _PLAIN_NUMBER)
    match = _LETTER_AS_TEXT.search(answer) or _LAST_LETTERS.search(answer)
    if match is not None and symbol == match[1]:
        return f"{answer[: match.start()]}{{{symbol}}}{answer[match.end(1) :].strip(' }')}", expected
    return _symbol_text(answer, _NO_SYMBOLS)[0], expected


def _symbol_text(text: str, may_have_unit: re.Pattern[str]) -> tuple[str, str]:
    """With the last letters marked, and those that are symbols."""
    match = _LAST_LETTERS.search(text)
    if match is None:
        return text, ""
    before, letters, power = text[: match.start()], match[1], match[2] or ""
    known, behind_value = letters.lower() in UNITS, before.rstrip().endswith((*"0123456789})", "\\,", "\\pi"))
    if letters.lower() == "percent" and behind_value:
        return rf"{before}\%", ""
    if known and behind_value and (len(letters) > 1 or (not power and may_have_unit.fullmatch(before) is not None)):
        return rf"{before}\text{{ {letters}}}{power}", ""
    return (text, "") if power else (f"{before}{{{letters}}}", letters)
