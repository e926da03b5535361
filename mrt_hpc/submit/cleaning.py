"""Frees what a run can make again, or needs no longer to keep its results. Results, metrics, records and the newest
weights always stay, and a run of which a task is queued or running is not touched.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mrt_hpc.analysis.measures import is_evaluated
from mrt_hpc.attempt.ledger import claimed
from mrt_hpc.attempt.run_progress import is_done
from mrt_hpc.backends.queued_jobs import refuse_live
from mrt_hpc.plan.jobs import Plan, Role
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.run.atomic import is_temporary, remove_whole
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.weights import pinned_versions, published_versions, with_bases


class Removable(StrEnum):
    """What can be removed."""

    CHECKPOINTS = "checkpoints"
    """All checkpoints but the newest; of a finished run the newest too, where it was asked for by name."""
    WEIGHTS = "weights"
    """Weights versions other than the first and the last, whose evaluations are complete."""
    SET_ASIDE = "set_aside"
    """Damaged files, and results that a resumed trainer made again."""
    PARTS = "parts"
    """Samples of which the shards of an evaluation were made, and what lost attempts left half written."""
    LOGS = "logs"
    """The output of ended attempts and their servers."""


USUAL = (Removable.CHECKPOINTS, Removable.WEIGHTS, Removable.SET_ASIDE, Removable.PARTS)
"""What is removed where nothing was asked for by name."""
NOTHING_REMOVED = "so nothing is removed"
OF_LOGS = frozenset({".log", ".out", ".err"})
"""The endings of log files. Beside them Slurm's job scripts have their place."""


@dataclass(frozen=True)
class Removal:
    """What is removed of one kind."""

    kind: Removable
    paths: Sequence[Path]
    frees: int
    """Bytes. Files that have another link, as those of a forked run do, free nothing."""
    note: str
    """What it means, and what stays."""


def removals(layout: RunLayout, plan: Plan, recipe: Experiment, asked: Collection[Removable] = ()) -> list[Removal]:
    """What can be removed of a run, by kind; kinds of which nothing is there are left out. Nothing is removed here.

    Args:
        layout: the run directory.
        plan: of the run.
        recipe: of the run.
        asked: the kinds that were asked for by name; none for the usual ones.
    """
    finished, units = is_finished(layout, plan), [unit for job in plan.jobs for unit in job.evaluations]
    settings = evaluation_settings(layout, recipe) if units else {}
    lacking = {(u.version, u.benchmark) for u in units if not is_evaluated(layout, u, settings[u.benchmark])}
    evaluated = {(u.version, u.benchmark) for u in units} - lacking
    planned = {
        Removable.CHECKPOINTS: _checkpoints(layout, everything=finished and Removable.CHECKPOINTS in asked),
        Removable.WEIGHTS: _weights(layout, recipe, {version for version, _ in lacking}, finished=finished),
        Removable.SET_ASIDE: (list_directory(layout.set_aside), "only for looking at what had gone wrong"),
        Removable.PARTS: (_parts(layout, evaluated), "their content is in the shards, or was never complete"),
        Removable.LOGS: (_logs(layout), "events and records stay"),
    }
    wanted = [kind for kind in Removable if kind in (asked or USUAL)]
    return [
        Removal(kind, planned[kind][0], frees(planned[kind][0]), planned[kind][1])
        for kind in wanted
        if planned[kind][0]
    ]


def is_finished(layout: RunLayout, plan: Plan) -> bool:
    """Whether all tasks are done, apart from the report, which can be written at any time."""
    return all(is_done(layout, job) for job in plan.jobs if job.role is not Role.REPORT)


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
    kept = with_bases(layout, kept)
    removed = [layout.weights_version(version) for version in versions if version not in kept]
    stay = ", ".join(str(version) for version in versions if version in kept)
    return removed, f"versions {stay} stay; those removed cannot be evaluated again with other settings, or forked"


def _parts(layout: RunLayout, evaluated: set[tuple[int, str]]) -> list[Path]:
    samples = (layout.evaluation_samples(*unit) for unit in sorted(evaluated))
    done = [path for path in samples if path.is_dir()]
    folders = [benchmark for version in list_directory(layout.root / "evals") for benchmark in _folders(version)]
    places = [layout.root, layout.weights, layout.checkpoints, *folders]
    left = [path for place in places for path in list_directory(place) if is_temporary(path)]
    return [*done, *left]


def _folders(path: Path) -> list[Path]:
    return [folder for folder in list_directory(path) if folder.is_dir()] if path.is_dir() else []


def _logs(layout: RunLayout) -> list[Path]:
    return sorted(path for path in layout.logs.rglob("*") if path.suffix in OF_LOGS and path.is_file())


def frees(paths: Sequence[Path]) -> int:
    """The bytes that are free when these files and folders are removed."""
    files = [file for path in paths for file in ([path] if not path.is_dir() else path.rglob("*"))]
    stats = [file.lstat() for file in files if file.is_symlink() or not file.is_dir()]
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)


def remove(
    layout: RunLayout, plan: Plan, recipe: Experiment, shown: Sequence[Removal], asked: Collection[Removable]
) -> int:
    """Remove what was shown, as far as it can still be removed, and return the bytes that were freed.

    Args:
        layout: the run directory.
        plan: of the run.
        recipe: of the run.
        shown: what the user has agreed to.
        asked: as for :func:`removals`.

    Raises:
        UserError: a task of the run is queued or running, or a queue cannot be asked.
    """
    with claimed(layout, recipe.resilience.heartbeat_limit_s):
        refuse_live(layout, NOTHING_REMOVED)
        now = {path for removal in removals(layout, plan, recipe, asked) for path in removal.paths}
        agreed = [path for removal in shown for path in removal.paths if path in now]
        freed = frees(agreed)
        for path in agreed:
            remove_whole(path)
    return freed
