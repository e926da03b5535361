"""Weights versions: Hugging Face directories that are complete or absent. A version is its number and its digest."""

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mrt_hpc.recipe.kinds import AlgorithmSettings
from mrt_hpc.recipe.model_files import NEEDED
from mrt_hpc.recipe.ownership import descriptor_path, file_of_model, look_at_descriptor
from mrt_hpc.recipe.schema import Recipe
from mrt_hpc.run.access import is_open_to_group
from mrt_hpc.run.atomic import remove_whole
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, DamagedError, commit_whole, read_manifest
from mrt_hpc.run.pins import pinned_versions
from mrt_hpc.run.retries import list_directory


@dataclass(frozen=True)
class Weights:
    """One complete weights version. The digest tells it from one of the same number that was set aside."""

    version: int
    digest: str
    """As published."""
    directory: Path


def publish(layout: RunLayout, version: int, write: Callable[[Path], None], **about: Any) -> bool:
    """Write a weights version with ``write(directory)`` and commit it whole.

    Returns:
        False when the version was there already; the new one is then dropped.
    """
    return commit_whole(layout.weights_version(version), write, version=version, **about)


def published_versions(layout: RunLayout) -> list[int]:
    """Complete weights versions, ascending."""
    versions = map(layout.version_of, list_directory(layout.weights))
    return sorted(v for v in versions if v is not None)


def published_digest(layout: RunLayout, version: int) -> str | None:
    """The published digest of a version; None where it is missing or damaged."""
    try:
        return read_manifest(layout.weights_version(version)).digest
    except DamagedError:
        return None


def take_over(source: Path, directory: Path, *, without: Iterable[str] = ()) -> None:
    """Take over the needed files of a model directory: by hard links where the files are this user's alone and the
    filesystem allows it, else by copies.

    The links are safe: nothing in a run writes to a weights version, and replacing a file elsewhere leaves the link.
    Files that the run's readers may not read are copied.

    ``directory`` exists already.
    """
    for name in sorted({*_needed_files(source)} - {*without}):
        with file_of_model(source, name) as descriptor:
            found, place = look_at_descriptor(descriptor), directory / name
            if not stat.S_ISREG(found.status.st_mode):
                continue
            is_mine = found.status.st_uid == os.geteuid() and not found.is_written_by_others
            if is_mine and (found.status.st_mode & stat.S_IRGRP or not is_open_to_group(directory)):
                with suppress(OSError):  # another filesystem, or one without hard links
                    # a descriptor is named, without which the system call does not follow the path to the file
                    os.link(descriptor_path(descriptor), place, src_dir_fd=descriptor)
            if not place.exists():
                shutil.copyfile(descriptor_path(descriptor), place)


def _needed_files(source: Path) -> list[str]:
    """The files of the manifest, or without one those that serving and training need."""
    names = [entry.name for entry in os.scandir(source) if not entry.name.startswith(".")]
    if MANIFEST in names:
        listed = {MANIFEST, *read_manifest(source, anywhere=True).files}
        return [name for name in names if name in listed]
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in NEEDED)]


def prune(layout: RunLayout, keep: Iterable[int]) -> list[int]:
    """Remove every version not in ``keep``. Each is renamed first, so that no reader finds a part."""
    kept = set(keep)
    removed = [v for v in published_versions(layout) if v not in kept]
    for version in removed:
        remove_whole(layout.weights_version(version))
    return removed


# Which weights versions of a run must stay, and which its trainer may remove.


def needed_versions(layout: RunLayout, recipe: Recipe, version: int) -> set[int]:
    """The versions that must stay once ``version`` is published: those that the recipe, or finished or pending
    evaluations, need.
    """
    return kept_versions(recipe, version) | versions_with_evaluations(layout) | pinned_versions(layout)


def kept_versions(recipe: Recipe, version: int) -> set[int]:
    """The versions that the recipe needs: the newest few, the first, all that the schedule evaluates, and all that
    sample traces, as a damaged collection is sampled again. Those that sample traces are unknown where the algorithm
    was not imported: they may go.
    """
    newest = range(version - recipe.training.keep_weights + 1, version + 1)
    known = isinstance(recipe.algorithm, AlgorithmSettings)
    traces = recipe.algorithm.traces_versions(recipe.schedule.iterations) if known else ()
    return {*newest, 0, *recipe.evaluated_versions, *traces}


def stays(layout: RunLayout, recipe: Recipe, version: int) -> bool:
    """Whether a version is never removed, even without a pin."""
    return version in kept_versions(recipe, recipe.schedule.iterations) | versions_with_evaluations(layout)


def versions_with_evaluations(layout: RunLayout) -> set[int]:
    """The evaluated versions, also by an earlier recipe of the run: they may be asked for again."""
    return {version for version in published_versions(layout) if layout.evaluations(version).exists()}


def prune_weights(layout: RunLayout, recipe: Recipe, version: int) -> list[int]:
    """Remove and return the versions not needed any more once ``version`` is published. Later ones stay: they are the
    work of an attempt that took this one for lost.
    """
    later = {published for published in published_versions(layout) if published > version}
    return prune(layout, needed_versions(layout, recipe, version) | later)
