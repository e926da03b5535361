"""Compares problems by their words: without blank space, LaTeX spacing, case and punctuation."""

from __future__ import annotations

import re
import unicodedata

_SPACING = re.compile(
    r"\\[,;:!> ]|\\(?:quad|qquad|enspace|thinspace|medspace|thickspace|displaystyle|left|right)(?![a-zA-Z])"
    r"|\\[hv]space\*?\{[^{}]*\}|~|\\\\|\$|\\[()\[\]]"
)
"""Commands of LaTeX that only set space or size, line breaks, and marks where mathematics begins and ends."""
_PUNCTUATION = re.compile(r"(?<!\d)\.|\.(?!\d)|[,;:?\"'`´‘’“”„…{}]")
"""Signs of sentences, and braces that only hold a group together. The point of a decimal number stays, and so do the
signs of mathematics.
"""
_DASHES = re.compile(r"[‐‑‒–—−]")
_WORD = re.compile(r"\\[a-z]+|[^\W\d_]+|\d+(?:\.\d+)?|[^\s\w]|_")
"""A command, a word, a number or a sign."""


def words(text: str) -> tuple[str, ...]:
    """The words, numbers, LaTeX commands and mathematical signs of a problem, in order.

    Two problems that differ only in blank space, LaTeX spacing, case and punctuation have the same words.
    """
    plain = unicodedata.normalize("NFKC", text)
    plain = _SPACING.sub(" ", _DASHES.sub("-", plain))
    plain = re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", plain)
    return tuple(_WORD.findall(_PUNCTUATION.sub(" ", plain.casefold())))
