"""Reads plain numbers, as digits or with a power of ten, and compares them without math-verify.

math-verify reads ``4.5e33`` as a product with Euler's number, and compares decimals at six places, so that all values
below 1e-7 are equal to it. Owns the tolerance between two numbers. Leaves out every other expression (``equivalence``).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

from mrt_hpc.domains.math.words import STATEMENTS

# -- cleanup -----------------------------------------------------------------------------------------------------------
# Removes from an answer the marks of its sentence or layout, before it is compared. These marks change no value, but
# math-verify misreads them: the full stop behind a formula, the bold type around it, a thin space between thousands.
# Leaves out what the answer means (``equivalence``).


MAX_ANSWER_CHARS = 1000
"""Longer answers are loops, not mathematics (the longest gold answer of the benchmarks has 159 characters)."""

_COMMANDS_AT_END = ("\\\\", "\\,", "\\;", "\\!", "\\ ")
_MARKS_AT_END = (".", ",", ";", " ", "\n", "\t")
_BOLD = re.compile(r"\A\*\*(.*)\*\*\Z", re.DOTALL)
_DOLLARS = re.compile(r"\A(\$\$?)((?:[^$\\]|\\.)+)\1\Z", re.DOTALL)
_START = re.compile(r"\A\s*(?:=|\\approx(?![A-Za-z])|≈)\s*")
_IN_BETWEEN = (
    (re.compile(r"\\(?:text|mathrm|mbox)\{\s*\\\$\s*\}"), ""),
    (re.compile(r"\\[bB]igg?[lrm]?(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:text)?color\s*\{[A-Za-z]+\}"), ""),
    (re.compile(r"\^?°"), r"^\\circ"),
    (re.compile(r"−"), "-"),
    (re.compile(r"(?<=[0-9])\.(?=\s*+[-+*/^)}])"), ""),
    (re.compile(r"(?<!\\)~"), " "),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
)
_THOUSANDS = re.compile(r"(?<![0-9_])[0-9]{1,3}(?:(?:\\,|,?\\!|\{,\})[0-9]{3})+(?![0-9])")
"""One number, since its groups have three digits each; ``1,\\,234`` has a comma before the space and is a list."""
_SPACE_BETWEEN_THOUSANDS = re.compile(r"\\,|,?\\!|\{,\}")
_SPACED_NUMBER = re.compile(r"[+-]?[0-9]{1,3}(?: [0-9]{3})+")
"""A whole answer only: elsewhere ``1 234`` may be a product or a list."""
_MIXED_NUMBER = re.compile(r"([+-]?[0-9]{1,9})\s+([0-9]{1,9})\s*/\s*([0-9]{1,9})")
"""``4 1/2`` as a whole answer: math-verify reads a product."""
_ANGLES = re.compile(r"\\langle(?![A-Za-z])(.*)\\rangle", re.DOTALL)
_OUTWARD = re.compile(r"(?:\\left\s*)?([\[\]])([^\[\]]+,[^\[\]]+?)(?:\\right\s*)?([\[\]])")
"""An interval that may be written with brackets that open outwards, as ``]0, 1]`` is ``(0, 1]``."""


def clean(answer: str) -> str:
    """Return ``answer`` without the marks that do not change its meaning; a too long one is returned unchanged."""
    if len(answer) > MAX_ANSWER_CHARS:
        return answer
    text = _BOLD.sub(r"\1", _without_end(answer.strip()))
    text = _DOLLARS.sub(r"\2", _without_end(text))
    text = _START.sub("", _without_end(text.strip()))
    for pattern, replacement in _IN_BETWEEN:
        text = pattern.sub(replacement, text)
    text = _THOUSANDS.sub(lambda number: _SPACE_BETWEEN_THOUSANDS.sub("", number[0]), text).strip()
    if (mixed := _MIXED_NUMBER.fullmatch(text)) is not None and int(mixed[2]) < int(mixed[3]):
        return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}"
    return _with_usual_brackets(text.replace(" ", "") if _SPACED_NUMBER.fullmatch(text) else text)


def _with_usual_brackets(text: str) -> str:
    """``text`` in round brackets where all of it is in angles, or in brackets that open outwards."""
    if (vector := _ANGLES.fullmatch(text)) is not None:
        return f"({vector[1]})"
    interval = _OUTWARD.fullmatch(text)
    if interval is None or (interval[1], interval[3]) == ("[", "]"):
        return text
    return f"{'[' if interval[1] == '[' else '('}{interval[2]}{']' if interval[3] == ']' else ')'}"


def _without_end(text: str) -> str:
    """``text`` without the marks behind it; the point of ``\\right.`` is an invisible bracket and stays."""
    while text.endswith(_MARKS_AT_END + _COMMANDS_AT_END) and not text.endswith((r"\right.", r"\left.")):
        text = text[: -2 if text.endswith(_COMMANDS_AT_END) else -1]
    return text


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
    """``4.5e33`` as ``4.5 \\times 10^{33}``, since LaTeX reads the e as Euler's number; any other text as it is."""
    match = _E_NOTATION.fullmatch(text.strip())
    return rf"{match[1]} \times 10^{{{int(match[2])}}}" if match else text


def as_fraction(text: str) -> str:
    """A text whose repeating decimals and mixed numbers of per cent are fractions: math-verify reads neither."""
    return _MIXED_SHARE.sub(_share_as_fraction, _REPEATING.sub(_repeating_as_fraction, text))


def _repeating_as_fraction(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` is (16 - 1) / 90."""
    once, period = match[1] + match[2], match[3]
    above = int(once + period) - int(once or 0)
    return rf"\frac{{{above}}}{{{(10 ** len(period) - 1) * 10 ** len(match[2])}}}"


def _share_as_fraction(match: re.Match[str]) -> str:
    """``12\\frac12\\%`` is 25 / 2 per cent."""
    above, below = int(match[2] or match[3]), int(match[4] or match[5])
    return rf"\frac{{{int(match[1]) * below + above}}}{{{below}}}"


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
    if (leading := leading_number(text)) is None:
        return None
    number, end = leading
    rest = _SPACE.sub(" ", text[end:]).strip()
    if (base := _BASE.fullmatch(rest)) is not None:
        return Quantity(number, base[1] or base[2], frozenset())
    units = _units(rf"\text{{{rest}}}" if in_text else rest)
    return None if units is None else Quantity(number, "", units | ({"dollar"} if money else set()))


def _unwrapped(text: str) -> str:
    """``text`` without one pair of braces, brackets or dollar signs and without a font, where they hold all of it."""
    text = _SPACE.sub(" ", text).strip()
    match = _WRAPPED.fullmatch(text)
    return next(part for part in match.groups() if part is not None).strip() if match else text


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
    match = _LETTER_AS_TEXT.search(answer) or _LAST_LETTERS.search(answer)
    if match is not None and symbol == match[1]:
        return f"{answer[: match.start()]}{{{symbol}}}{answer[match.end(1) :].strip(' }')}", expected
    return _kept(answer, _NO_SYMBOLS)[0], expected


def _kept(text: str, may_have_unit: re.Pattern[str]) -> tuple[str, str]:
    """``text`` with its last letters marked, and those that are symbols."""
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
