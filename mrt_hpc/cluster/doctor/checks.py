"""What a check says: a verdict, what was seen, and the remedy."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError

if TYPE_CHECKING:
    from mrt_hpc.cluster.doctor.situation import Situation

ADMINISTRATORS = "ask the administrators of the cluster"
"""The remedy where the cluster itself has to be changed."""


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
    check: str
    """Its subject, as ``gpu``; in a diagnosis behind the check's name, as ``partition gpu``."""
    verdict: CheckVerdict
    evidence: str
    """What was seen, with its command or file."""
    remedy: str = ""
    """What to type, or whom to ask."""


@dataclass(frozen=True)
class DoctorCheck:
    name: str
    look: "Callable[[Situation], Iterable[CheckResult]]"
    """Gives no result where the check does not apply."""

    def results(self, situation: "Situation") -> list[CheckResult]:
        """An error that a submission would show is a result too."""
        try:
            results = list(self.look(situation))
        except UserError as error:
            results = [fails(error.evidence, error.advice or "correct this, and type the same command again")]
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            results = [fails(f"{error.strerror or error}{place}", "correct this, and type the same command again")]
        return [replace(result, check=f"{self.name} {result.check}".strip()) for result in results]


def ok(evidence: str, *, about: str = "") -> CheckResult:
    return CheckResult(about, CheckVerdict.OK, evidence)


def doubtful(evidence: str, remedy: str, *, about: str = "") -> CheckResult:
    """A run can start and may have trouble later."""
    return CheckResult(about, CheckVerdict.DOUBTFUL, evidence, remedy)


def fails(evidence: str, remedy: str, *, about: str = "") -> CheckResult:
    """A run cannot start, or cannot finish."""
    return CheckResult(about, CheckVerdict.FAILS, evidence, remedy)


def not_checked(reason: str, remedy: str = "", *, about: str = "") -> CheckResult:
    """Why a check was left out."""
    return CheckResult(about, CheckVerdict.NOT_CHECKED, reason, remedy)


def or_null(value: object) -> object:
    """A value as the site profile writes it."""
    return "null" if value is None else value
