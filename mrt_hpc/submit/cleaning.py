"""Frees what a run can make again or does not need. Results, metrics, records and the newest weights stay, and a run
with a queued or running task is not touched.
"""

import errno
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mrt_hpc.analysis.measures import is_evaluated
from mrt_hpc.attempt.ledger import claim_run
from mrt_hpc.attempt.run_progress import is_done
from mrt_hpc.backends.queued_jobs import refuse_live
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.recipe.ownership import descriptor_path, folder_below
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.run.atomic import is_temporary, remove_whole
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.pins import pinned_versions
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.weights import published_versions


class Removable(StrEnum):
    CHECKPOINTS = "checkpoints"
    """All but the newest; of a finished run the newest too, if asked for by name."""
    WEIGHTS = "weights"
    """Evaluated versions other than the first and the last."""
    SET_ASIDE = "set_aside"
    """Damaged files, and results that a resumed trainer made again."""
    PARTS = "parts"
    """Samples already in shards, and unfinished work of lost attempts."""
    LOGS = "logs"
    """Output of ended attempts and their servers."""


USUAL = (Removable.CHECKPOINTS, Removable.WEIGHTS, Removable.SET_ASIDE, Removable.PARTS)
"""Removed where no kind was asked for."""
HELD_OPEN = frozenset({errno.ENOTEMPTY, errno.EBUSY})
"""Errors of a folder with a removed file that a local process holds open (``.nfs...``)."""
NOTHING_REMOVED = "so nothing is removed"
OF_LOGS = frozenset({".log", ".out", ".err"})
"""Endings of log files, which lie beside Slurm's job scripts."""


@dataclass(frozen=True)
class Removal:
    kind: Removable
    paths: Sequence[Path]
    frees: int
    """Bytes; files with another link, as in forked runs, free nothing."""
    note: str
    """Its meaning, and what stays."""


def removals(layout: RunLayout, plan: Plan, recipe: Experiment, asked: Collection[Removable] = ()) -> list[Removal]:
    """What can be removed, by kind that exists; removes nothing.

    Args:
        asked: kinds asked for by name; none for the usual ones.
    """
    finished = all(is_done(layout, job) for job in plan.jobs if job.role is not Role.REPORT)  # which can follow later
    units = [unit for job in plan.jobs for unit in job.evaluations]
    settings = evaluation_settings(layout, recipe) if units else {}
    lacking = {(u.version, u.benchmark) for u in units if not is_evaluated(layout, u, settings[u.benchmark])}
    evaluated = {(u.version, u.benchmark) for u in units} - lacking
    logs = sorted(path for path in layout.logs.rglob("*") if path.suffix in OF_LOGS and path.is_file())
    planned = {
        Removable.CHECKPOINTS: _checkpoints(layout, everything=finished and Removable.CHECKPOINTS in asked),
        Removable.WEIGHTS: _weights(layout, recipe, {version for version, _ in lacking}, finished=finished),
        Removable.SET_ASIDE: (list_directory(layout.set_aside), "only for looking at what had gone wrong"),
        Removable.PARTS: (_parts(layout, evaluated), "their content is in the shards, or was never complete"),
        Removable.LOGS: (logs, "events and records stay"),
    }
    wanted = [kind for kind in Removable if kind in (asked or USUAL)]
    found = [(kind, _paths_inside(layout.root, planned[kind][0]), planned[kind][1]) for kind in wanted]
    return [Removal(kind, paths, frees(paths), note) for kind, paths, note in found if paths]


def _paths_inside(root: Path, paths: Sequence[Path]) -> list[Path]:
    """Paths that no link leads to: what lies elsewhere is not the run's own."""
    above = {path.parent for path in paths}
    inside = {folder for folder in above if folder.resolve() == root.resolve() / folder.relative_to(root)}
    return [path for path in paths if path.parent in inside]


def _checkpoints(layout: RunLayout, *, everything: bool) -> tuple[list[Path], str]:
    steps = sorted((step, path) for path in list_directory(layout.checkpoints) if (step := layout.step_of(path)))
    paths = [path for _, path in steps]
    if everything:
        return paths, "the run is finished; without a checkpoint it cannot be extended, only forked"
    return paths[:-1], f"{paths[-1].name}, the newest, stays" if paths else ""


def _weights(layout: RunLayout, recipe: Experiment, to_evaluate: set[int], *, finished: bool) -> tuple[list[Path], str]:
    versions = published_versions(layout)
    kept = {*versions[:1], *versions[-1:], *to_evaluate, *pinned_versions(layout)}
    if isinstance(recipe, Recipe) and not finished:
        kept |= {*versions[-recipe.training.keep_weights :]}
        kept |= {*recipe.algorithm.traces_versions(recipe.schedule.iterations)}
    removed = [layout.weights_version(version) for version in versions if version not in kept]
    stay = ", ".join(str(version) for version in versions if version in kept)
    return removed, f"versions {stay} stay; those removed cannot be evaluated again with other settings, or forked"


def _parts(layout: RunLayout, evaluated: set[tuple[int, str]]) -> list[Path]:
    samples = (layout.evaluation_samples(*unit) for unit in sorted(evaluated))
    done = [path for path in samples if path.is_dir()]
    versions = [path for path in list_directory(layout.root / "evals") if path.is_dir()]
    folders = [path for version in versions for path in list_directory(version) if path.is_dir()]
    places = [layout.root, layout.weights, layout.checkpoints, *folders]
    left = [path for place in places for path in list_directory(place) if is_temporary(path)]
    return [*done, *left]


def frees(paths: Sequence[Path]) -> int:
    """Bytes that removing would free, without links' targets."""
    files = [file for path in paths for file in ([path] if path.is_symlink() or not path.is_dir() else path.rglob("*"))]
    stats = [file.lstat() for file in files if file.is_symlink() or not file.is_dir()]
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)


def remove(
    layout: RunLayout, plan: Plan, recipe: Experiment, shown: Sequence[Removal], asked: Collection[Removable]
) -> tuple[int, list[str]]:
    """Remove what was shown, as far as still possible. A file held open on NFS stays with its folders, and the rest
    goes.

    Args:
        shown: what the user agreed to.
        asked: as for :func:`removals`.

    Returns:
        Bytes freed, and a sentence for each incomplete removal.
    """
    with claim_run(layout, recipe.resilience.heartbeat_limit_s):
        refuse_live(layout, NOTHING_REMOVED)
        now = {path for removal in removals(layout, plan, recipe, asked) for path in removal.paths}
        agreed = [path for removal in shown for path in removal.paths if path in now]
        freed, left = frees(agreed), list[str]()
        for path in agreed:
            with folder_below(layout.root, path.parent) as folder:
                inside = descriptor_path(folder)
                try:
                    remove_whole(inside / path.name)
                except OSError as error:
                    if error.errno not in HELD_OPEN:
                        raise
                    freed -= frees([Path(error.filename)])
                    held = path.parent / Path(error.filename).relative_to(inside)
                    left.append(f"{path}: {error.strerror}: {held}")
    return freed, left
