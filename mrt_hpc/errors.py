"""The error that users read, and the exit codes of commands and tasks."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum
from pathlib import Path


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
    ) -> None:
        self.what, self.value, self.where = what, value, where
        self.expected, self.advice, self.exit_code = expected, advice, exit_code
        super().__init__(self.message())

    def message(self) -> str:
        """Return the whole error, one fact per line."""
        lines = [self.what]
        if self.where is not None:
            lines.append(f"  where:    {self.where}")
        if self.value is not None:
            lines.append(f"  value:    {self.value!r}")
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.advice is not None:
            lines.append(f"  next:     {self.advice}")
        return "\n".join(lines)

    @property
    def evidence(self) -> str:
        """What the error says, on one line, without its advice."""
        said = [self.what]
        if self.value is not None:
            said.append(f"found {self.value}")
        if self.where is not None:
            said.append(f"in {self.where}")
        if self.expected is not None:
            said.append(f"expected {self.expected}")
        return "; ".join(said)

    def in_other_words(self, what: str, *, where: object = None, advice: str | None = None) -> UserError:
        """The same error in other words, with its value, what would have been right, and its exit code."""
        where, advice = self.where if where is None else where, self.advice if advice is None else advice
        return UserError(
            what, value=self.value, where=where, expected=self.expected, advice=advice, exit_code=self.exit_code
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs to rebuild the error, keyword arguments included, for process pools."""
        return _rebuild, (self.what, self.value, self.where, self.expected, self.advice, int(self.exit_code))


def _rebuild(what: str, value: object, where: object, expected: str | None, advice: str | None, code: int) -> UserError:
    return UserError(what, value=value, where=where, expected=expected, advice=advice, exit_code=ExitCode(code))


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to ``name``, or None when none is similar."""
    matches = get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return matches[0] if matches else None
