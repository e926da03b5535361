"""Finds the offline W&B directories of a run that have not been uploaded, and the command that uploads them, from files
alone.
"""

from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.errors import word
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory

OFFLINE = "offline-run-*"
"""Names of the directories; beside them W&B keeps a link to the newest."""


@dataclass(frozen=True)
class Upload:
    """The directories that have not been uploaded to W&B yet."""

    directories: int
    """The number of directories that are not uploaded."""
    command: str
    """Uploads all of them, in the order in which they were begun; W&B skips those that are uploaded already."""

    def __str__(self) -> str:
        what = "directory is" if self.directories == 1 else "directories are"
        when = "When no job of this run is running, type on the login node:"
        return f"{self.directories} offline W&B {what} not uploaded. {when}"


def waiting_directories(layout: RunLayout) -> list[Path]:
    """The directories that are not uploaded, in the order in which they were begun."""
    runs = [path for path in list_directory(layout.offline_runs, OFFLINE) if path.is_dir()]
    # `wandb sync` puts this marker beside what it has uploaded
    return [r for r in runs if any(not p.with_suffix(".wandb.synced").exists() for p in list_directory(r, "*.wandb"))]


def upload(layout: RunLayout) -> Upload | None:
    """What is not uploaded; None if the run tracks nothing or all is uploaded."""
    waiting = waiting_directories(layout)
    if not waiting:
        return None
    return Upload(len(waiting), f"wandb sync {word(layout.offline_runs.absolute())}/{OFFLINE}")
