"""Weights versions: directories that are complete or absent. A version is its number and its digest.

Most are Hugging Face directories. Where the recipe asks for deltas, a version between two full ones holds only what has
changed since the version before, its base (:mod:`mrt_hpc.run.weights_delta`).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrt_hpc.errors import UserError
from mrt_hpc.run.atomic import sync_directory, temporary_sibling
from mrt_hpc.run.manifest import DamagedError, commit_whole, read_manifest
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout

DELTA, CHANGES = "delta.json", "changes.bin"
"""The files of a version that is a delta: its index, and what has changed."""


@dataclass(frozen=True)
class Weights:
    """One complete weights version. The digest distinguishes it from one of the same number that was set aside."""

    version: int
    digest: str
    """Of the version as it is published."""
    directory: Path
    """A whole model: the published directory; for a delta the place where it was put together."""


def publish(layout: RunLayout, version: int, write: Callable[[Path], None], **about: Any) -> bool:
    """Write a weights version with ``write(directory)`` and commit it whole.

    Returns:
        False when this version was there already (what was written is dropped).
    """
    return commit_whole(layout.weights_version(version), write, version=version, **about)


def published_versions(layout: RunLayout) -> list[int]:
    """All complete weights versions, ascending."""
    found = map(layout.version_of, list_directory(layout.weights))
    return sorted(v for v in found if v is not None)


def is_delta(directory: Path) -> bool:
    """Whether a weights version was published as a delta, which is no model by itself."""
    return (directory / DELTA).is_file()


def full_versions(layout: RunLayout) -> list[int]:
    """The complete weights versions that are whole models, ascending."""
    return [version for version in published_versions(layout) if not is_delta(layout.weights_version(version))]


def refuse_delta(directory: Path) -> None:
    """Refuse the directory of a weights version that is no whole model.

    Raises:
        UserError: it was published as a delta.
    """
    if is_delta(directory):
        full = [path.name for path in list_directory(directory.parent, "v*") if not is_delta(path)]
        raise UserError(
            "this weights version holds only what has changed since the version before, so it is no whole model",
            where=directory,
            expected=f"one of the full versions: {', '.join(full)}",
            advice="name a full version; training.full_weights_every of a recipe decides which ones are full",
        )


def with_bases(layout: RunLayout, versions: Iterable[int]) -> set[int]:
    """These weights versions, and all that those of them that are deltas were made of."""
    found: set[int] = set()
    left = set(versions)
    while left:
        version = left.pop()
        found.add(version)
        left |= _base_of(layout.weights_version(version)) - found
    return found


def _base_of(directory: Path) -> set[int]:
    """The number of the version that a delta was made of; none for a full version, and for a damaged one, which cannot
    be put together.
    """
    if not is_delta(directory):
        return set()
    try:
        return {int(read_manifest(directory).about["base"]["version"])}
    except (DamagedError, KeyError):
        return set()


def take_over(source: Path, directory: Path, *, without: Iterable[str] = ()) -> None:
    """Take the files of a model directory over by hard links where the filesystem allows it, by copies elsewhere.

    The links are safe: nothing in a run writes to a weights version, and replacing a file elsewhere leaves the link as
    it was.

    Args:
        source: the model directory.
        directory: where they go, which is there.
        without: names of files that stay behind, as hidden files do.
    """
    for file in sorted(p for p in source.iterdir() if p.is_file() and not p.name.startswith(".")):
        if file.name in without:
            continue
        real = file.resolve()
        try:
            os.link(real, directory / file.name)
        except OSError:  # another filesystem, or one without hard links
            shutil.copy2(real, directory / file.name)


def prune(layout: RunLayout, keep: Iterable[int]) -> list[int]:
    """Remove every version not in ``keep``. Each is renamed first, so that no reader finds a part of a version; and the
    newest goes first, so that none finds a delta without its base.
    """
    kept = set(keep)
    removed = [v for v in published_versions(layout) if v not in kept]
    for version in reversed(removed):
        doomed = temporary_sibling(layout.weights_version(version))
        layout.weights_version(version).rename(doomed)
        sync_directory(layout.weights)
        shutil.rmtree(doomed)
    return removed
