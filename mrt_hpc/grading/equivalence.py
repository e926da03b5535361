"""Decides whether an answer equals the gold answer, by math-verify.

Owns the verdict on one pair. Leaves out time and memory limits: sympy may take forever on a hostile answer, so anything
a model wrote goes through ``pool``. math-verify's own time-out is switched off: it works by SIGALRM, in the main thread
only, and turns a hang into a silent False.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from math_verify import LatexExtractionConfig, parse, verify

from mrt_hpc.grading.answers import braces_balance
from mrt_hpc.grading.cleanup import MAX_ANSWER_CHARS, clean

_BOXED_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)
"""Only LaTeX, only the box: math-verify's plain search would find a 7 in ``\\frac{1}{ = 7``."""

_PLAIN_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_STRIPPED_BY_MATH_VERIFY = ("\\text", "\\mbox", "\\math")
"""Commands whose content math-verify may take for a unit and drop, so that nothing is left to compare."""

for _module in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_module).setLevel(logging.ERROR)  # they warn that their time-out is off, which is meant


@dataclass(frozen=True)
class Judgement:
    """What math-verify makes of one answer."""

    correct: bool
    readable: bool
    """False where the answer is no expression that math-verify can read."""


def is_correct(answer: str, gold: str) -> bool:
    """Whether ``answer`` equals ``gold``. May take forever on a hostile answer: see ``pool.GraderPool``."""
    certain = certain_verdict(answer, gold)
    return judge(answer, gold).correct if certain is None else certain


def certain_verdict(answer: str, gold: str) -> bool | None:
    """math-verify's verdict where it is known without asking, None elsewhere.

    Two plain integers are equal as numbers or not at all. Identical text is equal, since math-verify compares the text
    too, as long as its clean-up leaves something of it: a digit outside of what it may take for a unit stays.
    """
    answer, gold = clean(answer), clean(gold)
    if _PLAIN_INTEGER.fullmatch(answer) and _PLAIN_INTEGER.fullmatch(gold):
        return int(answer) == int(gold)
    if answer == gold and _keeps_its_text(gold):
        return True
    return None


def _keeps_its_text(gold: str) -> bool:
    return (
        any(character in "0123456789" for character in gold)
        and not any(command in gold for command in _STRIPPED_BY_MATH_VERIFY)
        and len(gold) <= MAX_ANSWER_CHARS
        and braces_balance(gold)
    )


def judge(answer: str, gold: str) -> Judgement:
    """math-verify's judgement of ``answer``; a hostile one may hang, raise anything or exhaust the memory."""
    answer, gold = clean(answer), clean(gold)
    if len(answer) > MAX_ANSWER_CHARS or not braces_balance(answer):
        return Judgement(correct=False, readable=False)
    parsed = _parse(answer)
    return Judgement(
        correct=bool(verify(_parse(gold), parsed, timeout_seconds=None)),
        readable=any(not isinstance(expression, str) for expression in parsed),
    )


def _parse(answer: str) -> list[object]:
    """The expression and the cleaned-up text of ``answer``; only the text where it is no expression."""
    boxed = f"\\boxed{{{answer}}}"
    return list(parse(boxed, extraction_config=_BOXED_LATEX, parsing_timeout=None))
