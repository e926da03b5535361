"""The error that users read, and the exit codes of commands and tasks."""

import shlex
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parent)
"""The folder of the package's own code."""


def word(path: Path) -> str:
    """A path as one word of a command that a user is asked to type, whatever characters it holds."""
    return shlex.quote(str(path))


class ExitCode(IntEnum):
    """How a command or an array task ended, for scripts and for the backend that may start it again."""

    OK = 0
    """The work is done and its results exist."""
    RETRYABLE = 1
    """The work failed in a way that a retry may fix (a lost node, a full disk)."""
    FATAL = 2
    """The work failed in a way that a retry cannot fix (a wrong recipe, a model without a tokenizer)."""
    GIVE_BACK = 75
    """Nothing failed, but the task cannot continue now: it is queued again and releases its nodes until then."""
    INTERRUPTED = 130
    """The user stopped the command; the same command continues where it stopped."""


class UserError(Exception):
    """An error that the user can fix.

    Args:
        what: what went wrong, one sentence without the final stop.
        value: the value that was refused, shown with ``repr``.
        where: file, line or field path.
        expected: what would have been right.
        advice: the next command to type, or the next thing to do.
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
        self.expected, self.advice, self.exit_code, self.others = expected, advice, exit_code, others
        super().__init__(self.message())

    def message(self) -> str:
        """Return the whole error, one fact per line; what else went wrong stands below."""
        value = None if self.value is None else repr(self.value)
        facts = {"where": self.where, "value": value, "expected": self.expected, "next": self.advice}
        lines = [self.what, *(f"  {f'{name}:':<9} {fact}" for name, fact in facts.items() if fact is not None)]
        return "\n".join([*lines, *(f"error: {other.message()}" for other in self.others)])

    @property
    def evidence(self) -> str:
        """What the error says, on one line, without its advice."""
        facts = {"found": self.value, "in": self.where, "expected": self.expected}
        return "; ".join([self.what, *(f"{name} {fact}" for name, fact in facts.items() if fact is not None)])

    def in_other_words(self, what: str, *, where: object = None, advice: str | None = None) -> "UserError":
        """The same error in other words, with its value, what would have been right, and its exit code."""
        given = {name: fact for name, fact in (("where", where), ("advice", advice)) if fact is not None}
        return UserError(what, **{**self._facts(), **given})

    def with_others(self, others: "Iterable[UserError]") -> "UserError":
        """The same error with others that a user has to correct too."""
        return UserError(self.what, **{**self._facts(), "others": (*self.others, *others)})

    def _facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("value", "where", "expected", "advice", "exit_code", "others")}

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs to rebuild the error, keyword arguments included, for process pools."""
        return partial(UserError, self.what, **self._facts()), ()


def in_a_line(error: BaseException) -> str:
    """An error with the place where it was raised, short enough for a line: of code that is the user's own, the line
    there from which the package was called.
    """
    if isinstance(error, UserError):
        return error.evidence
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f for f in reversed(frames) if not f.filename.startswith(PACKAGE)), frames[-1])
    return f"{error!r:.200} ({Path(place.filename).name}:{place.lineno})"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to ``name``, or None when none is similar."""
    matches = get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None
