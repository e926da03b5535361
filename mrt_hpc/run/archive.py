"""Packs the groups of an iteration that training has passed into one file, instead of about six files for each group.

The archive is a zip of the groups' directories as they were committed, so that each group keeps its manifest and its
digest. The directories are removed only when the archive is on the disk: at every moment each group is in one of the
two. Readers look into the archive first; ``unzip`` gives the directories back.
"""

import hashlib
import io
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from mrt_hpc.run import atomic
from mrt_hpc.run.groups import Group, Sampled, commit_group, complete_groups, group_of, read_group
from mrt_hpc.run.layout import GROUPS, RunLayout
from mrt_hpc.run.manifest import MANIFEST, DamagedError, Manifest, parse_manifest, read_manifest, refuse_misplaced
from mrt_hpc.run.retries import list_directory

OWN = (".groups", ".leases")
"""The beginnings of the temporary names of what is archived here."""
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError)
"""The errors that zipfile raises for a damaged archive; errors of the filesystem are not among them."""


@dataclass(frozen=True)
class GroupArchive:
    """The archive of one iteration's groups."""

    path: Path

    @cached_property
    def members(self) -> dict[int, list[str]]:
        """Names of the files of each group, by position.

        Raises:
            DamagedError: it is no archive of groups.
        """
        members: dict[int, list[str]] = {}
        try:
            for position, _, name in (name.partition("/") for name in self._zip.namelist()):
                members.setdefault(int(position), []).append(name)
        except UNREADABLE as error:
            raise DamagedError(f"the archive of groups cannot be read: {error!r}", where=self.path) from error
        return members

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        """Opened once: opening reads the names of all members."""
        if not self.path.is_file():
            raise zipfile.BadZipFile("it is no file")
        return zipfile.ZipFile(self.path)

    def manifest(self, position: int) -> Manifest:
        """The manifest of a group.

        Raises:
            DamagedError: it is missing, or not as it was written.
        """
        manifest = parse_manifest(self.file(position, MANIFEST), self.path)
        refuse_misplaced(manifest, self.path.parent / GROUPS / f"{position:05d}")
        return manifest

    def read(self, position: int) -> Group:
        """One group, verified.

        Raises:
            DamagedError: a part of it is not what was written.
        """
        manifest = self.manifest(position)
        return group_of(manifest, lambda name: io.BytesIO(self.verified(position, manifest, name)), self.path)

    def verified(self, position: int, manifest: Manifest, name: str) -> bytes:
        """A file of a group, as its manifest describes it.

        Raises:
            DamagedError: it is not.
        """
        data, (size, digest) = self.file(position, name), manifest.files[name]
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise DamagedError(f"{name} of group {position} differs from its manifest", where=self.path)
        return data

    def file(self, position: int, name: str) -> bytes:
        """Read a file of a group without verifying it.

        Raises:
            DamagedError: it cannot be read.
        """
        try:
            return self._zip.read(f"{position:05d}/{name}")
        except UNREADABLE as error:
            raise DamagedError(f"no readable {name} of group {position}: {error!r}", where=self.path) from error


def opened(layout: RunLayout, iteration: int) -> GroupArchive | None:
    """The archive of an iteration's groups; None where there is none."""
    path = layout.group_archive(iteration)
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return _opened(path, status.st_ino, status.st_mtime_ns)


@lru_cache(maxsize=4)
def _opened(path: Path, inode: int, changed_ns: int) -> GroupArchive:  # noqa: ARG001 - they name one file
    """Kept open, as stale traces are read from one archive throughout a run."""
    return GroupArchive(path)


def archive_groups(layout: RunLayout, iteration: int, wanted: int) -> None:
    """Put the groups of an iteration into its archive, and remove their directories and leases.

    Nothing is done while some of the ``wanted`` groups are missing, because a task may be sampling them. A second call
    continues after an interruption.
    """
    path, groups = layout.group_archive(iteration), layout.groups(iteration)
    positions = complete_groups(groups)
    if not path.exists() and positions == set(range(wanted)) and wanted:
        with atomic.replacing(path) as temporary:
            _write(temporary, groups, positions)
    if path.exists():
        atomic.sync_names(path.parent)  # the one that made it may have been killed before it did
        _remove(layout, iteration)


def _write(path: Path, groups: Path, positions: set[int]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # parquet files are compressed already
        for position in sorted(positions):
            directory = groups / f"{position:05d}"
            for file in sorted(atomic.tree(directory)[1]):
                archive.write(file, f"{position:05d}/{file.relative_to(directory).as_posix()}")


def _remove(layout: RunLayout, iteration: int) -> None:
    """First under a temporary name, so that no reader finds half of a group. Metrics that are being written stay."""
    for directory in (layout.groups(iteration), layout.leases(iteration)):
        if directory.exists():
            directory.rename(atomic.temporary_sibling(directory))
    for leftover in filter(atomic.is_temporary, _listed(layout, iteration)):
        if leftover.name.startswith(OWN):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def sampled_positions(layout: RunLayout, iteration: int) -> set[int]:
    """Positions of the complete groups of an iteration, in its archive or beside it.

    Raises:
        DamagedError: the archive cannot be read.
    """
    beside = complete_groups(layout.groups(iteration))  # first: directories are removed when the archive is there
    archive = opened(layout, iteration)
    if archive is None and not beside:
        beside = complete_groups(layout.groups(iteration))  # it may have been unpacked and set aside meanwhile
        # or a node of a network filesystem remembers that there was no archive, until it lists the folder
        archive = opened(layout, iteration) if layout.group_archive(iteration) in _listed(layout, iteration) else None
    return beside if archive is None else beside | set(archive.members)


def _listed(layout: RunLayout, iteration: int) -> list[Path]:
    return list_directory(layout.iteration(iteration))


def commit_sampled(layout: RunLayout, iteration: int, position: int, sampled: Sampled, **about: Any) -> bool:
    """Write a group as :func:`commit_group` does, unless training has passed its iteration: the other tasks took the
    one that sampled it for lost.
    """
    archive = layout.group_archive(iteration)
    if archive.exists():
        return False
    try:
        return commit_group(layout.group(iteration, position), sampled, **about)
    except FileNotFoundError:
        if archive not in _listed(layout, iteration):
            raise
        return False  # the groups were archived meanwhile


def read_sampled(layout: RunLayout, iteration: int, position: int) -> Group:
    """One group of an iteration, from its archive or its directory.

    Raises:
        DamagedError: it is not there, or not what was written.
    """
    archive, path = opened(layout, iteration), layout.group_archive(iteration)
    if archive is not None and position in archive.members:
        return archive.read(position)
    try:
        return read_group(layout.group(iteration, position))
    except DamagedError:
        if archive is not None or path not in _listed(layout, iteration):
            raise
        return GroupArchive(path).read(position)  # it was archived while it was read


def read_iteration(layout: RunLayout, iteration: int) -> list[Group]:
    """All groups of an iteration that are there, in the order of their positions.

    Raises:
        DamagedError: one of them is not what was written.
    """
    return [read_sampled(layout, iteration, position) for position in sorted(sampled_positions(layout, iteration))]


def iterations_begun(layout: RunLayout) -> list[int]:
    """The iterations of which there is a folder, in ascending order."""
    return sorted(int(path.name) for path in list_directory(layout.iteration(0).parent) if path.name.isdecimal())


def sampled_iterations(layout: RunLayout) -> Iterator[int]:
    """The iterations of which there are complete groups, the newest first."""
    return (number for number in reversed(iterations_begun(layout)) if sampled_positions(layout, number))


def sampled_manifest(layout: RunLayout, iteration: int, position: int) -> Manifest:
    """The manifest of one group of an iteration.

    Raises:
        DamagedError: it is not there, or not what was written.
    """
    archive = opened(layout, iteration)
    if archive is not None and position in archive.members:
        return archive.manifest(position)
    return read_manifest(layout.group(iteration, position))


def unpack(layout: RunLayout, iteration: int) -> None:
    """Give the groups of an archive their directories back; damaged ones are left out. The archive stays."""
    archive = GroupArchive(layout.group_archive(iteration))
    try:
        positions = sorted(archive.members)
    except DamagedError:
        return  # none of its content can be saved
    for position in positions:
        try:
            _unpack(archive, position, layout.group(iteration, position))
        except DamagedError:
            continue  # the caller already knows of the damage, and has this group sampled again


def _unpack(archive: GroupArchive, position: int, path: Path) -> None:
    manifest = archive.manifest(position)
    files = {name: archive.verified(position, manifest, name) for name in manifest.files}
    temporary = atomic.temporary_sibling(path)
    atomic.make_folder(temporary)
    for name, data in {**files, MANIFEST: archive.file(position, MANIFEST)}.items():
        (temporary / name).write_bytes(data)
    atomic.commit_directory(temporary, path)
