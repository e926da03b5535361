"""A verifier of a user's own that asks a service of one's own, such as one that runs programs against tests.

docs/extending.md explains it; tests/unit/test_service_verifier.py runs it.
"""

import json
from http.client import HTTPException
from typing import Annotated
from urllib.request import ProxyHandler, Request, build_opener

from pydantic import Field

from mrt_hpc import ExitCode, Judgement, UserError, Verifier

VERDICTS = {b"right": True, b"wrong": False}
"""What the service replies; anything else proves nothing."""


class Service(Verifier):
    """The last box, which a service takes for right or wrong: it is sent the answer and the gold answer as JSON."""

    type: str
    address: Annotated[str, Field(pattern="^https?://")]
    """Where the service listens, such as http://judge.example.org:8000."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    """Seconds that the service may take."""

    @property
    def longest_wall_s(self) -> float:
        """Longer than the time limit of a question, because an answer whose process is ended counts as wrong."""
        return 3 * self.timeout_s

    def judge(self, answer: str, gold: str) -> Judgement:
        """The verdict of the service.

        Raises:
            UserError: the service does not reply in time, or its reply is no verdict.
        """
        question = Request(self.address, json.dumps({"answer": answer, "gold": gold}).encode())
        try:
            with build_opener(ProxyHandler({})).open(question, timeout=self.timeout_s) as reply:
                said = reply.read(100).strip()
        except (OSError, HTTPException, ValueError) as error:
            raise self._error(str(error)) from error
        if said not in VERDICTS:
            raise self._error(said.decode(errors="replace"))
        return Judgement(correct=VERDICTS[said], readable=True)

    def refusal(self) -> UserError | None:
        """The error of a question, where the service cannot be asked from this machine."""
        try:
            self.judge("", "")
        except UserError as error:
            return error
        return None

    def _error(self, said: str) -> UserError:
        return UserError(
            "the service that judges answers gave no verdict",
            value=said,
            where=self.address,
            expected="the reply right or wrong",
            advice="start the service, see that this machine reaches it, and type the same command again",
            exit_code=ExitCode.RETRYABLE,  # the service may be there again
        )
