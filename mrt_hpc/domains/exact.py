"""Answers that must be the gold answer's own text."""

from __future__ import annotations

from typing import Literal

from mrt_hpc.domains.base import Judgement, Verifier


class ExactVerifier(Verifier):
    """A final answer in a box that is the gold answer's text, blank space around it left out."""

    type: Literal["exact"] = "exact"
    ignore_case: bool = False
    """Whether capital and small letters are the same."""

    def certain(self, answer: str, gold: str) -> bool:
        """The verdict, always: texts are compared at once."""
        given, expected = answer.strip(), gold.strip()
        return given.casefold() == expected.casefold() if self.ignore_case else given == expected

    def reads(self, gold: str) -> bool:  # noqa: ARG002 - any text will do
        """Always."""
        return True

    def judge(self, answer: str, gold: str) -> Judgement:
        """The same."""
        return Judgement(correct=self.certain(answer, gold), readable=True)
