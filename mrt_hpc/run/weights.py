"""Weights versions: Hugging Face directories that are complete or absent, with a manifest of sizes and checksums."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrt_hpc.recipe.errors import ExitCode, UserError
from mrt_hpc.run.atomic import checksum, commit_directory, sync_directory, temporary_sibling, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mrt_hpc.run.layout import RunLayout

MANIFEST = "MANIFEST.json"


@dataclass(frozen=True)
class Manifest:
    """What a complete directory holds."""

    files: dict[str, tuple[int, str]]
    """Relative path to (bytes, SHA-256)."""
    about: dict[str, Any]
    """Where it came from: version, iteration, time."""


def write_manifest(directory: Path, **about: Any) -> Manifest:
    """Add a manifest of all files in ``directory``; the last thing written before its commit."""
    names = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
    files = {n: ((directory / n).stat().st_size, checksum(directory / n)) for n in names}
    write_json(directory / MANIFEST, {"about": about, "files": files})
    return Manifest(files, about)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a complete directory.

    Raises:
        UserError: it is missing or unreadable.
    """
    try:
        content = json.loads((directory / MANIFEST).read_text())
        return Manifest({n: (int(s), str(c)) for n, (s, c) in content["files"].items()}, content["about"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"no readable manifest: {error}", where=directory / MANIFEST) from error


def verify(directory: Path) -> Manifest:
    """Compare every file with the manifest.

    Raises:
        UserError: naming the first file that is missing, cut short or changed.
    """
    manifest = read_manifest(directory)
    for name, (size, digest) in manifest.files.items():
        file = directory / name
        if not file.is_file() or file.stat().st_size != size or checksum(file) != digest:
            raise UserError(
                "file differs from the manifest: it is damaged or was changed",
                where=file,
                expected=f"{size} bytes, SHA-256 {digest}",
                exit_code=ExitCode.RETRYABLE,
            )
    return manifest


def publish(layout: RunLayout, version: int, write: Callable[[Path], None], **about: Any) -> bool:
    """Write a weights version with ``write(directory)`` and commit it whole.

    Returns:
        False when this version was there already (what was written is dropped).
    """
    target = layout.weights_version(version)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(target)
    temporary.mkdir()
    try:
        write(temporary)
        write_manifest(temporary, version=version, **about)
        return commit_directory(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def published_versions(layout: RunLayout) -> list[int]:
    """All complete weights versions, ascending."""
    if not layout.weights.is_dir():
        return []
    found = (layout.version_of(p) for p in layout.weights.iterdir())
    return sorted(v for v in found if v is not None)


def prune(layout: RunLayout, keep: Iterable[int]) -> list[int]:
    """Remove every version not in ``keep``; renamed first, so that no reader meets half a version."""
    kept = set(keep)
    removed = [v for v in published_versions(layout) if v not in kept]
    for version in removed:
        doomed = temporary_sibling(layout.weights_version(version))
        layout.weights_version(version).rename(doomed)
        sync_directory(layout.weights)
        shutil.rmtree(doomed)
    return removed
