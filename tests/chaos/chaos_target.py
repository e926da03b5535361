"""A running run, as faults see it: which processes are its trainer, its inference tasks, its servers.

Every process of a run is found by its command line, which names the run directory, or as a child of such a one; nothing
else is ever signalled. It is the same on this machine alone and on the one-host cluster.
"""

from dataclasses import dataclass
from pathlib import Path

import psutil
from slurm_cluster import Cluster

from mrt_hpc.run.layout import RunLayout

STARTED_BY = ("mrt_hpc.attempt.entry", "submitit.core._submit")
"""What a task's process runs: on this machine alone, on Slurm."""

RAY = ("raylet", "gcs_server", "ray::")  # how the names of Ray's processes begin


@dataclass(frozen=True)
class Target:
    layout: RunLayout
    leader: int | None  # process id of ``mrt-hpc submit``, which leads the run's process group; None on Slurm
    cluster: Cluster | None  # where it runs on Slurm
    small_disk: Path | None  # the small filesystem that the run is on; None when it is on a large one

    def tasks(self, *roles: str) -> list[psutil.Process]:
        """The processes of some roles, every rank one."""
        return [p for p in psutil.process_iter() if self._is_task(_words(p), roles)]

    def servers(self) -> list[psutil.Process]:
        return [
            child
            for task in self.tasks("inference", "evaluation")
            for child in children(task)
            if "mrt_hpc.inference.server_main" in _words(child)
        ]

    def engines(self) -> list[psutil.Process]:
        return [child for server in self.servers() for child in children(server)]

    def ray_processes(self) -> list[psutil.Process]:
        """What the Ray nodes of tasks of several nodes have started."""
        below = [child for task in self.tasks("inference") for child in children(task)]
        return [child for child in below if name_of(child).startswith(RAY)]

    def _is_task(self, words: list[str], roles: tuple[str, ...]) -> bool:
        python = bool(words) and Path(words[0]).name.startswith("python")
        mine = any(word.startswith(str(self.layout.root)) for word in words)
        of_role = any(word == role or word.endswith((f".{role}", f"/{role}")) for word in words for role in roles)
        if "trainer" in roles and "inference" not in words:  # the one that samples for a colocated task names its role
            of_role |= any(word.endswith((".colocated", "/colocated")) for word in words)
        return python and mine and of_role and any(module in words for module in STARTED_BY)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def name_of(process: psutil.Process) -> str:
    """Empty for one that has ended."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
