"""A verifier that holds a run at a point until a test lets it go on: ``slurm_verifier:HeldVerifier``."""

import os
from pathlib import Path
from typing import Literal

from mrt_hpc.domains.base import Judgement, Verifier
from mrt_hpc.domains.extraction import THOUGHT_END
from mrt_hpc.run.retries import wait_until

HELD_FROM, HELD_UNTIL = "JUDGEMENTS_HELD_FROM", "JUDGEMENTS_HELD_UNTIL"
"""Variables with paths: as soon as the first exists, answers wait for their judgement; with the second, none does."""
HELD_S = 600.0  # how long an answer waits at most


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
        """Whether both are the same text, when the test allows it."""

        def may_judge() -> bool:
            return not Path(os.environ[HELD_FROM]).exists() or Path(os.environ[HELD_UNTIL]).exists()

        wait_until(may_judge, reason="the test's permission to judge", deadline_s=HELD_S)
        return Judgement(correct=answer.strip() == gold.strip(), readable=True)
