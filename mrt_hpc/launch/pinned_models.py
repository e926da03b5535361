"""Keeps the weights versions that an evaluation on its own wants of other runs: their training removes most versions,
perhaps days before the evaluation starts.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from mrt_hpc.errors import UserError
from mrt_hpc.launch.evaluated_models import not_published, publishing_jobs
from mrt_hpc.plan.kept_weights import stays
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.pins import of_runs, pin, release
from mrt_hpc.run.weights import published_versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.recipe.evaluation_recipe import EvaluationRecipe

CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The errors of a directory that this user may not write to."""


def refuse_lost_models(recipe: EvaluationRecipe, root: Path) -> None:
    """Refuse an evaluation whose models are not there when it starts, before anything is made. What its directory holds
    already it needs no more.

    Args:
        recipe: of the evaluation.
        root: its directory, which may exist already.

    Raises:
        UserError: a weights version is not there and no queued job publishes it; or one is still to be published, will
            be removed, and this user cannot keep its run from that.
    """
    wanted: dict[str, list[int]] = defaultdict(list)
    for run, version in _wanted(recipe, RunLayout(root)):
        wanted[str(run.root)].append(version)
    for path, versions in wanted.items():
        run = RunLayout(Path(path))
        for version, jobs in publishing_jobs(run, versions).items():
            if not jobs:
                raise not_published(run, version)
            if not os.access(run.root, os.W_OK) and _is_at_risk(run, version):
                raise _cannot_be_kept(run, version)


def pin_models(recipe: EvaluationRecipe, layout: RunLayout, warn: Callable[[str], None]) -> None:
    """Pin the weights versions that an evaluation has not taken over yet.

    Args:
        recipe: of the evaluation.
        layout: its directory.
        warn: receives a sentence about each version that cannot be kept and is there now.

    Raises:
        UserError: a version has just been removed, or is still to be published and cannot be kept.
    """
    for run, version in _wanted(recipe, layout):
        is_pinned = _pinned(run, version, layout)
        published = published_versions(run)
        if version not in published and version < max(published, default=0):
            release(recipe, layout)
            raise not_published(run, version)
        if is_pinned or not _is_at_risk(run, version):
            continue
        if version not in published:
            raise _cannot_be_kept(run, version)
        warn(
            f"you cannot write to {run.root}, so its training may remove weights version {version} before this "
            "evaluation has taken it over"
        )


def _wanted(recipe: EvaluationRecipe, layout: RunLayout) -> list[tuple[RunLayout, int]]:
    """The weights versions of runs that the directory of an evaluation does not hold yet."""
    there = published_versions(layout)
    return [(run, version) for number, run, version in of_runs(recipe) if number not in there]


def _pinned(run: RunLayout, version: int, evaluation: RunLayout) -> bool:
    """Whether a version is pinned now; False where this user may not write to the run."""
    try:
        pin(run, version, evaluation)
    except OSError as error:
        if error.errno not in CLOSED:
            raise
        return False
    return True


def _is_at_risk(run: RunLayout, version: int) -> bool:
    """Whether the training may remove a version that is not pinned."""
    return not stays(run, read_recipe_lock(run.recipe_lock, looking=True), version)


def _cannot_be_kept(run: RunLayout, version: int) -> UserError:
    recipe = read_recipe_lock(run.recipe_lock, looking=True)
    kept = sorted(v for v in range(recipe.schedule.iterations + 1) if stays(run, recipe, v))
    return UserError(
        f"weights version {version} would be removed before the evaluation starts: you cannot write to its run, and so "
        "cannot tell the training to keep it",
        value=version,
        where=run.root,
        expected=f"a version that the training keeps anyway: {', '.join(map(str, kept))}",
        advice="ask the owner of the run to type this command, or evaluate one of these versions",
    )
