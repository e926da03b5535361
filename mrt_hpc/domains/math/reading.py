r"""The parts of an answer that are compared: the letter of a choice, names with their values, a time of day.
math-verify drops the names and takes ``10:30`` for a ratio. Every function takes linear time.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mrt_hpc.domains.math.names import is_name, named_value, outer_parts, sides_of

# -- choices -----------------------------------------------------------------------------------------------------------
# The letter of a choice in front of its value, as in ``\textbf{(B)}\ 12``: the usual form of answers of the AMC.


_SPACE = r"(?:\\[ ,;:!]|\\q?quad(?![A-Za-z])|~|\s)*"
_FONT = r"\\(?:text[a-z]*|math(?:rm|bf|sf|it)|mbox|boldsymbol|bm)\s*"
_MARKED = r"(?:\(\s*([A-J])\s*\)|([A-J])\s*[).:])"
_CHOICE = re.compile(
    rf"{_FONT}\{{\s*{_MARKED}[.:]?\s*\}}[.:]?{_SPACE}(?P<behind>[^\s,;=+*/^_)].*)"
    rf"|{_FONT}\{{\s*{_MARKED}\s*(?P<within>[^{{}}]*[^{{}}\s])\s*\}}"
    r"|(?:\(([A-J])\)|([A-J])[).:])(?:\\[ ,;:!]|\\q?quad(?![A-Za-z])|~|\s)+(?P<plain>[-0-9A-Za-z\\$.].*)",
    re.DOTALL,
)
_LONE = re.compile(rf"(?:{_FONT})?\{{?\s*(?:{_MARKED}|([A-J]))\s*\}}?")
_OTHER_CHOICE = re.compile(r"\([A-J]\)|(?<![A-Za-z])[A-J][).:]")


def compared_parts(answer: str, gold: str) -> tuple[str, str]:
    """Of a choice its letter or its value, whichever both name. Where both name both the values are compared, or the
    letters where those differ.
    """
    given, expected = _choice(answer), _choice(gold)
    if expected is not None:
        letter = _lone_letter(answer)
        if given is not None:
            return (given[1], expected[1]) if given[0] == expected[0] else (given[0], expected[0])
        if _lone_letter(expected[1]):
            return answer, gold  # a letter alone may be that of the choice or the value
        return (letter, expected[0]) if letter else (answer, expected[1])
    if given is not None:
        letter = _lone_letter(gold)
        return (given[0], letter) if letter else (given[1], gold)
    return answer, gold


def _choice(text: str) -> tuple[str, str] | None:
    match = _CHOICE.fullmatch(text.strip())
    if match is None:
        return None
    value = match["behind"] or match["plain"] or (match["within"] and rf"\text{{{match['within']}}}")
    letter = next(part for part in match.groups() if part is not None and len(part) == 1)
    return None if _OTHER_CHOICE.search(value) else (letter, value)


def _lone_letter(text: str) -> str:
    match = _LONE.fullmatch(text.strip())
    return "" if match is None else match[match.lastindex or 0]


_SPACED = re.compile(
    _FONT + r"\{[^{}]*\}|\\(?:left|right)\s*\S|\\[A-Za-z]+|\\.|(?P<sign>(?<![\^eE])[-+=])|(?P<comma>,(?![0-9\\}]))"
)


def other_spellings(gold: str) -> list[str]:
    """Ordinary spellings, which must be right: of a choice its letter and its value alone, of all else spaces around
    its signs.
    """
    return list(choice) if (choice := _choice(gold)) is not None else [_SPACED.sub(_spaced_sign, gold)]


def _spaced_sign(match: re.Match[str]) -> str:
    return f" {match[0]} " if match["sign"] else f"{match[0]} " if match["comma"] else match[0]


# -- names -------------------------------------------------------------------------------------------------------------
# Several names with their values, as in ``x = 3, y = 4`` and ``(x, y) = (3, 4)``.


_BRACKETED = re.compile(r"(?:\\left\s*)?(?:\(|\\\{|\[)(.*?)(?:\\right\s*)?(?:\)|\\\}|\])", re.DOTALL)
_NAME_FONT = re.compile(rf"{_FONT}|[\s{{}}]|\\[ ,;:!]|\\(?:angle|triangle|left|right)(?![A-Za-z])")
_LETTER_NAME = re.compile(r"([A-Z])(?:_.+)?|([a-z])(?:_.+)?")


def paired_values(answer: str, gold: str) -> list[tuple[str, str]] | None:
    """Pairs of equal names; of a side without names in their usual order. None where neither side has several names,
    empty where the two do not fit.
    """
    given, expected = _named_values(answer), _named_values(gold)
    if given is None and expected is None:
        return None
    if given is not None and expected is not None:
        return [(given[name], expected[name]) for name in expected] if given.keys() == expected.keys() else []
    named, other = (given, gold) if given is not None else (expected, answer)
    values = _list_items(other)
    if named is None or len(values) != len(named):
        return None if expected is None and len(values) < 2 else []
    ordered = [named[name] for name in _usual_order(list(named))]
    return list(zip(ordered, values, strict=True) if expected is None else zip(values, named.values(), strict=True))


def _named_values(text: str) -> dict[str, str] | None:
    """Two names or more; None for all else."""
    sides = sides_of(text)
    if len(sides) == 2 and len(names := _list_items(sides[0])) > 1 and all(map(is_name, names)):
        values = _list_items(sides[1])
        named = list(zip(names, values, strict=True)) if len(names) == len(values) else []
    else:
        pairs = [named_value(part) for part in _list_items(text)]
        named = [pair for pair in pairs if pair is not None]
        if len(named) < len(pairs):
            return None
    found = {_NAME_FONT.sub("", name): value for name, value in named}
    return found if len(found) == len(named) > 1 else None


def _list_items(text: str) -> list[str]:
    """Without the brackets around it."""
    bracketed = _BRACKETED.fullmatch(text.strip())
    inner = outer_parts(bracketed[1]) if bracketed else []
    return inner if len(inner) > 1 else outer_parts(text)


def _usual_order(names: Sequence[str]) -> Sequence[str]:
    """Letters of one case by the alphabet; other names as they stand."""
    letters = [_LETTER_NAME.fullmatch(name) for name in names]
    for group in (1, 2):
        if all(match is not None and match[group] for match in letters):
            return sorted(names)
    return names


# -- times -------------------------------------------------------------------------------------------------------------
# A time of day or a duration in hours and minutes, as in ``10:30`` and ``3:45 \text{ p.m.}``.


_CLOCK = re.compile(r"([0-9]{1,2}):([0-5][0-9])(?::([0-5][0-9]))?(?:([ap])\.?m\.?)?", re.IGNORECASE)
_AROUND_CLOCK = re.compile(rf"{_FONT}|[{{}}\s~]|\\[ ,;:!]")


@dataclass(frozen=True)
class TimeOfDay:
    """With two digits of minutes."""

    hours: int
    minutes: int
    seconds: int
    half: str
    """``a`` or ``p``, empty where none is named."""

    @classmethod
    def of(cls, text: str) -> "TimeOfDay | None":
        """With or without a name; None for all else."""
        match = _CLOCK.fullmatch(_AROUND_CLOCK.sub("", sides_of(text)[-1])) if ":" in text else None
        if match is None or int(match[1]) > 24:
            return None
        return cls(int(match[1]), int(match[2]), int(match[3] or 0), (match[4] or "").lower())

    @property
    def may_be_ratio(self) -> bool:
        """In lowest terms."""
        return not self.half and not self.seconds and math.gcd(self.hours, self.minutes) == 1

    def agrees(self, other: "TimeOfDay") -> bool:
        """The half of the day counts where both name one."""
        if self.half and other.half and self.half != other.half:
            return False
        hours = {self.hours, other.hours}
        late = "p" in (self.half, other.half) and hours in ({h, h + 12} for h in range(1, 12))
        return (len(hours) == 1 or late) and (self.minutes, self.seconds) == (other.minutes, other.seconds)


def same_time(answer: str, gold: str) -> bool | None:
    """None where the gold answer is no time, or may be a ratio."""
    given, expected = TimeOfDay.of(answer), TimeOfDay.of(gold)
    if expected is None:
        return None
    if given is None:
        return None if expected.may_be_ratio else False
    return given.agrees(expected)
