"""Packs the groups of an iteration that training has passed into one file, instead of some six files a group.

The archive is a zip of the committed directories, which are removed once it is on the disk: each group is always in
one of the two. Readers look into the archive first.
"""

import hashlib
import io
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.run import atomic
from mrt_hpc.run.groups import PARTS, Group, Sampled, commit_group, complete_groups, group_of, table_of_group
from mrt_hpc.run.layout import GROUPS, RunLayout
from mrt_hpc.run.manifest import MANIFEST, DamagedError, Manifest, parse_manifest, read_manifest, verify
from mrt_hpc.run.parquet import arrow_schema
from mrt_hpc.run.retries import list_directory

OWN = (".groups", ".leases")
"""Beginnings of temporary names here."""
LARGEST_MEMBER = 2**30
"""Bytes of a group's file. Anything larger was not written by a run."""
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, ValueError)
"""What zipfile raises for a damaged archive, without filesystem errors."""


Read = TypeVar("Read")
Reader = Callable[[Manifest, Callable[[str], Path | io.BytesIO], Path], Read]
"""Takes the manifest of a group, what gives one of its files by name, and where they are."""


@dataclass(frozen=True)
class GroupArchive:
    """The archive of one iteration."""

    path: Path

    @cached_property
    def members(self) -> set[int]:
        """The positions of its groups.

        Raises:
            DamagedError: no archive of groups.
        """
        try:
            return {int(name.partition("/")[0]) for name in self._zip.namelist()}
        except UNREADABLE as error:
            raise DamagedError(f"the archive of groups cannot be read: {error!r}", where=self.path) from error

    @cached_property
    def _zip(self) -> zipfile.ZipFile:
        """Opened once: opening reads all names."""
        if not self.path.is_file():
            raise zipfile.BadZipFile("it is no file")
        return zipfile.ZipFile(self.path)

    def manifest(self, position: int) -> Manifest:
        return parse_manifest(self.file(position, MANIFEST), self.path, self.path.parent / GROUPS / f"{position:05d}")

    def read(self, position: int, reader: "Reader[Read]") -> "Read":
        manifest = self.manifest(position)
        return reader(manifest, lambda name: io.BytesIO(self.read_verified(position, manifest, name)), self.path)

    def read_verified(self, position: int, manifest: Manifest, name: str) -> bytes:
        """A group's file, checked against its manifest."""
        data, (size, digest) = self.file(position, name), manifest.files[name]
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise DamagedError(f"{name} of group {position} differs from its manifest", where=self.path)
        return data

    def file(self, position: int, name: str) -> bytes:
        """A file, not verified.

        Raises:
            DamagedError: it cannot be read.
        """
        try:
            member = self._zip.getinfo(f"{position:05d}/{name}")
            if member.file_size > LARGEST_MEMBER:
                raise ValueError(
                    f"it has {member.file_size:,} bytes, more than the {LARGEST_MEMBER:,} that it may have"
                )
            return self._zip.read(member)
        except UNREADABLE as error:
            raise DamagedError(f"no readable {name} of group {position}: {error!r}", where=self.path) from error


def open_archive(layout: RunLayout, iteration: int) -> GroupArchive | None:
    """None where there is no archive."""
    path = layout.group_archive(iteration)
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return _cached_archive(path, status.st_ino, status.st_mtime_ns)


@lru_cache(maxsize=4)
def _cached_archive(path: Path, inode: int, changed_ns: int) -> GroupArchive:  # noqa: ARG001 - they name one file
    """Kept open: stale traces are read from one archive throughout a run."""
    return GroupArchive(path)


def archive_groups(layout: RunLayout, iteration: int, wanted: int) -> None:
    """Archive an iteration's groups and remove their directories and leases. Does nothing while ``wanted`` groups are
    missing; another call continues after an interruption.
    """
    path, groups = layout.group_archive(iteration), layout.groups(iteration)
    positions = complete_groups(groups)
    if not path.exists() and positions == set(range(wanted)) and wanted:
        with atomic.replace_file(path) as temporary:
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
    """Renamed first, so that no reader finds half a group. Metrics being written stay."""
    for directory in (layout.groups(iteration), layout.leases(iteration)):
        if directory.exists():
            directory.rename(atomic.temporary_sibling(directory))
    for leftover in filter(atomic.is_temporary, _list(layout, iteration)):
        if leftover.name.startswith(OWN):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def sampled_positions(layout: RunLayout, iteration: int) -> set[int]:
    """Complete groups of an iteration, archived or not.

    Raises:
        DamagedError: the archive cannot be read.
    """
    beside = complete_groups(layout.groups(iteration))  # first: directories are removed when the archive is there
    archive = open_archive(layout, iteration)
    if archive is None and not beside:
        beside = complete_groups(layout.groups(iteration))  # it may have been unpacked and set aside meanwhile
        # or a node of a network filesystem remembers that there was no archive, until it lists the folder
        if layout.group_archive(iteration) in _list(layout, iteration):
            archive = open_archive(layout, iteration)
    return beside if archive is None else beside | archive.members


def _list(layout: RunLayout, iteration: int) -> list[Path]:
    return list_directory(layout.iteration(iteration))


def commit_sampled(layout: RunLayout, iteration: int, position: int, sampled: Sampled, **about: Any) -> bool:
    """As :func:`commit_group`, unless training has passed the iteration: other tasks took the sampler for lost."""
    archive = layout.group_archive(iteration)
    if archive.exists():
        return False
    try:
        return commit_group(layout.group(iteration, position), sampled, **about)
    except FileNotFoundError:
        if archive not in _list(layout, iteration):
            raise
        return False  # the groups were archived meanwhile


def read_sampled(layout: RunLayout, iteration: int, position: int) -> Group:
    """A group from its archive or directory.

    Raises:
        DamagedError: missing, or not what was written.
    """
    return _read(layout, iteration, position, group_of)


def _read(layout: RunLayout, iteration: int, position: int, reader: Reader[Read]) -> Read:
    archive, path = open_archive(layout, iteration), layout.group_archive(iteration)
    if archive is not None and position in archive.members:
        return archive.read(position, reader)
    group = layout.group(iteration, position)
    try:
        return reader(verify(group), lambda name: group / name, group)
    except DamagedError:
        if archive is not None or path not in _list(layout, iteration):
            raise
        return GroupArchive(path).read(position, reader)  # it was archived while it was read


def read_iteration(layout: RunLayout, iteration: int) -> list[Group]:
    """All existing groups, by position.

    Raises:
        DamagedError: one is not what was written.
    """
    return [read_sampled(layout, iteration, position) for position in sorted(sampled_positions(layout, iteration))]


def sampled_table(layout: RunLayout, iterations: Iterable[int], part: str) -> pa.Table:
    """The records of one of ``groups.PARTS`` of some iterations, in the order of :func:`read_iteration`."""
    read = partial(table_of_group, part=part)
    places = ((number, position) for number in iterations for position in sorted(sampled_positions(layout, number)))
    tables = (_read(layout, number, position, read) for number, position in places)
    return pa.concat_tables([arrow_schema(PARTS[part]).empty_table(), *tables])


def unsampled_error(layout: RunLayout, iteration: int) -> UserError:
    """The error for an iteration without groups."""
    there = sorted(sampled_iterations(layout))
    return UserError(
        "this iteration has no complete groups of rollouts",
        value=iteration,
        where=layout.root,
        expected=f"one of {', '.join(map(str, there))}" if there else "a run that has sampled",
        advice=Advice("mrt-hpc traces {run} --iteration {there}", run=layout.root, there=there[-1])
        if there
        else Advice("mrt-hpc status {run}", run=layout.root),
    )


def iterations_begun(layout: RunLayout) -> list[int]:
    """Iterations with a folder, ascending."""
    return sorted(int(path.name) for path in list_directory(layout.iteration(0).parent) if path.name.isdecimal())


def sampled_iterations(layout: RunLayout) -> Iterator[int]:
    """Iterations with complete groups, newest first."""
    return (number for number in reversed(iterations_begun(layout)) if sampled_positions(layout, number))


def sampled_manifest(layout: RunLayout, iteration: int, position: int) -> Manifest:
    archive = open_archive(layout, iteration)
    if archive is not None and position in archive.members:
        return archive.manifest(position)
    return read_manifest(layout.group(iteration, position))


def unpack(layout: RunLayout, iteration: int) -> None:
    """Restore an archive's directories, except damaged ones. The archive stays."""
    archive = GroupArchive(layout.group_archive(iteration))
    try:
        positions = sorted(archive.members)
    except DamagedError:
        return  # none of its content can be saved
    for position in positions:
        with suppress(DamagedError):  # the caller already knows of it, and has this group sampled again
            _unpack(archive, position, layout.group(iteration, position))


def _unpack(archive: GroupArchive, position: int, path: Path) -> None:
    manifest = archive.manifest(position)
    files = {name: archive.read_verified(position, manifest, name) for name in manifest.files}
    temporary = atomic.temporary_sibling(path)
    atomic.make_folder(temporary)
    for name, data in {**files, MANIFEST: archive.file(position, MANIFEST)}.items():
        (temporary / name).write_bytes(data)
    atomic.commit_directory(temporary, path)
