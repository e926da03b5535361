"""The ledger: which job of the plan was submitted under which Slurm id, and which process runs it on this machine.

One file an entry, so that a submission cut short between two sbatch calls has recorded all that came before.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.recipe.errors import UserError
from mrt_hpc.run.atomic import is_temporary, write_json

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout


@dataclass(frozen=True)
class Submission:
    """One sbatch call."""

    job: str
    slurm_id: str
    time: float
    site: str
    """Name of the site profile."""


@dataclass(frozen=True)
class LocalProcess:
    """The process that runs the plan on its own machine."""

    pid: int
    started: str
    """Start time by the kernel, which tells it from a later process of the same number."""
    host: str


def record_submission(layout: RunLayout, job: str, slurm_id: str, site: str) -> None:
    """Add one sbatch call to the ledger."""
    entry = Submission(job, slurm_id, time.time(), site)
    write_json(layout.jobs / f"slurm-{slurm_id}-{job}.json", asdict(entry))


def submissions(layout: RunLayout) -> list[Submission]:
    """All sbatch calls of the run, the oldest first."""
    paths = [p for p in layout.jobs.glob("slurm-*.json") if not is_temporary(p)]
    return sorted((Submission(**json.loads(p.read_text())) for p in paths), key=lambda s: s.time)


def latest_ids(layout: RunLayout) -> dict[str, str]:
    """For each job of the plan the Slurm id of its latest submission."""
    return {s.job: s.slurm_id for s in submissions(layout)}


def claim_local(layout: RunLayout) -> Path:
    """Record this process as the one that runs the plan.

    Raises:
        UserError: another live process does.
    """
    if (other := local_process(layout)) is not None:
        raise UserError(
            f"the run is under way in process {other.pid} on {other.host}",
            where=layout.root,
            advice=f"mrt-hpc status {layout.root}, or mrt-hpc cancel {layout.root}",
        )
    path = layout.jobs / "local.json"
    write_json(path, asdict(LocalProcess(os.getpid(), _kernel_start(os.getpid()), socket.gethostname())))
    return path


def local_process(layout: RunLayout) -> LocalProcess | None:
    """The live process that runs the plan on this machine; None when there is none."""
    path = layout.jobs / "local.json"
    if not path.is_file():
        return None
    entry = LocalProcess(**json.loads(path.read_text()))
    alive = entry.host == socket.gethostname() and _kernel_start(entry.pid) == entry.started
    return entry if alive and entry.pid != os.getpid() else None


def _kernel_start(pid: int) -> str:
    """Field 22 of /proc/PID/stat; empty when there is no such process, or only its corpse."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
