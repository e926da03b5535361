"""Moves damaged files, and those newer than the checkpoint resumed from, to set_aside/, so that they never mix with
results.
"""

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from mrt_hpc.run.archive import iterations_begun
from mrt_hpc.run.atomic import is_temporary, make_folder, move_path, sync_directory, write_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.retries import list_directory, retry_action


def younger_than(layout: RunLayout, iteration: int) -> list[Path]:
    """Checkpoints, weights, metrics and skipped steps after ``iteration`` updates.

    Rollouts stay: they are complete, and training uses them again.
    """
    checkpoints = [p for p in list_directory(layout.checkpoints) if (layout.step_of(p) or 0) > iteration]
    versions = [p for p in list_directory(layout.weights) if (layout.version_of(p) or 0) > iteration]
    metrics = [p for n in iterations_begun(layout) if n >= iteration and (p := layout.metrics(n)).exists()]
    skipped = [p for p in list_directory(layout.skipped_steps, "*.json") if int(p.name.partition("-")[0]) >= iteration]
    return [*checkpoints, *versions, *metrics, *skipped]


def foreign_evaluations(layout: RunLayout, version: int, digest: str) -> list[Path]:
    """Evaluations (shards and summary) by weights of another ``digest`` than the version's current one. A recomputed
    version is rarely the same to the bit.
    """
    stale: list[Path] = []
    for benchmark in list_directory(layout.evaluations(version)):
        shards = [path for path in list_directory(benchmark) if path.is_dir() and not is_temporary(path)]
        others = [path for path in shards if _weights_of_shard(path) not in (digest, None)]
        summary = layout.evaluation_summary(version, benchmark.name)
        stale += [*others, *([summary] if others and summary.exists() else [])]
    return stale


def _weights_of_shard(shard: Path) -> str | None:
    """None where the shard, perhaps damaged, does not say."""
    try:
        return str(retry_action(lambda: read_manifest(shard), f"reading {shard}").about["weights"])
    except (DamagedError, KeyError):
        return None


def set_aside(layout: RunLayout, paths: Sequence[Path], reason: str) -> list[Path]:
    """Move files and directories away with a reason; returns their new paths.

    Files that another task has moved are skipped.
    """
    if not paths:
        return []
    target = layout.set_aside / uuid.uuid4().hex[:12]
    make_folder(target)
    write_text(target / "REASON", reason + "\n")
    names = {path: "-".join(path.relative_to(layout.root).parts) for path in paths}
    places = [to for path, name in names.items() if (to := move_path(path, target / name)) is not None]
    if not places:
        shutil.rmtree(target)
    for parent in {path.parent for path in paths}:
        sync_directory(parent)
    return places
