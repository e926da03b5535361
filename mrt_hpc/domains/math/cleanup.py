"""Removes from an answer the marks of its sentence or layout, and writes its signs as LaTeX, before it is compared: a
full stop behind a formula, bold type, a thin space between thousands, Greek letters of Unicode. They change no value,
but math-verify misreads them.
"""

import re

MAX_ANSWER_CHARS = 1000
"""Longer answers are loops, not mathematics."""

_COMMANDS = re.findall(
    r"(\S)(\S+)",
    "×times ·cdot ⋅cdot ÷div ±pm ∞infty …ldots ≤le ≥ge ≠ne ∪cup ∩cap ∈in ∅emptyset ∨lor αalpha βbeta γgamma δdelta "
    "εepsilon ϵepsilon ζzeta ηeta θtheta ϑtheta κkappa λlambda μmu µmu νnu ξxi πpi ρrho σsigma τtau φphi ϕphi χchi "
    "ψpsi ωomega ΓGamma ΔDelta ΘTheta ΛLambda ΠPi ΣSigma ΦPhi ΨPsi ΩOmega",
)
_SIGNS = str.maketrans(
    {sign: f"\\{command} " for sign, command in _COMMANDS}
    | {"−": "-", "ℝ": r"\mathbb{R}", "\u00a0": " ", "\u2009": " ", "\u202f": " "}
    | {sign: rf"\frac{{{of[0]}}}{{{of[1]}}}" for sign, of in zip("½⅓⅔¼¾", ("12", "13", "23", "14", "34"), strict=True)}
)
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄₅₆₇₈₉", "0123456789-0123456789")
_SCRIPTS = re.compile(r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)|[₀₁₂₃₄₅₆₇₈₉]+")
_ROOTS = (
    (re.compile(r"√\s*(?:\{([^{}]*)\}|\(([^()]*)\)|([0-9.]*[0-9]|[A-Za-zπ]))"), r"\\sqrt{\1\2\3}"),
    (re.compile(r"∛\s*(?:\{([^{}]*)\}|\(([^()]*)\)|([0-9.]*[0-9]|[A-Za-zπ]))"), r"\\sqrt[3]{\1\2\3}"),
)
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
    (re.compile(r"(\\sqrt\s*\[[^\[\]]*\])\s*([0-9A-Za-z])"), r"\1{\2}"),
    (re.compile(r"\\[dtc]?frac\s+([A-Za-z0-9])\s*([A-Za-z0-9])"), r"\\frac{\1}{\2}"),
    (re.compile(r"(?<=[0-9])\.(?=\s*+[-+*/^)}])"), ""),
    (re.compile(r"(?<=\s)!=(?=\s)"), r"\\ne"),
    (re.compile(r"(?<!\\)~"), " "),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (
        re.compile(
            r"(?<=[,+])\s*+(?:\\(?:[lc]?dots|dots[cbmio])(?![A-Za-z])|\.{3})(?=\s*+(?:[,+)]|\\[})]|\\right|\Z))"
        ),
        r"\\variable{dots}",
    ),
    (re.compile(r"(?<![0-9.,}])([0-9]+)\{,\}([0-9]{1,2}|[0-9]{4,})(?![0-9{.,])"), r"\1.\2"),
)
"""The last one reads ``1{,}75`` as 1.75; a comma before three digits stands between thousands."""
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
    """Without the marks that do not change its meaning; a too long answer is unchanged."""
    if len(answer) > MAX_ANSWER_CHARS:
        return answer
    text = _BOLD.sub(r"\1", _text_before_marks((answer if answer.isascii() else _latex_text(answer)).strip()))
    text = _DOLLARS.sub(r"\2", _text_before_marks(text))
    text = _START.sub("", _text_before_marks(text.strip()))
    for pattern, replacement in _IN_BETWEEN:
        text = pattern.sub(replacement, text)
    text = _THOUSANDS.sub(lambda number: _SPACE_BETWEEN_THOUSANDS.sub("", number[0]), text).strip()
    if (mixed := _MIXED_NUMBER.fullmatch(text)) is not None and int(mixed[2]) < int(mixed[3]):
        return rf"{mixed[1]}\frac{{{mixed[2]}}}{{{mixed[3]}}}"
    return _usual_brackets(text.replace(" ", "") if _SPACED_NUMBER.fullmatch(text) else text)


def _latex_text(text: str) -> str:
    for pattern, root in _ROOTS:
        text = pattern.sub(root, text)
    text = _SCRIPTS.sub(lambda run: f"{'^' if run[1] else '_'}{{{run[0].translate(_DIGITS)}}}", text)
    return text.translate(_SIGNS)


def _usual_brackets(text: str) -> str:
    """Replaces angles, and brackets that open outwards, around all of it."""
    if (vector := _ANGLES.fullmatch(text)) is not None:
        return f"({vector[1]})"
    interval = _OUTWARD.fullmatch(text)
    if interval is None or (interval[1], interval[3]) == ("[", "]"):
        return text
    return f"{'[' if interval[1] == '[' else '('}{interval[2]}{']' if interval[3] == ']' else ')'}"


def _text_before_marks(text: str) -> str:
    """The point of ``\\right.`` is an invisible bracket and stays."""
    while text.endswith(_MARKS_AT_END + _COMMANDS_AT_END) and not text.endswith((r"\right.", r"\left.")):
        text = text[: -2 if text.endswith(_COMMANDS_AT_END) else -1]
    return text
