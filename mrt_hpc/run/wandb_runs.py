"""Finds offline W&B directories not yet uploaded, and the command for it, from files alone."""

from dataclasses import dataclass
from pathlib import Path

from mrt_hpc.errors import word
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory

OFFLINE = "offline-run-*"
"""W&B keeps a link to the newest beside them."""


@dataclass(frozen=True)
class Upload:
    directories: int
    """Not yet uploaded."""
    command: str
    """Uploads all in order; W&B skips uploaded ones."""

    def __str__(self) -> str:
        what = "directory is" if self.directories == 1 else "directories are"
        when = "When no job of this run is running, type on the login node:"
        return f"{self.directories} offline W&B {what} not uploaded. {when}"


def waiting_directories(layout: RunLayout) -> list[Path]:
    """Not yet uploaded, oldest first."""
    runs = [path for path in list_directory(layout.offline_runs, OFFLINE) if path.is_dir()]
    # `wandb sync` puts this marker beside what it has uploaded
    return [r for r in runs if any(not p.with_suffix(".wandb.synced").exists() for p in list_directory(r, "*.wandb"))]


def upload(layout: RunLayout) -> Upload | None:
    """None if nothing is tracked or left."""
    if not (waiting := waiting_directories(layout)):
        return None
    return Upload(len(waiting), f"wandb sync {word(layout.offline_runs.absolute())}/{OFFLINE}")
