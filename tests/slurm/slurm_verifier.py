"""Verifiers for a cluster's nodes: ``slurm_verifier:same_text_slowly`` notes where it works, and
``slurm_verifier:same_text_held`` holds a run at a point until a test lets it go on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from mrt_hpc.run.waiting import wait_until

FOLDER = "JUDGED_ON"
"""The variable with the folder where each node on which an answer was judged leaves a file of its name."""
SECONDS = 0.1
"""For one answer, so that several are judged at a time, and a run is long enough to be disturbed."""

HELD_FROM = "JUDGEMENTS_HELD_FROM"
"""The variable with a path; as soon as it exists, answers wait for their judgement."""
HELD_UNTIL = "JUDGEMENTS_HELD_UNTIL"
"""The variable with a path; as soon as it exists, all answers are judged at once."""
HELD_S = 300.0
"""How long an answer waits at most."""


def same_text_slowly(answer: str, gold: str) -> bool:
    """Whether both are the same text; it runs in a grader process."""
    time.sleep(SECONDS)
    (Path(os.environ[FOLDER]) / os.environ["SLURMD_NODENAME"]).touch()
    return answer.strip() == gold.strip()


def same_text_held(answer: str, gold: str) -> bool:
    """Whether both are the same text; the run that asks cannot end before the test has made `HELD_UNTIL`."""
    if Path(os.environ[HELD_FROM]).exists():
        wait_until(Path(os.environ[HELD_UNTIL]).exists, reason="the test's permission to judge", deadline_s=HELD_S)
    return answer.strip() == gold.strip()
