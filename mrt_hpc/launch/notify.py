"""Tells the user how a run has ended, by the command of the site profile. The report is the last job of a run, and
starts also where others have failed, so its task tells.
"""

from __future__ import annotations

import logging
import os
import subprocess
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.ledger import recorded_site, submissions
from mrt_hpc.run.task_state import TaskState, read_task

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

log = logging.getLogger(__name__)

FINISHED, FAILED = "finished", "failed"
OUTCOMES = {TaskState.DONE: FINISHED, TaskState.FAILED: FAILED}
"""By the state of the report's task. In any other state the task comes back, and tells then."""
LONGEST_S = 60.0
"""After this many seconds the command is ended."""


def tell_end(layout: RunLayout, job: str, index: int) -> None:
    """Run the command of the site profile with the run directory and ``finished`` or ``failed``, if the report's task
    has ended for good. A command that fails is a warning in the log: the run has ended all the same.

    Args:
        layout: the run directory.
        job: the name of the report's job.
        index: of its task.
    """
    outcome = OUTCOMES.get(read_task(layout, job, index).state)
    sent = submissions(layout)
    if outcome is None or not sent:
        return
    try:
        command = recorded_site(layout, sent[-1].site).notify
        if command:
            told = {"MRT_HPC_RUN": str(layout.root), "MRT_HPC_OUTCOME": outcome}
            words = [*command, str(layout.root), outcome]
            subprocess.run(words, check=True, timeout=LONGEST_S, stdin=subprocess.DEVNULL, env={**os.environ, **told})
    except (UserError, OSError, subprocess.SubprocessError) as error:
        log.warning("the command notify of the site profile failed: %s", error)
