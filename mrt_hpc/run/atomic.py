"""Writes files that other processes read, so that a reader sees a whole file or none. Every write goes to a temporary
name in the same directory, is synced to the disk and is then renamed in one step. Nothing here locks: a shared
filesystem gives no lock that survives a lost node, but rename and link are atomic on all of them.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.run.layout import IDENTITY, LOCK
from mrt_hpc.run.retries import list_directory, retrying

TEMPORARY_MARK = ".tmp-"
"""The mark in the name of every unfinished file or directory; readers skip such names."""
OWN_FILES = (IDENTITY, LOCK)
"""One of these files is in each directory of a run, and in each folder of stored samples."""
SYNCS_AT_ONCE = 16
"""The number of files and directories of one tree that are synced to the disk in parallel."""

CHECKSUMS_AT_ONCE = min(8, len(os.sched_getaffinity(0)))
"""The number of files of one tree whose checksums are computed in parallel."""


def is_temporary(path: Path) -> bool:
    """Whether ``path`` is the unfinished work of a writer."""
    return TEMPORARY_MARK in path.name


def remove_leftovers(directory: Path) -> None:
    """Remove the unfinished files of writers that died. No other writer may be active."""
    for path in list_directory(directory):
        if is_temporary(path) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif is_temporary(path):
            path.unlink(missing_ok=True)


def temporary_sibling(path: Path) -> Path:
    """A fresh name beside ``path``, so that the final rename stays within one filesystem."""
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{uuid.uuid4().hex[:12]}")


def make_folder(folder: Path) -> None:
    """Make a folder of a run or of stored samples, with those above it, but never the run directory itself: where that
    was moved away while tasks run, nothing takes its place.

    Raises:
        UserError: no folder above is a run directory or a folder of stored samples.
    """
    missing, folder = [], folder.absolute()
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    if missing and _run_around(folder) is None:
        raise _gone(missing[-1])
    for each in reversed(missing):
        try:
            each.mkdir(exist_ok=True)
        except FileNotFoundError as error:  # it was moved at this moment
            raise _gone(each.parent) from error
        _sync_above.cache_clear()  # a folder that is made again may have the inode of the one before


def make_durable(folder: Path) -> None:
    """Make a folder outside of any run, with those above it; these names, and those in it, are on the disk then."""
    missing = [each for each in folder.parents if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder, folder.parent, *(above.parent for above in missing)):
        with suppress(OSError):  # a folder of all users, which none may list, or of the system; writing tells more
            sync_directory(each)


def _run_around(folder: Path) -> Path | None:
    """The run directory, or the folder of stored samples, that a folder is or lies in."""
    around = (folder, *folder.parents)
    return next((above for above in around if any((above / name).is_file() for name in OWN_FILES)), None)


def _gone(folder: Path) -> UserError:
    return UserError(
        "the run directory is gone or was moved, and is not made again at its old place",
        where=folder,
        expected=f"a directory with {' or '.join(OWN_FILES)}",
        advice="where it was moved: mrt-hpc cancel NEWPATH, and then mrt-hpc submit NEWPATH",
        exit_code=ExitCode.RETRYABLE,  # a filesystem may be away for a moment
    )


def write_bytes(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by ``data`` in one step; a reader sees the old content or the new, never a part."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace ``path`` by ``text`` (UTF-8) in one step."""
    write_bytes(path, text.encode(), durable=durable)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace ``path`` by ``value`` as readable JSON in one step."""
    write_text(path, json.dumps(value, indent=2, sort_keys=False) + "\n", durable=durable)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Give a temporary file to write; on leaving without an error it takes the place of ``path``.

    Args:
        path: what to replace; folders above it are made as :func:`make_folder` does.
        durable: whether the content is synced to the disk first. A file that may be lost in a power failure, such as a
            heartbeat, does not wait for that.
    """
    make_folder(path.parent)
    temporary = temporary_sibling(path)
    try:
        yield temporary
        if durable:
            sync_file(temporary)
        temporary.replace(path)
        if durable:
            sync_names(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def creating(path: Path, *, durable: bool = True) -> "Iterator[Commit]":
    """Give a temporary file to write; on leaving it becomes ``path`` unless another writer was first.

    The first commit wins (``link`` fails when the name exists); ``Commit.won`` holds the outcome afterwards.

    Args:
        path: what to create; folders above it are made as :func:`make_folder` does.
        durable: whether content and name are synced to the disk, as in :func:`replacing`.
    """
    make_folder(path.parent)
    commit = Commit(temporary_sibling(path))
    try:
        yield commit
        if durable:
            sync_file(commit.temporary)
        commit.won = _link_if_absent(commit.temporary, path)
        if durable:  # tried again by itself: who creates the file again finds that another was first
            retrying(lambda: sync_names(path.parent), f"syncing {path.parent}")
    finally:
        commit.temporary.unlink(missing_ok=True)


def create_text(path: Path, text: str, *, durable: bool = True) -> bool:
    """Create a file with a text, as :func:`creating` does; False where another writer was first."""
    with creating(path, durable=durable) as commit:
        commit.temporary.write_text(text, encoding="utf-8")
    return commit.won


class Commit:
    """An exclusive write: its content goes to ``temporary``, and ``won`` says afterwards whether it was the first."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.won = False


def _link_if_absent(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        try:
            return temporary.samefile(path)  # a network filesystem may have sent this request twice
        except FileNotFoundError:
            return False  # it was another's, which has removed it since
    return True


def moved(path: Path, to: Path) -> Path | None:
    """Give a file or folder another place, and return that; None if it is not there, as where another task moves it."""
    try:
        return path.rename(to)
    except FileNotFoundError:
        return None


def commit_directory(temporary: Path, path: Path) -> bool:
    """Make a finished directory appear as ``path``; False (and it is removed) when another was first."""
    sync_tree(temporary)
    identity, won = temporary.stat().st_ino, True
    try:
        temporary.rename(path)  # fails when path is a directory that is not empty
    except OSError:
        if path not in list_directory(path.parent):  # listing refreshes a name cached as absent
            raise
        if path.stat().st_ino != identity:  # otherwise the request was sent twice
            shutil.rmtree(temporary, ignore_errors=True)
            won = False
    # What is committed is not written again; the writer that was first may have died before the name was on the disk.
    retrying(lambda: sync_names(path.parent), f"syncing {path.parent}")
    return won


def remove_whole(path: Path) -> None:
    """Remove a file, or a folder that is renamed first, so that no reader finds a part of it. It does not come back
    when the machine is lost; nothing is done where it is not there.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            sync_directory(path.parent)
        return
    doomed = path if is_temporary(path) else path.rename(temporary_sibling(path))
    sync_directory(path.parent)
    shutil.rmtree(doomed)


def sync_tree(directory: Path) -> None:
    """Sync a directory with all its content to the disk. All syncs run in parallel, because one commit of a journal
    serves many waiting callers, and the servers of a parallel filesystem work in parallel.
    """
    directories, files = tree(directory)
    syncs = [_sync_pool().submit(sync_file, path) for path in [*directories, *files]]
    wait(syncs)
    for sync in syncs:
        sync.result()  # raises what the sync raised


@cache
def _sync_pool() -> ThreadPoolExecutor:
    """The threads of this process that sync. They are kept: to start them takes longer than to commit a group."""
    return ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="sync")


os.register_at_fork(after_in_child=_sync_pool.cache_clear)  # a child has no threads but the one that forked


def tree(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return a directory with all directories below it, and all files below it; none is skipped.

    Raises:
        OSError: one cannot be listed. ``Path.rglob`` passes over it in newer Pythons: what it holds would then be
            neither synced nor in a manifest.
    """

    def refuse(error: OSError) -> None:
        raise error

    directories: list[Path] = []
    files: list[Path] = []
    for folder, _, names in os.walk(directory, onerror=refuse):
        directories.append(Path(folder))
        files += [Path(folder, name) for name in names]
    return directories, files


def sync_file(path: Path) -> None:
    """Sync the content of ``path`` to the disk; otherwise a rename may reach the disk before the data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync the names in ``path`` to the disk."""
    sync_file(path)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder of a run, and the folder's own name: a result is lost with any folder above it. The
    process that made these may have ended before it synced them, so each process syncs them once.
    """
    sync_directory(folder)
    _sync_above(folder.absolute(), folder.stat().st_ino)


@cache
def _sync_above(folder: Path, inode: int) -> None:  # noqa: ARG001 - it tells a folder from a later one of this name
    run = _run_around(folder)
    for above in folder.parents:
        if run is None or not above.is_relative_to(run):
            return
        sync_directory(above)


def checksums(paths: Sequence[Path]) -> list[str]:
    """[paths] SHA-256 of each file, several side by side: one thread takes in some 1.8 GB/s, less than a disk may give.

    Raises:
        OSError: of the first file, in the order of ``paths``, that cannot be read.
    """
    if not paths:
        return []
    with ThreadPoolExecutor(min(len(paths), CHECKSUMS_AT_ONCE)) as pool:
        return list(pool.map(checksum, paths))


def checksum(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
