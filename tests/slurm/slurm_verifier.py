"""Verifiers that hold a run at a point until a test lets it go on: ``slurm_verifier:HeldVerifier``, for any model, and
``slurm_verifier:same_text_noted``, which notes where it works, for models that give answers.
"""

import os
from pathlib import Path
from typing import Literal

from mrt_hpc.domains.base import Judgement, Verifier
from mrt_hpc.domains.extraction import THOUGHT_END
from mrt_hpc.run.retries import wait_until

FOLDER = "JUDGED_ON"
"""The variable with the folder where each node on which an answer is judged leaves a file of its name."""
HELD_FROM, HELD_UNTIL = "JUDGEMENTS_HELD_FROM", "JUDGEMENTS_HELD_UNTIL"
"""Variables with paths: as soon as the first exists, answers wait for their judgement; with the second, none does."""
HELD_S = 600.0  # how long an answer waits at most


def _judge(answer: str, gold: str, noted: Path | None = None) -> bool:
    """Whether both are the same text, when the test allows it; while an answer waits, its node notes that it works."""

    def may_judge() -> bool:
        if noted is not None:
            noted.touch()
        return not Path(os.environ[HELD_FROM]).exists() or Path(os.environ[HELD_UNTIL]).exists()

    wait_until(may_judge, reason="the test's permission to judge", deadline_s=HELD_S)
    return answer.strip() == gold.strip()


def same_text_noted(answer: str, gold: str) -> bool:
    return _judge(answer, gold, Path(os.environ[FOLDER]) / os.environ["SLURMD_NODENAME"])


class HeldVerifier(Verifier):
    """Compares texts. Every text has an answer, so that it also holds a run whose model has learnt nothing and gives
    none: the run cannot end before the test has made `HELD_UNTIL`.
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
        return Judgement(correct=_judge(answer, gold), readable=True)
