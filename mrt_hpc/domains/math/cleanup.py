"""Removes from an answer the marks of its sentence or layout, before it is compared. These marks change no value, but
math-verify misreads them: the full stop behind a formula, the bold type around it, a thin space between thousands.
Leaves out what the answer means (``equivalence``).
"""

from __future__ import annotations

import re

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
