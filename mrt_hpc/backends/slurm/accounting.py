"""What Slurm's accounting knows of the attempts of jobs: when each held resources, and how many."""

import re
from collections.abc import Iterable
from dataclasses import replace

from mrt_hpc.analysis.spending import Allocation
from mrt_hpc.attempt.ledger import Submission
from mrt_hpc.backends.backend import JobMarks, QueueState
from mrt_hpc.backends.slurm import commands as slurm
from mrt_hpc.backends.slurm import slurm_output
from mrt_hpc.backends.slurm.queue import (
    COUNT_FIELD,
    NAME_FIELD,
    NO_ACCOUNTING,
    TIME_FIELD,
    is_own,
    marks_of,
    queue_state,
)
from mrt_hpc.run.layout import RunLayout

FIELDS = ("JobID", "State", "Submit", "Eligible", "Start", "ElapsedRaw", "AllocCPUS", "AllocTRES", "JobName")
"""Times are seconds since the epoch (see ``commands``), or a word."""
NOT_LOST = frozenset({QueueState.COMPLETED, QueueState.RUNNING})
_LINE = re.compile(
    rf"({slurm_output.TASK_ID.pattern})\|([A-Z_]+[^|]*){TIME_FIELD * 3}{COUNT_FIELD * 2}\|([^|]*){NAME_FIELD}"
)


def accounted_attempts(layout: RunLayout, sent: Iterable[Submission]) -> list[Allocation] | None:
    """All attempts that held resources, those before a requeue too, in sacct's order; None without accounting."""
    wanted = {one.job_id: one for one in sent if slurm_output.JOB_ID.fullmatch(one.job_id)}
    if not wanted:
        return []
    command = ["sacct", "--duplicates", "--allocations", "--noheader", "--parsable2"]
    try:
        printed = slurm.ask_slurm([*command, f"--jobs={','.join(wanted)}", f"--format={','.join(FIELDS)}"])
    except slurm.SlurmRefusedError as refusal:
        if NO_ACCOUNTING in refusal.reason:
            return None
        raise
    return [
        replace(attempt, job=wanted[attempt.job_id].job)
        for attempt, marks in attempts_of(printed)
        if attempt.job_id in wanted and is_own(layout, wanted[attempt.job_id], marks)
    ]


def attempts_of(printed: str) -> list[tuple[Allocation, JobMarks]]:
    lines = (line.groups() for line in slurm_output.matching_lines(printed, _LINE, "sacct"))
    attempts = ((_attempt(*fields), marks_of(name, "", fields[2])) for *fields, name in lines)
    return [(attempt, marks) for attempt, marks in attempts if attempt is not None]


def _attempt(
    task_id: str, word: str, submit: str, eligible: str, start: str, elapsed: str, cpus: str, resources: str
) -> Allocation | None:
    """None for a task that held nothing."""
    if not start.isdecimal() or not int(elapsed or 0):
        return None
    ready = max((int(time) for time in (submit, eligible) if time.isdecimal()), default=int(start))
    return Allocation(
        task_id=task_id,
        began=float(start),
        seconds=float(elapsed),
        gpus=_gpus(resources),
        cpus=int(cpus or 0) or None,
        queued_s=max(0.0, float(int(start) - ready)),
        failed=queue_state(word) not in NOT_LOST,
    )


def _gpus(resources: str) -> int | None:
    """The GPUs of ``billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1``; the sum where only kinds of GPUs are
    tracked.
    """
    pairs = [item.partition("=") for item in resources.split(",")]
    counts = {name: count for name, _, number in pairs if (count := slurm_output.count_of(number)) is not None}
    if "gres/gpu" in counts:
        return counts["gres/gpu"]
    kinds = [number for name, number in counts.items() if name.startswith("gres/gpu:")]
    return sum(kinds) if kinds else None
