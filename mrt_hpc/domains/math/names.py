r"""Names of values: their spelling for math-verify, and which sides of an equation are values.

math-verify drops primes, takes ``E_1`` and ``I_1`` for Euler's number and the imaginary unit, and reads no command in a
subscript. It takes the last side of an equation for the answer, so that ``a^2 = 5`` was an answer to 5; here only
``name = value`` is one, and an equation whose sides all have the value. Every function takes linear time.
"""

import re
from collections.abc import Iterator

from mrt_hpc.domains.math.numbers import UNITS
from mrt_hpc.domains.math.words import MATHEMATICS, STATEMENTS, is_word

_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|iota|kappa|lambda|mu|nu|xi|(?:var)?rho|sigma"
    r"|tau|upsilon|(?:var)?phi|chi|psi|omega|ell|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega)(?![A-Za-z])"
)
_TEXT = r"\\(?:text[a-z]*|mbox|hbox|mathrm|mathit|mathbf|operatorname)\s*\{[^{}]*\}"
_TEXT_NAME = r"\\(?:text[a-z]*|mbox|hbox|mathrm|mathit|mathbf|operatorname)\s*\{\s*(?=[A-Za-z])[^{}]*\}"
_INDEX = rf"_\s*(?:\{{\s*(?:{_TEXT}|\\[A-Za-z]+|[A-Za-z0-9]+)\s*\}}|{_TEXT}|\\[A-Za-z]+|[A-Za-z0-9])"
_PRIMES = r"\^\s*(?:\{\s*(?:\\prime\s*|')+\}|\\prime(?![A-Za-z]))|'+"
_SPELT = re.compile(
    rf"{_TEXT}|(?P<name>{_GREEK}|(?<![\\A-Za-z])[A-Za-z]|(?<=[A-Za-z])[A-Za-z])"
    rf"(?:\s*(?P<index>{_INDEX}))?(?P<primes>{_PRIMES})?(?P<late>{_INDEX})?|\\[A-Za-z]+"
)
"""A text, a letter with its index and primes, or a command; an index may follow the primes."""
_IMAGINARY = re.compile(
    r"(?P<unit>\\(?:imath(?![A-Za-z])|(?:math|text)(?:rm|it|normal)?\s*\{\s*i\s*\}))"
    rf"|{_TEXT}|\\variable\{{\w*\}}|_\s*(?:\{{[^{{}}]*\}}|[A-Za-z0-9])|\\[A-Za-z]+"
    r"|(?<![A-Za-z])(?P<run>i[A-Za-z]{0,2}|[A-Za-z]{1,2}i)(?![A-Za-z])"
)
"""Alone, or in a short product; texts, indexes and commands are skipped."""
_NO_PRODUCTS = frozenset({*UNITS, *MATHEMATICS, *STATEMENTS, "in", "ii", "iii", "phi", "chi", "psi", "xi"})
"""Letters with an i that are one word or sign, in a text without backslashes."""
_AT_ZERO = re.compile(
    r"(?:(?<![A-Za-z\\])|\\variable\{(?=\w*\}))([A-Za-z]\w*)\}?\s*(?:\\left\s*)?\(\s*0\s*(?:\\right\s*)?\)"
)
"""A value at 0, as ``I(0)``, which is no product with 0."""
_NO_UNIT = re.compile(
    r"\\(?:sum|prod|d?binom)(?![A-Za-z])|(?<![A-Za-z\\])(?:i\s*=|j(?![A-Za-z]))|\\(?:hat|vec|mathbf|bm|boldsymbol)\s*\{?\s*\\?i"
)
"""Where i is an index, or a vector."""
_COMMAND_OF_TEXT = re.compile(r"\\(?:text[a-z]*|mbox|hbox|mathrm|mathit|mathbf|operatorname)(?![A-Za-z])")
_READ_AS_CONSTANTS = frozenset({"E", "e", "I", "i", "\\gamma", "\\Gamma"})
_CONSTANTS_ALONE = frozenset({"I", "\\gamma", "\\Gamma"})
"""Constants of math-verify that name anything: a current, a factor of Lorentz."""
_VARIANTS = {"\\varepsilon": "\\epsilon", "\\varphi": "\\phi", "\\vartheta": "\\theta", "\\varrho": "\\rho"}

_MARK = re.compile(
    rf"(?P<text>{_TEXT})|\\(?:[A-Za-z]+|.)|[<>]=?|:?=|≈|[{{}}()\[\],;]|(?<![A-Za-z])(?:or|and)(?![A-Za-z])"
)
_EQUALS = frozenset({"=", ":=", "\\approx", "≈"})
_OTHER_RELATIONS = frozenset({
    "<", ">", "<=", ">=", ",", ";", "or", "and",
    "\\le", "\\leq", "\\leqslant", "\\ge", "\\geq", "\\geqslant", "\\lt", "\\gt", "\\ne", "\\neq",
    "\\in", "\\equiv", "\\sim",
})  # fmt: skip
LIST = frozenset({",", ";", "and", "\\land"})
EITHER = frozenset({"or", "\\lor", "\\vee", "\\cup"})
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[A-Za-z]")

_DECORATED = (
    r"\\(?:overline|overrightarrow|vec|hat|widehat|bar|tilde|dot|ddot|mathbb|mathcal|mathsf)\s*(?:\{[^{}]*\}|[A-Za-z])"
)
_ANY_INDEX = r"\s*_\s*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\\[A-Za-z]+|[A-Za-z0-9])"
_ARGUMENTS = r"\s*(?:\\left\s*)?(?:\([^()+*/^]*\)|\[[^\[\]+*/^]*\]|\([^()+*/^]*\\right\s*\)|\[[^\[\]+*/^]*\\right\s*\])"
_NAME = re.compile(
    rf"(?:{_GREEK}|\\pi|\\Pr|[A-Za-z]|[A-Z]{{2,}}|\\variable\{{\w+\}}|{_TEXT_NAME}|{_DECORATED}"
    r"|m?\s*\\(?:angle|triangle)\s*[A-Z]+|\|[A-Z]{2}\||\[[A-Z]{3,}\])"
    rf"(?:{_ANY_INDEX})?(?:{_PRIMES})?(?:{_ANY_INDEX})?(?:{_ARGUMENTS})?"
    r"|(?:\\left\s*)?\(\s*[A-Za-z](?:_[A-Za-z0-9])?(?:\s*,\s*[A-Za-z](?:_[A-Za-z0-9])?)+\s*(?:\\right\s*)?\)"
)
_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_OF = r"(?:\^\s*\{?\s*(?:-1|\([0-9n]+\))\s*\}?)"
_FUNCTION_VALUE = re.compile(
    rf"[fghFGHPT](?:{_ANY_INDEX})?(?:{_OF}|{_PRIMES})?\s*(?:\\left\s*)?{_BRACKETS}"
    r"|(?:\\left\s*)?\|[^|=]+\|"
    r"|\\\|[^|=]+\\\||(?:\\left\s*)?\\lfloor[^=]*\\rfloor"
    r"|\\d?frac\s*\{(?:d|\\partial)(?:\^\{?[0-9]\}?)?\s*\w*\}\s*\{(?:d|\\partial)\s*\w(?:\^\{?[0-9]\}?)?\}\s*\w?(?:\([^()]*\))?"
    rf"|\\(?:det|dim|deg|arg|gcd|sin|cos|tan|cot|sec|csc|min|max|Delta|operatorname\{{\w+\}})\s*(?:{_BRACKETS}|{_GREEK}|[A-Za-z]{{1,3}})"
    r"|\\(?:lim|max|min|sup|inf)(?![A-Za-z])[^=]*"
    r"|[A-Za-z](?:\s*\+\s*[A-Za-z])+"
)
"""A value that a question asks for, and no equation to be solved: of a function, an inverse, a derivative, an absolute
value, a limit; or a sum of letters defined before, as ``m + n``.
"""
_WORD = re.compile(r"[A-Za-z]+")


def readable_names(text: str) -> str:
    r"""Names as math-verify reads them: ``x_{1}`` as ``x_1``, ``x'`` as ``x_{prime}``, ``E_1`` and I as variables, and
    an imaginary unit i as I.
    """
    named = _AT_ZERO.sub(r"\\variable{\1at0}", _SPELT.sub(_name_spelling, text))
    return named if "i" not in named or _NO_UNIT.search(named) else _IMAGINARY.sub(_unit_spelling, named)


def _unit_spelling(match: re.Match[str]) -> str:
    if match["unit"]:
        return "{I}"
    return match[0] if match["run"] is None or match["run"] in _NO_PRODUCTS else match[0].replace("i", "I")


def _name_spelling(match: re.Match[str]) -> str:
    primes = (match["primes"] or "").count("'") + (match["primes"] or "").count("prime")
    index = "".join(_plain_index(match[part] or "") for part in ("index", "late")) + "prime" * primes
    name = match["name"]
    if name is None or (
        not index and name == "\\Gamma" and match.string[match.end() :].lstrip().startswith(("(", "\\left("))
    ):
        return match[0]
    if name in (_READ_AS_CONSTANTS if index else _CONSTANTS_ALONE):
        return "\\variable{" + name.removeprefix("\\") + index + "}"
    plain = _VARIANTS.get(name, name)
    name = name if plain in match.string else plain  # a text with both has two letters
    return name if not index else f"{name}_{index}" if len(index) == 1 else f"{name}_{{{index}}}"


def _plain_index(index: str) -> str:
    """Without braces and font."""
    return "".join(re.findall("[A-Za-z0-9]", _COMMAND_OF_TEXT.sub("", index)))


def value_sides(text: str) -> list[str]:
    """The sides of an equation that are to be its value, or the whole text. Behind a name all sides with symbols but
    the last are formulas on the way, as in ``A = lw = 3 \\cdot 4 = 12``.
    """
    sides = sides_of(text)
    values = [side for side in sides if not is_name(side)]
    if len(sides) == 1 or not values:
        return sides[-1:]
    if is_name(sides[0]):
        return [side for side in values[:-1] if not _has_symbols(side)] + values[-1:]
    return values


def named_value(text: str) -> tuple[str, str] | None:
    """Of an equation ``name = value``; None for all else."""
    sides = sides_of(text)
    return (sides[0], sides[1]) if len(sides) == 2 and is_name(sides[0]) and not is_name(sides[1]) else None


def is_name(side: str) -> bool:
    """A letter with index, primes and arguments, the value of a function, points, or words."""
    words = side.split()
    return (
        _NAME.fullmatch(side) is not None
        or _FUNCTION_VALUE.fullmatch(side) is not None
        or (all(_WORD.fullmatch(word) for word in words) and any(is_word(word) for word in words))
    )


def _has_symbols(side: str) -> bool:
    return _VARIABLE.search(re.sub(_TEXT, "", side)) is not None


def sides_of(text: str) -> list[str]:
    """Outside of all brackets; one side where there is a list, an inequality, or no equation."""
    sides, start = [], 0
    for mark in _outer_marks(text):
        if mark[0] in _OTHER_RELATIONS or (mark["text"] and _WORD.findall(mark["text"])[1:2] in (["or"], ["and"])):
            return [text]
        if mark[0] in _EQUALS:
            sides.append(text[start : mark.start()].strip())
            start = mark.end()
    sides.append(text[start:].strip())
    return [side for side in sides if side] or [text]


def outer_parts(text: str, separators: frozenset[str] = LIST) -> list[str]:
    """Between separators outside of all brackets; a word may stand in ``\\text{}``."""
    parts, start = [], 0
    for mark in _outer_marks(text):
        if mark[0] in separators or (mark["text"] and " ".join(_WORD.findall(mark["text"])[1:]) in separators):
            parts.append(text[start : mark.start()].strip())
            start = mark.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _outer_marks(text: str) -> Iterator[re.Match[str]]:
    depth = 0
    for mark in _MARK.finditer(text):
        if mark[0] in ("{", "(", "[", "\\{"):
            depth += 1
        elif mark[0] in ("}", ")", "]", "\\}"):
            depth -= 1
        elif depth == 0:
            yield mark
