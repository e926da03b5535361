"""A verifier that takes its time, and notes on which nodes it works: ``slurm_verifier:same_text_slowly``."""

from __future__ import annotations

import os
import time
from pathlib import Path

FOLDER = "JUDGED_ON"
"""The variable with the folder where each node on which an answer was judged leaves a file of its name."""
SECONDS = 0.2
"""For one answer, so that several are judged at a time, and a run is long enough to be disturbed."""


def same_text_slowly(answer: str, gold: str) -> bool:
    """Whether both are the same text; it runs in a grader process."""
    time.sleep(SECONDS)
    (Path(os.environ[FOLDER]) / os.environ["SLURMD_NODENAME"]).touch()
    return answer.strip() == gold.strip()
