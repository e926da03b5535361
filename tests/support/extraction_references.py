"""Usual rules of extraction, each in a few lines and named by what it does; that of math-verify is its own."""

import re
from collections.abc import Callable

from math_verify import parse

THOUGHT_END = "</think>"


def math_verify(text: str) -> str | None:
    """The text that math-verify takes for the answer, with its defaults: the last of what it returns."""
    found = parse(text, parsing_timeout=None)
    return str(found[-1]) if found else None


def last_box_counting_every_brace(text: str) -> str | None:
    r"""From the last ``\boxed{`` or ``\fbox{`` anywhere to the brace that balances it, escaped braces counted too."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    depth = 0
    for place in range(max(start, 0), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if start >= 0 and text[place] == "}" and depth == 0:
            return text[text.index("{", start) + 1 : place]
    return None


def last_box_without_braces_in_it(text: str) -> str | None:
    r"""The last ``\boxed{...}`` anywhere whose content has no braces, as one regular expression finds it."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return found[-1] if found else None


def box_after_the_last_thought_end(text: str) -> str | None:
    """The last box behind the last end of a thought; none where the thought has no end."""
    _, ended, rest = text.rpartition(THOUGHT_END)
    return last_box_counting_every_brace(rest) if ended else None


def last_number(text: str) -> str | None:
    """The last number anywhere, without thousands separators."""
    found = re.findall(r"-?[0-9]+(?:\.[0-9]+)?", text.replace(",", ""))
    return found[-1] if found else None


REFERENCES: dict[str, Callable[[str], str | None]] = {
    rule.__name__: rule
    for rule in (math_verify, last_box_counting_every_brace, last_box_without_braces_in_it,
                 box_after_the_last_thought_end, last_number)
}  # fmt: skip
