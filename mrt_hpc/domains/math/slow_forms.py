"""Decides from its text whether an answer may take long to grade, so that the others need not wait for it.

Only the queue depends on it, never a verdict: an answer named here in error is graded by another process, with the full
time limit.
"""

from __future__ import annotations

import re

LARGEST_DEPTH = 40
"""Brackets inside brackets: the parser's time grows faster than the depth."""
LONG_CHARS = 250
"""The longest gold answer of the benchmarks has 159 characters."""

_SLOW = re.compile(
    r"(?:[)}\]!]|[0-9]{5})\s*!"  # the factorial of more than four digits, or of an expression
    r"|\\[dt]?binom\s*\{[^{}]{5}"
    r"|\\(?:sum|prod|i*int|oint|lim)(?![A-Za-z])"  # evaluated term by term, or for ever
    r"|\^\s*\{?\s*-?[0-9]{5}"  # a power with an exponent of more than four digits
    r"|\^\s*(?:\{[^{}]*|[0-9]*)\^"  # a power in an exponent
)
_BRACKETS = re.compile(r"[({\[]|[)}\]]")


def may_take_long(answer: str) -> bool:
    """Whether ``answer`` has a form whose evaluation is not bounded by its length. Linear in its length."""
    return len(answer) > LONG_CHARS or _SLOW.search(answer) is not None or _depth(answer) > LARGEST_DEPTH


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket[0] in "({[" else -1
        deepest = max(deepest, depth)
    return deepest
