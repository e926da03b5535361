"""What Slurm's accounting knows of the attempts of jobs: when each held resources, and how many."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mrt_hpc.launch.backend import QueuedAttempt
from mrt_hpc.launch.slurm.answers import JOB_ID, TASK_ID, count_of, matching_lines
from mrt_hpc.launch.slurm.commands import SlurmRefusedError, ask_slurm
from mrt_hpc.launch.slurm.queue import NO_ACCOUNTING, queue_state

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELDS = ("JobID", "State", "Submit", "Eligible", "Start", "ElapsedRaw", "AllocCPUS", "AllocTRES")
"""sacct prints times as seconds since the epoch (see ``commands``), or as a word where there is none."""
_LINE = re.compile(rf"({TASK_ID.pattern})\|([A-Z_]+[^|]*)" + r"\|([^|]*)" * (len(FIELDS) - 2))


def accounted_attempts(job_ids: Iterable[str]) -> list[QueuedAttempt] | None:
    """Every attempt of every task of these jobs that held resources, also those before a requeue.

    Args:
        job_ids: ids as sbatch printed them.

    Returns:
        The attempts in the order of sacct; None on a cluster without accounting.

    Raises:
        UserError: sacct is missing, did not answer, or refused.
    """
    wanted = [job for job in dict.fromkeys(job_ids) if JOB_ID.fullmatch(job)]
    if not wanted:
        return []
    command = ["sacct", "--duplicates", "--allocations", "--noheader", "--parsable2"]
    try:
        printed = ask_slurm([*command, f"--jobs={','.join(wanted)}", f"--format={','.join(FIELDS)}"])
    except SlurmRefusedError as refusal:
        if NO_ACCOUNTING in refusal.reason:
            return None
        raise
    return attempts_of(printed)


def attempts_of(printed: str) -> list[QueuedAttempt]:
    """The attempts of sacct's lines."""
    found = (_attempt(*line.groups()) for line in matching_lines(printed, _LINE, "sacct"))
    return [attempt for attempt in found if attempt is not None]


def _attempt(
    task_id: str, word: str, submit: str, eligible: str, start: str, elapsed: str, cpus: str, resources: str
) -> QueuedAttempt | None:
    """The attempt of one line; None for a task that held nothing."""
    if not start.isdecimal() or not int(elapsed or 0):
        return None
    ready = max((int(time) for time in (submit, eligible) if time.isdecimal()), default=int(start))
    return QueuedAttempt(
        task_id=task_id,
        state=queue_state(word),
        began=float(start),
        seconds=float(elapsed),
        gpus=_gpus(resources),
        cpus=int(cpus) if cpus.isdecimal() and int(cpus) else None,
        queued_s=max(0.0, float(int(start) - ready)),
    )


def _gpus(resources: str) -> int | None:
    """The GPUs of ``billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1``. Where only kinds of GPUs are tracked,
    their sum.
    """
    pairs = [item.partition("=") for item in resources.split(",")]
    counts = {name: count for name, _, number in pairs if (count := count_of(number)) is not None}
    if "gres/gpu" in counts:
        return counts["gres/gpu"]
    kinds = [number for name, number in counts.items() if name.startswith("gres/gpu:")]
    return sum(kinds) if kinds else None
