r"""Compares answers that are words: names, days, letters of choices. math-verify reads them as products of symbols, and
takes a list of letters in ``\text{}`` for something else than the same list without it.
"""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf)\s*\{([A-Za-z0-9,.:'\- ]+)\}")
_WORDS = re.compile(r"[A-Za-z0-9,.:'\- ]+")
_ARTICLE = re.compile(r"\A(?:an?|the)\s+(?=[a-z]{2})")


def same_words(answer: str, gold: str) -> bool:
    """Whether a gold answer in a text command and an answer are the same words; case, blank space and a leading article
    do not count.
    """
    expected = _TEXT.fullmatch(gold)
    given = expected and _WORDS.fullmatch(_TEXT.sub(r"\1", answer))
    return expected is not None and given is not None and _plain(given[0]) == _plain(expected[1])


def _plain(words: str) -> str:
    text = _ARTICLE.sub("", words.casefold().strip())
    return ",".join(" ".join(item.split()) for item in text.split(","))
