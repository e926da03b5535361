"""Weights versions: Hugging Face directories that are complete or absent. A version is its number and its digest."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrt_hpc.run.atomic import sync_directory, temporary_sibling
from mrt_hpc.run.manifest import commit_whole
from mrt_hpc.run.retries import list_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout


@dataclass(frozen=True)
class Weights:
    """One complete weights version. The digest distinguishes it from one of the same number that was set aside."""

    version: int
    digest: str
    directory: Path


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
    """Remove every version not in ``keep``. Each is renamed first, so that no reader finds a part of a version."""
    kept = set(keep)
    removed = [v for v in published_versions(layout) if v not in kept]
    for version in removed:
        doomed = temporary_sibling(layout.weights_version(version))
        layout.weights_version(version).rename(doomed)
        sync_directory(layout.weights)
        shutil.rmtree(doomed)
    return removed
