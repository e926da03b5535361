"""Weights versions: directories that are complete or absent. A version is its number and its digest.

Most are Hugging Face directories. Where the recipe asks for deltas, a version between two full ones holds only the
changes since its base (:mod:`mrt_hpc.run.weights_delta`).
"""

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mrt_hpc.errors import UserError
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

DELTA, CHANGES = "delta.json", "changes.bin"
"""The files of a delta: its index, and its changes."""


@dataclass(frozen=True)
class Weights:
    """One complete weights version. The digest tells it from one of the same number that was set aside."""

    version: int
    digest: str
    """As published."""
    directory: Path
    """A whole model: the published directory; for a delta, where it was put together."""


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


def is_delta(directory: Path) -> bool:
    """Whether a version was published as a delta, which is no model by itself."""
    return (directory / DELTA).is_file()


def full_versions(layout: RunLayout) -> list[int]:
    """Complete versions that are whole models, ascending."""
    return [version for version in published_versions(layout) if not is_delta(layout.weights_version(version))]


def refuse_delta(directory: Path) -> None:
    """Refuse a weights version that is no whole model."""
    if is_delta(directory):
        full = [path.name for path in list_directory(directory.parent, "v*") if not is_delta(path)]
        raise UserError(
            "this weights version holds only what has changed since the version before, so it is no whole model",
            where=directory,
            expected=f"one of the full versions: {', '.join(full)}",
            advice="name a full version; training.full_weights_every of a recipe decides which ones are full",
        )


def add_bases(layout: RunLayout, versions: Iterable[int]) -> set[int]:
    """These weights versions and, for deltas, all that they build on."""
    versions_needed: set[int] = set()
    left = set(versions)
    while left:
        version = left.pop()
        versions_needed.add(version)
        left |= _base_of(layout.weights_version(version)) - versions_needed
    return versions_needed


def _base_of(directory: Path) -> set[int]:
    """The base of a delta; none for a full version, and for a damaged one."""
    if not is_delta(directory):
        return set()
    try:
        return {int(read_manifest(directory).about["base"]["version"])}
    except (DamagedError, KeyError):
        return set()


def take_over(source: Path, directory: Path, *, without: Iterable[str] = ()) -> None:
    """Take over the needed files of a model directory: by hard links where the files are this user's alone and the
    filesystem allows it, else by copies.

    The links are safe: nothing in a run writes to a weights version, and replacing a file elsewhere leaves the link.
    Files that the run's readers may not read are copied.

    Args:
        directory: exists already.
        without: names of files to leave out.
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
    """Remove every version not in ``keep``. Each is renamed first, so that no reader finds a part; the newest goes
    first, so that no reader finds a delta without its base.
    """
    kept = set(keep)
    removed = [v for v in published_versions(layout) if v not in kept]
    for version in reversed(removed):
        remove_whole(layout.weights_version(version))
    return removed


# Which weights versions of a run must stay, which its trainer may remove, and which are published in full.


def needed_versions(layout: RunLayout, recipe: Recipe, version: int) -> set[int]:
    """The versions that must stay once ``version`` is published: those that the recipe, finished or pending
    evaluations, or deltas need. After the last version no task loads an earlier delta.
    """
    kept = kept_versions(recipe, version)
    if version == recipe.schedule.iterations:
        kept = {old for old in kept if not is_delta(layout.weights_version(old))}
    return add_bases(layout, kept | versions_with_evaluations(layout) | pinned_versions(layout))


def kept_versions(recipe: Recipe, version: int) -> set[int]:
    """The versions that the recipe needs: the newest few, the first, all that the schedule evaluates, and all that
    sample traces, as a damaged collection is sampled again.
    """
    newest = range(version - recipe.training.keep_weights + 1, version + 1)
    return {*newest, *_lasting_versions(recipe)}


def _lasting_versions(recipe: Recipe) -> set[int]:
    """The versions that are whole models to the end of the run. Those that sample traces are unknown where the
    algorithm was not imported: they may go.
    """
    algorithm = recipe.algorithm
    known = isinstance(algorithm, AlgorithmSettings)
    traces = algorithm.traces_versions(recipe.schedule.iterations) if known else ()
    return {0, *recipe.evaluated_versions, *traces}


def stays(layout: RunLayout, recipe: Recipe, version: int) -> bool:
    """Whether a version is a whole model and is never removed, even without a pin."""
    kept = kept_versions(recipe, recipe.schedule.iterations) | versions_with_evaluations(layout)
    return version in kept and is_in_full(layout, recipe, version)


def is_in_full(layout: RunLayout, recipe: Recipe, version: int) -> bool:
    """Whether a version is published as a whole model even without a pin: every so many, those at the end of a segment,
    and all that are evaluated or sample traces.
    """
    if version % recipe.training.full_weights_every == 0:
        return True
    ends_segment = version % recipe.schedule.iterations_per_job == 0 or version == recipe.schedule.iterations
    return ends_segment or version in _lasting_versions(recipe) or layout.evaluations(version).exists()


def versions_with_evaluations(layout: RunLayout) -> set[int]:
    """The evaluated versions, also by an earlier recipe of the run: they may be asked for again."""
    return {version for version in published_versions(layout) if layout.evaluations(version).exists()}


def prune_weights(layout: RunLayout, recipe: Recipe, version: int) -> list[int]:
    """Remove and return the versions not needed any more once ``version`` is published. Later ones stay: they are the
    work of an attempt that took this one for lost.
    """
    later = {published for published in published_versions(layout) if published > version}
    return prune(layout, needed_versions(layout, recipe, version) | later)
