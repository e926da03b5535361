"""Moves files to set_aside/ that are damaged, or newer than the checkpoint that the trainer resumed from, so that they
never mix with the run's results.
"""

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from mrt_hpc.run.archive import iterations_begun
from mrt_hpc.run.atomic import is_temporary, make_folder, moved, sync_directory, write_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.retries import list_directory, retrying


def younger_than(layout: RunLayout, iteration: int) -> list[Path]:
    """Checkpoints, weights versions, metrics and skipped steps younger than the state after ``iteration`` updates.

    Rollouts stay, because they are complete and training uses them again.
    """
    checkpoints = [p for p in list_directory(layout.checkpoints) if (layout.step_of(p) or 0) > iteration]
    versions = [p for p in list_directory(layout.weights) if (layout.version_of(p) or 0) > iteration]
    metrics = [p for n in iterations_begun(layout) if n >= iteration and (p := layout.metrics(n)).exists()]
    skipped = [p for p in list_directory(layout.skipped_steps, "*.json") if int(p.name.partition("-")[0]) >= iteration]
    return [*checkpoints, *versions, *metrics, *skipped]


def evaluated_with_others(layout: RunLayout, version: int, digest: str) -> list[Path]:
    """Return the evaluations of an earlier copy of a weights version: shards that other weights sampled, and the
    summary beside them. A version that is computed again is the same to the bit on few machines only.

    Args:
        layout: the run directory.
        version: its number.
        digest: its current digest.
    """
    stale: list[Path] = []
    for benchmark in list_directory(layout.evaluations(version)):
        shards = [path for path in list_directory(benchmark) if path.is_dir() and not is_temporary(path)]
        others = [path for path in shards if _sampled_by(path) not in (digest, None)]
        summary = layout.evaluation_summary(version, benchmark.name)
        stale += [*others, *([summary] if others and summary.exists() else [])]
    return stale


def _sampled_by(shard: Path) -> str | None:
    """The digest of the weights that sampled a shard; None if the shard does not name it, as for a damaged one."""
    try:
        return str(retrying(lambda: read_manifest(shard), f"reading {shard}").about["weights"])
    except (DamagedError, KeyError):
        return None


def set_aside(layout: RunLayout, paths: Sequence[Path], reason: str) -> list[Path]:
    """Move files and directories of a run away, the reason beside them.

    A file that another task has moved in the meantime is skipped.

    Returns:
        Their new paths.
    """
    if not paths:
        return []
    target = layout.set_aside / uuid.uuid4().hex[:12]
    make_folder(target)
    write_text(target / "REASON", reason + "\n")
    names = {path: "-".join(path.relative_to(layout.root).parts) for path in paths}
    places = [to for path, name in names.items() if (to := moved(path, target / name)) is not None]
    if not places:
        shutil.rmtree(target)
    for parent in {path.parent for path in paths}:
        sync_directory(parent)
    return places
