"""The error that users read, and the exit codes of commands and tasks."""

import os
import re
import shlex
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, Self

PACKAGE = str(Path(__file__).parent)


# -- texts of any origin: every character can be seen, and none has an effect of its own


CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
UNSEEN = re.compile(
    "[\x80-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that cannot be seen or change the order of others: control characters, and Unicode's default ignorable
ones. The variation selectors U+FE00 to U+FE0F stay, as they give many usual signs their colour.
"""
SURROGATE = re.compile("[\ud800-\udfff]")


def visible(text: str) -> str:
    """Return a text in which control characters have pictures, unseen ones their numbers, and lone surrogates are
    U+FFFD; line breaks and tabs stay.
    """
    text = SURROGATE.sub("\ufffd", text.replace("\r\n", "\n"))
    text = CONTROL.sub(lambda match: "\u2421" if match[0] == "\x7f" else chr(0x2400 + ord(match[0])), text)
    return UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


def line_of(text: object) -> str:
    """A name of others within a sentence: a line break in it must not begin a line of its own."""
    return str(text).replace("\n", "\u240a")


def word(text: object) -> str:
    """A path or a name as one word of a command that a user is asked to type, whatever characters it holds."""
    plain = str(text)
    if plain.isprintable() and visible(plain) == plain:
        return shlex.quote(plain)
    return f"$'{''.join(map(_ansi_quote, plain))}'"


def _ansi_quote(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if character.isprintable() and visible(character) == character:
        return character
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(character))


class Advice(str):
    """What a user is asked to type or to do, with the values of its named parts. Each value is one quoted word of a
    shell; a list is several; advice stays as it is.
    """

    def __new__(cls, template: str, **values: object) -> Self:
        """Fill a template; without values it is the text itself."""
        return super().__new__(
            cls, template.format_map({n: _advice_words(v) for n, v in values.items()}) if values else template
        )


def _advice_words(value: object) -> str:
    if isinstance(value, Advice):
        return value
    return " ".join(map(_advice_words, value)) if isinstance(value, list | tuple) else word(value)


class ExitCode(IntEnum):
    """How a command or an array task ended, for scripts and for the backend that may start it again."""

    OK = 0
    RETRYABLE = 1
    """A retry may help (a lost node, a full disk)."""
    FATAL = 2
    """A retry cannot help (a wrong recipe, a model without a tokenizer)."""
    GIVE_BACK = 75
    """Nothing failed, but the task cannot continue now: it releases its nodes and is queued again."""
    INTERRUPTED = 130
    """The user stopped the command."""
    CLOSED_PIPE = 141
    """The reader of the output has gone, as after ``| head -1``: the status of a program that SIGPIPE has ended."""


class UserError(Exception):
    """An error that the user can fix.

    Args:
        what: what went wrong, one sentence without the final stop.
        value: the value that was refused, shown with ``repr``.
        where: file, line or field path.
        expected: what would have been right.
        advice: the next command to type, or the next thing to do; with a value in it, an :class:`Advice`.
        exit_code: whether running again may help.
        others: what else went wrong, each with its own place and advice.
    """

    def __init__(
        self,
        what: str,
        *,
        value: object = None,
        where: object = None,
        expected: str | None = None,
        advice: str | None = None,
        exit_code: ExitCode = ExitCode.FATAL,
        others: "tuple[UserError, ...]" = (),
    ) -> None:
        self.what, self.value, self.where = what, value, where
        self.advice = None if advice is None else Advice(advice)
        self.expected, self.exit_code, self.others = expected, exit_code, others
        super().__init__(self.message())

    def message(self) -> str:
        """Return the whole error, one fact per line; other errors stand below."""
        value = None if self.value is None else repr(self.value)
        facts = {"where": self.where, "value": value, "expected": self.expected, "next": self.advice}
        lines = [self.what, *(f"  {f'{name}:':<9} {line_of(fact)}" for name, fact in facts.items() if fact is not None)]
        return "\n".join([*lines, *(f"error: {other.message()}" for other in self.others)])

    @property
    def evidence(self) -> str:
        """The error on one line, without its advice."""
        facts = {"found": self.value, "in": self.where, "expected": self.expected}
        return "; ".join([self.what, *(f"{name} {fact}" for name, fact in facts.items() if fact is not None)])

    def reword(self, what: str, *, where: object = None, advice: str | None = None) -> "UserError":
        """The same error in other words, with its value, what would have been right, and its exit code."""
        given = {name: fact for name, fact in (("where", where), ("advice", advice)) if fact is not None}
        return UserError(what, **{**self._facts(), **given})

    def add_others(self, others: "Iterable[UserError]") -> "UserError":
        return UserError(self.what, **{**self._facts(), "others": (*self.others, *others)})

    def _facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("value", "where", "expected", "advice", "exit_code", "others")}

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs to rebuild the error, keyword arguments included, for process pools."""
        return partial(UserError, self.what, **self._facts()), ()


retryable_error = partial(UserError, exit_code=ExitCode.RETRYABLE)
"""Of something that may be otherwise when it is tried again."""


def error_line(error: BaseException) -> str:
    """An error in a line, with the place where it was raised. In the user's own code that is the line from which the
    package was called.
    """
    if isinstance(error, UserError):
        return error.evidence
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f for f in reversed(frames) if not f.filename.startswith(PACKAGE)), frames[-1])
    return f"{error!r:.200} ({Path(place.filename).name}:{place.lineno})"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to ``name``, if one is similar."""
    matches = get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None
