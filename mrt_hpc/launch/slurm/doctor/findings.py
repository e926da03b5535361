"""What a check says: a verdict, what was seen, and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mrt_hpc.launch.slurm.doctor.situation import Situation

ADMINISTRATORS = "ask the administrators of the cluster"
"""What a check advises where the cluster itself has to be changed."""


class Verdict(StrEnum):
    """What a check concludes."""

    OK = "ok"
    """A run can rely on it."""
    DOUBTFUL = "doubtful"
    """A run can start; something may go wrong or take longer later."""
    FAILS = "fails"
    """A run cannot start, or cannot finish."""
    NOT_CHECKED = "not checked"
    """The check needs something that is not here; the evidence says what."""


@dataclass(frozen=True)
class Finding:
    """The result of one check about one thing."""

    check: str
    """The name of the check, with what it is about, as in ``partition gpu``."""
    verdict: Verdict
    evidence: str
    """What was seen, with the command or the file that it is from."""
    remedy: str = ""
    """What to type, or whom to ask; empty text where nothing needs to be done."""


@dataclass(frozen=True)
class Result:
    """A finding without the name of its check; ``about`` is added to that name."""

    verdict: Verdict
    evidence: str
    remedy: str = ""
    about: str = ""


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    look: Callable[[Situation], Iterable[Result]]
    """Gives no result where the check does not apply."""

    def findings(self, situation: Situation) -> list[Finding]:
        """The findings of this check; an error that a submission would show is a finding too."""
        try:
            results = list(self.look(situation))
        except UserError as error:
            results = [fails(error.evidence, error.advice or "correct this, and type the same command again")]
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            results = [fails(f"{error.strerror or error}{place}", "correct this, and type the same command again")]
        return [Finding(f"{self.name} {r.about}".strip(), r.verdict, r.evidence, r.remedy) for r in results]


def ok(evidence: str, *, about: str = "") -> Result:
    """A result with which a run can start."""
    return Result(Verdict.OK, evidence, about=about)


def doubtful(evidence: str, remedy: str, *, about: str = "") -> Result:
    """A result with which a run can start and may have trouble later."""
    return Result(Verdict.DOUBTFUL, evidence, remedy, about)


def fails(evidence: str, remedy: str, *, about: str = "") -> Result:
    """A result with which a run cannot start, or cannot finish."""
    return Result(Verdict.FAILS, evidence, remedy, about)


def not_checked(reason: str, remedy: str = "", *, about: str = "") -> Result:
    """The reason why a check was left out."""
    return Result(Verdict.NOT_CHECKED, reason, remedy, about)


def or_null(value: object) -> object:
    """A value of the site profile as it is written there."""
    return "null" if value is None else value
