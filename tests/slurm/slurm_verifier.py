"""Verifiers that hold a run at a point until a test lets it go on: ``slurm_verifier:same_text_held``; the same with a
note of where it works, ``slurm_verifier:same_text_noted``; and ``slurm_verifier:HeldVerifier``, for any model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from mrt_hpc.domains.base import Judgement, Verifier
from mrt_hpc.domains.boxed import THOUGHT_END
from mrt_hpc.run.waiting import wait_until

FOLDER = "JUDGED_ON"
"""The variable with the folder where each node on which an answer is judged leaves a file of its name."""

HELD_FROM = "JUDGEMENTS_HELD_FROM"
"""The variable with a path; as soon as it exists, answers wait for their judgement."""
HELD_UNTIL = "JUDGEMENTS_HELD_UNTIL"
"""The variable with a path; as soon as it exists, all answers are judged at once."""
HELD_S = 600.0
"""How long an answer waits at most."""


def same_text_held(answer: str, gold: str) -> bool:
    """Whether both are the same text; the run that asks cannot end before the test has made `HELD_UNTIL`."""
    if Path(os.environ[HELD_FROM]).exists():
        wait_until(Path(os.environ[HELD_UNTIL]).exists, reason="the test's permission to judge", deadline_s=HELD_S)
    return answer.strip() == gold.strip()


def same_text_noted(answer: str, gold: str) -> bool:
    """The same; while an answer waits, its node notes at each look that it works."""

    def may_judge() -> bool:
        (Path(os.environ[FOLDER]) / os.environ["SLURMD_NODENAME"]).touch()
        return not Path(os.environ[HELD_FROM]).exists() or Path(os.environ[HELD_UNTIL]).exists()

    wait_until(may_judge, reason="the test's permission to judge", deadline_s=HELD_S)
    return answer.strip() == gold.strip()


class HeldVerifier(Verifier):
    """The same as `same_text_held`. Every text has an answer, so that it also holds a run whose model has learnt
    nothing and gives none.
    """

    type: Literal["slurm_verifier:HeldVerifier"]

    def extract(
        self, text: str, *, thinking: bool = False, thought_end: str = THOUGHT_END, cut: bool = False
    ) -> str | None:
        """What is in the box, or the text itself as Python writes it, which is never empty."""
        return super().extract(text, thinking=thinking, thought_end=thought_end, cut=cut) or repr(text)

    def reads(self, gold: str) -> bool:  # noqa: ARG002 - it reads anything
        """Always: no gold answer has to wait before anything is sampled."""
        return True

    def judge(self, answer: str, gold: str) -> Judgement:
        """Whether both are the same text, when the test allows it."""
        return Judgement(correct=same_text_held(answer, gold), readable=True)
