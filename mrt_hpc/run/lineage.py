"""One lineage: what is younger than the checkpoint resumed from is set aside with the reason, never mixed in."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from mrt_hpc.run.atomic import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout


def set_aside_after(layout: RunLayout, iteration: int, reason: str) -> list[Path]:
    """Move away weights versions and metrics younger than the state after ``iteration`` updates.

    Rollouts stay: they are complete, and training replays them.

    Returns:
        Where the moved files are now.
    """
    versions = [p for p in _children(layout.weights) if (layout.version_of(p) or 0) > iteration]
    metrics = [p for n in _numbers(layout) if n >= iteration and (p := layout.metrics(n)).exists()]
    younger = [*versions, *metrics]
    if not younger:
        return []
    target = layout.set_aside / f"after-{iteration:06d}-{uuid.uuid4().hex[:8]}"
    target.mkdir(parents=True)
    write_text(target / "REASON", reason + "\n")
    return [path.rename(target / "-".join(path.relative_to(layout.root).parts)) for path in younger]


def _children(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _numbers(layout: RunLayout) -> list[int]:
    return [int(p.name) for p in _children(layout.root / "iterations") if p.name.isdecimal()]
