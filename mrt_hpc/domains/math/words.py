r"""Answers that are words, or end with words: names, days, letters of choices, things that are counted. math-verify
reads words as products of symbols.

A word has four letters or more, at most the first of them a capital and at least one a vowel, and they are no
neighbours in the alphabet: ``apples``, not ``mgh`` or ``abcd``. In brackets behind a number three letters are enough,
or a unit: ``9 (men)``, ``9 (cm)``. Every function takes linear time.
"""

import re
import string

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf)\s*\{([A-Za-z0-9,.:'\- ]+)\}")
_WORDS = re.compile(r"[A-Za-z0-9,.:'\- ]+")
_ARTICLE = re.compile(r"\A(?:an?|the)\s+(?=[a-z]{2})")

_WORD = re.compile(r"[A-Za-z][a-z]{3,}")
_RUN = re.compile(r"(?<![A-Za-z\\])[A-Za-z]+")
_SKIPPED = re.compile(
    r"\\(?:text[a-z]*|mbox|hbox|mathrm|mathbf|mathit|operatorname|variable|begin|end)\s*\{[^{}]*\}|_\{[^{}]*\}"
)
_ALPHABET = string.ascii_lowercase
_LETTERS = string.ascii_letters
_VOWELS = frozenset("aeiouy")
_SHORT_UNITS = frozenset(
    ["cm", "mm", "km", "kg", "mg", "lb", "lbs", "ft", "yd", "hr", "hrs", "oz", "mi", "min", "sec", "mph", "kmh", "hz"]
)
_OF_WORDS = " .'-"
MATHEMATICS = frozenset({
    "arccos", "arccot", "arcsin", "arctan", "cosec", "cosh", "coth", "sinh", "tanh", "sqrt", "frac",
    "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "lg", "exp", "max", "min", "gcd", "lcm", "mod",
    "pi", "inf", "infinity", "infty",
    "theta", "alpha", "beta", "gamma", "delta", "lambda", "sigma", "omega", "percent", "percentage",
})  # fmt: skip
"""Functions and signs without a backslash, which are no words."""
STATEMENTS = frozenset(
    {"is", "are", "was", "be", "isn't", "not", "no", "wrong", "false", "incorrect", "true"}
    | {"or", "either", "and", "but", "if", "to", "than", "maybe", "perhaps"}
)
"""Words that make a statement about a number in place of naming the thing counted."""


def is_word(run: str) -> bool:
    """No product of variables and no function."""
    lower = run.lower()
    return (
        _WORD.fullmatch(run) is not None
        and not _VOWELS.isdisjoint(lower)
        and "".join(sorted(lower)) not in _ALPHABET
        and lower not in MATHEMATICS
    )


def has_words(text: str) -> bool:
    """Outside of commands; math-verify reads them as products of letters."""
    return any(is_word(run[0]) for run in _RUN.finditer(_SKIPPED.sub("", text)))


def words_as_text(text: str) -> str:
    r"""The words at the end in ``\text{}``, where nothing or a number stands before them, without brackets around
    them.
    """
    head = text.rstrip()
    bracketed = head.endswith(")")
    head = (head[:-1] if bracketed else head).rstrip(_LETTERS + _OF_WORDS)
    words = text[len(head) :].strip().removesuffix(")" if bracketed else "").strip(" ")
    runs = words.replace("-", " ").split()
    if bracketed:
        if not head.endswith("("):
            return text
        head = head[:-1].rstrip()
    if not _may_precede(head, bracketed) or not _are_words(runs, bracketed):
        return text
    return rf"{head}\text{{ {words}}}" if head else rf"\text{{{words}}}"


def _may_precede(head: str, bracketed: bool) -> bool:
    """Nothing, or the end of a number."""
    return head.endswith((*"0123456789%", "}", "\\,", "\\ ")) or (not head and not bracketed)


def _are_words(runs: list[str], bracketed: bool) -> bool:
    plain = [run.lower().strip(".'") for run in runs]
    if not STATEMENTS.isdisjoint(plain) or not MATHEMATICS.isdisjoint(plain):
        return False
    return any(is_word(run.strip(".'")) or (bracketed and _counts_in_brackets(run.lower())) for run in runs)


def _counts_in_brackets(run: str) -> bool:
    """Small letters behind a number: a unit or a short word, and no product."""
    neighbours = "".join(sorted(run)) in _ALPHABET
    return run in _SHORT_UNITS or (len(run) > 2 and not neighbours and not _VOWELS.isdisjoint(run))


def same_words(answer: str, gold: str) -> bool:
    """Case, blank space and a leading article do not count; the gold answer is in a text command."""
    expected = _TEXT.fullmatch(gold)
    given = expected and _WORDS.fullmatch(_TEXT.sub(r"\1", answer))
    return expected is not None and given is not None and _plain(given[0]) == _plain(expected[1])


def _plain(words: str) -> str:
    text = _ARTICLE.sub("", words.casefold().strip())
    return ",".join(" ".join(item.split()) for item in text.split(","))
