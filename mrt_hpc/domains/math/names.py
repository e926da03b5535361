r"""Names of values: how they are spelt for math-verify, and which sides of an equation are values.

math-verify drops primes, takes ``E_1`` and ``I_1`` for Euler's number and the imaginary unit, and reads no command in a
subscript. It takes the last side of an equation for the answer, so that ``a^2 = 5`` was an answer to 5: here
``name = value`` is one, and an equation whose sides all have the value. Every function takes linear time.
"""

import re
from collections.abc import Iterator

from mrt_hpc.domains.math.words import is_word

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
"""A text, a letter with its index and primes, or a command, each as a whole; an index may follow the primes."""
_COMMAND_OF_TEXT = re.compile(r"\\(?:text[a-z]*|mbox|hbox|mathrm|mathit|mathbf|operatorname)(?![A-Za-z])")
_READ_AS_CONSTANTS = frozenset("EeIi")

_MARK = re.compile(
    rf"(?P<text>{_TEXT})|\\(?:[A-Za-z]+|.)|[<>]=?|:?=|≈|[{{}}()\[\],;]|(?<![A-Za-z])(?:or|and)(?![A-Za-z])"
)
_EQUALS = frozenset({"=", ":=", "\\approx", "≈"})
_OTHER_RELATIONS = frozenset({
    "<", ">", "<=", ">=", ",", ";", "or", "and",
    "\\le", "\\leq", "\\leqslant", "\\ge", "\\geq", "\\geqslant", "\\lt", "\\gt", "\\ne", "\\neq",
    "\\in", "\\equiv", "\\sim",
})  # fmt: skip
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
"""What a question asks for by its own sign, and no equation to be solved: a value of a function, an inverse, a
derivative, an absolute value, a limit; or the sum of letters that were defined before, as in ``m + n``.
"""
_WORD = re.compile(r"[A-Za-z]+")


def spelt(text: str) -> str:
    r"""``text`` with its names as math-verify reads them: ``x_{1}`` as ``x_1``, ``x'`` as ``x_{prime}``, ``E_1`` as one
    variable.
    """
    return _SPELT.sub(_spelt, text)


def _spelt(match: re.Match[str]) -> str:
    primes = (match["primes"] or "").count("'") + (match["primes"] or "").count("prime")
    index = "".join(_plain_index(match[part] or "") for part in ("index", "late")) + "prime" * primes
    if match["name"] is None or not index:
        return match[0]
    if match["name"] in _READ_AS_CONSTANTS:
        return rf"\variable{{{match['name']}{index}}}"
    return f"{match['name']}_{index}" if len(index) == 1 else f"{match['name']}_{{{index}}}"


def _plain_index(index: str) -> str:
    """The letters and digits of an index, without its braces and font."""
    return "".join(re.findall("[A-Za-z0-9]", _COMMAND_OF_TEXT.sub("", index)))


def value_sides(text: str) -> list[str]:
    """The sides of an equation that are to be its value, without its names; the whole text where it is no equation.

    Behind a name all sides with symbols but the last are formulas on the way, as in ``A = lw = 3 \\cdot 4 = 12``.
    """
    sides = _sides(text)
    values = [side for side in sides if not is_name(side)]
    if len(sides) == 1 or not values:
        return sides[-1:]
    if is_name(sides[0]):
        return [side for side in values[:-1] if not _has_symbols(side)] + values[-1:]
    return values


def named_value(text: str) -> tuple[str, str] | None:
    """The name and the value of an equation ``name = value``, None for all else."""
    sides = _sides(text)
    return (sides[0], sides[1]) if len(sides) == 2 and is_name(sides[0]) and not is_name(sides[1]) else None


def is_name(side: str) -> bool:
    """Whether one side of an equation is a name: a letter with index, primes and arguments, the value of a function,
    points, or words.
    """
    words = side.split()
    return (
        _NAME.fullmatch(side) is not None
        or _FUNCTION_VALUE.fullmatch(side) is not None
        or (all(_WORD.fullmatch(word) for word in words) and any(is_word(word) for word in words))
    )


def _has_symbols(side: str) -> bool:
    return _VARIABLE.search(re.sub(_TEXT, "", side)) is not None


def _sides(text: str) -> list[str]:
    """The sides of an equation outside of all brackets; one where there is a list, an inequality, or no equation."""
    sides, start = [], 0
    for mark in _outer_marks(text):
        if mark[0] in _OTHER_RELATIONS or (mark["text"] and _WORD.findall(mark["text"])[1:2] in (["or"], ["and"])):
            return [text]
        if mark[0] in _EQUALS:
            sides.append(text[start : mark.start()].strip())
            start = mark.end()
    sides.append(text[start:].strip())
    return [side for side in sides if side] or [text]


def _outer_marks(text: str) -> Iterator[re.Match[str]]:
    depth = 0
    for mark in _MARK.finditer(text):
        if mark[0] in ("{", "(", "[", "\\{"):
            depth += 1
        elif mark[0] in ("}", ")", "]", "\\}"):
            depth -= 1
        elif depth == 0:
            yield mark
