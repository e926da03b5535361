"""What a check says: a verdict, what was seen, and the remedy."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from mrt_hpc.cluster.doctor.situation import Situation

ADMINISTRATORS = "ask the administrators of the cluster"
"""What a check advises where the cluster itself has to be changed."""


class CheckVerdict(StrEnum):
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
class CheckResult:
    """The result of one check about one thing."""

    check: str
    """What it is about, as in ``gpu``; of a diagnosis with the name of the check before it, as in ``partition gpu``."""
    verdict: CheckVerdict
    evidence: str
    """What was seen, with the command or the file that it is from."""
    remedy: str = ""
    """What to type, or whom to ask; empty text where nothing needs to be done."""


@dataclass(frozen=True)
class DoctorCheck:
    """One check."""

    name: str
    look: "Callable[[Situation], Iterable[CheckResult]]"
    """Gives no result where the check does not apply."""

    def results(self, situation: "Situation") -> list[CheckResult]:
        """The results of this check; an error that a submission would show is a result too."""
        try:
            results = list(self.look(situation))
        except UserError as error:
            results = [fails(error.evidence, error.advice or "correct this, and type the same command again")]
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            results = [fails(f"{error.strerror or error}{place}", "correct this, and type the same command again")]
        return [replace(result, check=f"{self.name} {result.check}".strip()) for result in results]


def ok(evidence: str, *, about: str = "") -> CheckResult:
    """A result with which a run can start."""
    return CheckResult(about, CheckVerdict.OK, evidence)


def doubtful(evidence: str, remedy: str, *, about: str = "") -> CheckResult:
    """A result with which a run can start and may have trouble later."""
    return CheckResult(about, CheckVerdict.DOUBTFUL, evidence, remedy)


def fails(evidence: str, remedy: str, *, about: str = "") -> CheckResult:
    """A result with which a run cannot start, or cannot finish."""
    return CheckResult(about, CheckVerdict.FAILS, evidence, remedy)


def not_checked(reason: str, remedy: str = "", *, about: str = "") -> CheckResult:
    """The reason why a check was left out."""
    return CheckResult(about, CheckVerdict.NOT_CHECKED, reason, remedy)


def or_null(value: object) -> object:
    """A value of the site profile as it is written there."""
    return "null" if value is None else value
