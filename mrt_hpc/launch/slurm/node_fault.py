"""Tries the node of an attempt that has failed: where the node is at fault, the next attempts leave it out.

The trial is made where the job script runs: of a task of several nodes it sees the first one only.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.launch.gpus import look, verdict

if TYPE_CHECKING:
    from mrt_hpc.plan.jobs import JobResources

TRIAL_BYTES = 2**20
"""What a task writes at the least into the folder for temporary files."""


def node_fault(resources: JobResources) -> str:
    """Why no task with these resources can work on this node; empty text where nothing speaks against the node."""
    return _scratch_fault(Path(os.environ.get("TMPDIR") or "/tmp")) or _gpu_fault(resources)


def _scratch_fault(temporary: Path) -> str:
    try:
        with TemporaryDirectory(prefix=".mrt-hpc-trial-", dir=temporary, ignore_cleanup_errors=True) as folder:
            Path(folder, "trial").write_bytes(bytes(TRIAL_BYTES))
    except OSError as error:
        return f"{temporary} takes no file there ({error.strerror or error})"
    return ""


def _gpu_fault(resources: JobResources) -> str:
    """What a driver says that is there and fails; where GPUs were not given out, another node would not help."""
    if not resources.gpus_per_rank:
        return ""
    try:
        found = verdict(look(), resources)
    except UserError as error:
        found = error
    return found.what if found is not None and found.exit_code == ExitCode.RETRYABLE else ""
