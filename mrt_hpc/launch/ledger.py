"""The ledger: which job of the plan was submitted under which Slurm id, and which process runs it on this machine.

One file an entry, so that a submission cut short between two sbatch calls has recorded all that came before.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrt_hpc.errors import UserError
from mrt_hpc.run.atomic import creating, write_json
from mrt_hpc.run.heartbeats import NO_BEAT, Heart, read_beat
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mrt_hpc.plan.jobs import Job
    from mrt_hpc.run.layout import RunLayout


@dataclass(frozen=True)
class Submission:
    """One sbatch call."""

    job: str
    slurm_id: str
    time: float
    site: str
    """Name of the site profile."""
    tasks: tuple[int, ...] | None = None
    """Indices of the tasks that it runs; None for all tasks of the job."""


@dataclass(frozen=True)
class LocalProcess:
    """The process that runs the plan on its own machine."""

    pid: int
    started: str
    """Start time by the kernel, which tells it from a later process of the same number."""
    host: str

    @property
    def name(self) -> str:
        """Unlike that of any other process, on any host, at any time."""
        return f"{self.host}:{self.pid}:{self.started}"

    @property
    def is_here(self) -> bool:
        """Whether it lives on this machine."""
        return self.host == socket.gethostname() and _kernel_start(self.pid) == self.started


def record_submission(
    layout: RunLayout, job: str, slurm_id: str, site: str, tasks: Sequence[int] | None = None
) -> None:
    """Add one sbatch call to the ledger; ``tasks`` are the indices that it runs where these are not all of the job."""
    some = {} if tasks is None else {"tasks": list(tasks)}  # a task that is at work may read with an earlier version
    entry = {"job": job, "slurm_id": slurm_id, "time": time.time(), "site": site, **some}
    write_json(layout.jobs / f"slurm-{slurm_id}-{job}.json", entry)


def submissions(layout: RunLayout) -> list[Submission]:
    """All sbatch calls of the run, the oldest first."""
    paths = list_directory(layout.jobs, "slurm-*.json")
    return sorted((_submission(json.loads(p.read_text())) for p in paths), key=lambda s: s.time)


def _submission(entry: dict[str, Any]) -> Submission:
    tasks = entry.pop("tasks", None)
    return Submission(**entry, tasks=None if tasks is None else tuple(tasks))


def latest_ids(layout: RunLayout) -> dict[str, str]:
    """For each job of the plan the Slurm id of its latest submission."""
    return {s.job: s.slurm_id for s in submissions(layout)}


def current_submissions(layout: RunLayout) -> dict[str, list[Submission]]:
    """For each job of the plan the latest submission of all its tasks, and later ones that sent some of them again."""
    found: dict[str, list[Submission]] = {}
    for one in submissions(layout):
        found[one.job] = [one] if one.tasks is None else [*found.get(one.job, ()), one]
    return found


def current_ids(layout: RunLayout) -> list[str]:
    """The Slurm ids under which any task of the run may be queued or at work."""
    return sorted({one.slurm_id for parts in current_submissions(layout).values() for one in parts})


def slurm_names(job: Job, parts: Sequence[Submission]) -> list[str]:
    """Slurm's name of each task of a job, by its index: ``1234``, or ``1234_5`` for a task of an array.

    Args:
        job: of the plan.
        parts: its current submissions, the oldest first; there is one at least.
    """
    if job.tasks == 1:
        return [parts[-1].slurm_id]
    latest = {index: one.slurm_id for one in parts for index in (range(job.tasks) if one.tasks is None else one.tasks)}
    return [f"{latest.get(index, parts[0].slurm_id)}_{index}" for index in range(job.tasks)]


@contextmanager
def claimed(layout: RunLayout, heartbeat_limit_s: float) -> Iterator[None]:
    """Hold the run for this process, for the length of the block; its heart tells other hosts that it lives.

    A claim is a file created exclusively, one a generation, so of two who claim at once one is refused.

    Raises:
        UserError: another live process holds the run.
    """
    generation, other = _newest_claim(layout)
    if other is not None and _lives(layout, other, heartbeat_limit_s):
        raise _in_use(layout, other)
    mine = LocalProcess(os.getpid(), _kernel_start(os.getpid()), socket.gethostname())
    with creating(layout.jobs / f"local-{generation + 1:05d}.json") as claim:
        claim.temporary.write_text(json.dumps(asdict(mine)))
    if not claim.won:
        raise _in_use(layout, _newest_claim(layout)[1] or mine)
    with Heart(_heart(layout), mine.name, heartbeat_limit_s):
        yield


def local_process(layout: RunLayout) -> LocalProcess | None:
    """The live process that runs the plan on this machine; None when there is none."""
    _, entry = _newest_claim(layout)
    return entry if entry is not None and entry.is_here and entry.pid != os.getpid() else None


def process_elsewhere(layout: RunLayout) -> LocalProcess | None:
    """The process of another machine that ran the plan last; from here nobody can tell whether it lives."""
    _, entry = _newest_claim(layout)
    return entry if entry is not None and entry.host != socket.gethostname() else None


def _newest_claim(layout: RunLayout) -> tuple[int, LocalProcess | None]:
    paths = list_directory(layout.jobs, "local-*.json")
    if not paths:
        return 0, None
    return int(paths[-1].stem.removeprefix("local-")), LocalProcess(**json.loads(paths[-1].read_text()))


def _lives(layout: RunLayout, process: LocalProcess, heartbeat_limit_s: float) -> bool:
    """On this machine the kernel knows; one elsewhere is given the time of a heartbeat."""
    if process.host == socket.gethostname():
        return process.is_here
    first = read_beat(_heart(layout))
    end = time.monotonic() + heartbeat_limit_s
    while first.attempt == process.name and time.monotonic() < end:
        if read_beat(_heart(layout)) not in (first, NO_BEAT):
            return True
        time.sleep(min(1.0, heartbeat_limit_s / 10))
    return False


def _heart(layout: RunLayout) -> Path:
    return layout.heart("local", 0)


def _in_use(layout: RunLayout, other: LocalProcess) -> UserError:
    return UserError(
        f"this run is already running in process {other.pid} on {other.host}",
        where=layout.root,
        advice=f"mrt-hpc status {layout.root}, or mrt-hpc cancel {layout.root}",
    )


def _kernel_start(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty when there is no such process, or only its corpse."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
