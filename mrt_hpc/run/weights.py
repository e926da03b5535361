"""Weights versions: directories that are complete or absent. A version is its number and its digest.

Most are Hugging Face directories. Where the recipe asks for deltas, a version between two full ones holds only the
changes since its base (:mod:`mrt_hpc.run.weights_delta`).
"""

import errno
import hashlib
import logging
import os
import re
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
from mrt_hpc.recipe.ownership import descriptor_path, file_of_model, look_at_descriptor, look_at_path
from mrt_hpc.recipe.schema import Experiment, Recipe
from mrt_hpc.run.access import is_open_to_group
from mrt_hpc.run.atomic import remove_whole, write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import MANIFEST, DamagedError, commit_whole, read_manifest
from mrt_hpc.run.retries import list_directory, retry_action
from mrt_hpc.run.typed_file import UnreadableError, read_typed

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
        what = "this weights version holds only what has changed since the version before, so it is no whole model"
        advice = "name a full version; training.full_weights_every of a recipe decides which ones are full"
        raise UserError(what, where=directory, expected=f"one of the full versions: {', '.join(full)}", advice=advice)


def add_bases(layout: RunLayout, versions: Iterable[int]) -> set[int]:
    """These weights versions and, for deltas, all that they build on."""
    needed, left = set[int](), set(versions)
    while left:
        needed.add(version := left.pop())
        left |= _base_of(layout.weights_version(version)) - needed
    return needed


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


# -- pins --------------------------------------------------------------------------------------------------------------
# Pins: an evaluation on its own keeps a weights version of a training run from being removed until its first job has
# taken the weights over.
#
# A pin is a small file in the training run, one for each version and evaluation. The trainer lists them whenever it
# removes old versions. A pin counts until the evaluation removes it, or until its directory is gone.


log = logging.getLogger(__name__)

_PIN = re.compile(r"v(\d{6})\.[0-9a-f]{16}\.json")


@dataclass(frozen=True)
class Pin:
    """Why an evaluation keeps a weights version."""

    evaluation: Path
    folder: int
    """The inode of the folder that holds this directory."""


def pin(run: RunLayout, version: int, evaluation: RunLayout) -> None:
    """Keep a version, published or not yet, of a run for the directory of an evaluation; a pin that exists is
    rewritten.
    """
    if look_at_path(run.root).status.st_uid != os.geteuid():
        raise PermissionError(errno.EACCES, "the run belongs to another user", str(run.root))
    root = evaluation.root.resolve()
    write_json(_file(run, version, evaluation), {"evaluation": str(root), "folder": root.parent.stat().st_ino})


def release(recipe: Experiment, evaluation: RunLayout) -> list[str]:
    """Remove all pins of an evaluation; returns the names of the pinned models. A pin that cannot be removed stays, and
    costs only disk space.
    """
    return [recipe.models[i].name for i, run, version in run_models(recipe) if _is_removed(run, version, evaluation)]


def run_models(recipe: Experiment) -> list[tuple[int, RunLayout, int]]:
    """The models of an evaluation that are weights versions of runs: model number, run and version."""
    return [
        (number, RunLayout(Path(model.run)), model.version)
        for number, model in enumerate(recipe.models)
        if model.run is not None and model.version is not None
    ]


def _is_removed(run: RunLayout, version: int, evaluation: RunLayout) -> bool:
    try:
        retry_action(_file(run, version, evaluation).unlink, "removing a pin")
    except FileNotFoundError:
        return False
    except OSError as error:
        log.warning("weights version %d of %s stays, though it is not needed any more: %s", version, run.root, error)
        return False
    return True


def pinned_versions(run: RunLayout) -> set[int]:
    """The versions of a run that evaluations still want, also unpublished ones."""
    pins = [(path, _PIN.fullmatch(path.name)) for path in list_directory(run.pins)]
    return {int(match[1]) for path, match in pins if match and not _is_abandoned(path)}


def _file(run: RunLayout, version: int, evaluation: RunLayout) -> Path:
    """The file of a pin, named by the evaluation's own key: a path has several spellings, others in containers."""
    key = (evaluation.secrets / "server_key").read_bytes()
    return run.pins / f"v{version:06d}.{hashlib.sha256(key).hexdigest()[:16]}.json"


def _is_abandoned(path: Path) -> bool:
    """Whether the evaluation's directory was removed. Only certain where the folder that held it is visible (a
    container may have another there); in doubt the pin counts.
    """
    try:
        pin = read_typed(path, Pin, "a pin", advice="nothing: it counts")
        parent = pin.evaluation.parent
        return parent.stat().st_ino == pin.folder and pin.evaluation not in list_directory(parent)
    except (OSError, ValueError, UnreadableError):
        return False


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
    known = isinstance(recipe.algorithm, AlgorithmSettings)
    traces = recipe.algorithm.traces_versions(recipe.schedule.iterations) if known else ()
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
