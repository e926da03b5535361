"""Writes files so that other processes see a whole file or none: a temporary name in the same directory, a sync to the
disk, then one rename. Nothing locks: no lock of a shared filesystem survives a lost node, but rename and link are
atomic on all.
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

from mrt_hpc.errors import UserError, retryable_error
from mrt_hpc.run.layout import IDENTITY, LOCK
from mrt_hpc.run.retries import list_directory, retry_action

TEMPORARY_MARK = ".tmp-"
"""Marks unfinished files and directories; readers skip them."""
OWN_FILES = (IDENTITY, LOCK)
"""One of these is in each run directory, and in each folder of stored samples."""
SYNCS_AT_ONCE = 16

CHECKSUMS_AT_ONCE = min(8, len(os.sched_getaffinity(0)))


def is_temporary(path: Path) -> bool:
    return TEMPORARY_MARK in path.name


def remove_leftovers(directory: Path) -> None:
    """Remove unfinished files of dead writers. No other writer may be active."""
    for path in list_directory(directory):
        if is_temporary(path) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif is_temporary(path):
            path.unlink(missing_ok=True)


def temporary_sibling(path: Path) -> Path:
    """A fresh name beside ``path``: the final rename stays within one filesystem."""
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{uuid.uuid4().hex[:12]}")


def finished_name(path: Path) -> Path:
    """The final name of unfinished work; that of any other path is its own."""
    return path.with_name(path.name.partition(TEMPORARY_MARK)[0].removeprefix(".")) if is_temporary(path) else path


def make_folder(folder: Path) -> None:
    """Make a folder of a run or of stored samples, but never the run directory itself: where that was moved away while
    tasks run, nothing takes its place.
    """
    missing, folder = [], folder.absolute()
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    if missing and _run_around(folder) is None:
        raise _moved_run_error(missing[-1])
    for each in reversed(missing):
        try:
            each.mkdir(exist_ok=True)
        except FileNotFoundError as error:  # it was moved at this moment
            raise _moved_run_error(each.parent) from error
        _sync_above.cache_clear()  # a folder that is made again may have the inode of the one before


def make_durable(folder: Path) -> None:
    """Make a folder outside of any run; it and its names are then on the disk."""
    missing = [each for each in folder.parents if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in (folder, folder.parent, *(above.parent for above in missing)):
        with suppress(OSError):  # a folder of all users, which none may list, or of the system; writing tells more
            sync_directory(each)


def _run_around(folder: Path) -> Path | None:
    around = (folder, *folder.parents)
    return next((above for above in around if any((above / name).is_file() for name in OWN_FILES)), None)


def _moved_run_error(folder: Path) -> UserError:
    """The filesystem may be away for a moment only."""
    return retryable_error(
        "the run directory is gone or was moved, and is not made again at its old place",
        where=folder,
        expected=f"a directory with {' or '.join(OWN_FILES)}",
        advice="where it was moved: mrt-hpc cancel NEWPATH, and then mrt-hpc submit NEWPATH",
    )


def write_bytes(path: Path, data: bytes, *, durable: bool = True, private: bool = False) -> None:
    """Replace ``path`` in one step: a reader sees the old content or the new."""
    with replace_file(path, durable=durable, private=private) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str, *, durable: bool = True, private: bool = False) -> None:
    """As :func:`write_bytes`, in UTF-8."""
    write_bytes(path, text.encode(), durable=durable, private=private)


def write_json(path: Path, value: Any, *, durable: bool = True, private: bool = False) -> None:
    """As :func:`write_bytes`, as readable JSON."""
    write_text(path, json.dumps(value, indent=2, sort_keys=False) + "\n", durable=durable, private=private)


@contextmanager
def _name_file(path: Path) -> Iterator[None]:
    """Name the file in a system error that knows only its descriptor."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def replace_file(path: Path, *, durable: bool = True, private: bool = False) -> Iterator[Path]:
    """Give a temporary file to write; on leaving without an error it takes the place of ``path``.

    Args:
        durable: sync to the disk first. A file that a power failure may lose, such as a heartbeat, does not wait.
        private: readable by this user only, from the beginning.
    """
    make_folder(path.parent)
    temporary = temporary_sibling(path)
    try:
        if private:
            temporary.touch(mode=0o600)
        with _name_file(path):
            yield temporary
        if durable:
            sync_file(temporary)
        temporary.replace(path)
        if durable:
            sync_names(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def create_file(path: Path, *, durable: bool = True) -> "Iterator[Commit]":
    """Give a temporary file to write; on leaving it becomes ``path`` unless another writer was first (``link`` fails
    then). ``Commit.won`` tells. Parameters as in :func:`replace_file`.
    """
    make_folder(path.parent)
    commit = Commit(temporary_sibling(path))
    try:
        with _name_file(path):
            yield commit
        if durable:
            sync_file(commit.temporary)
        commit.won = _link_if_absent(commit.temporary, path)
        if durable:  # tried again by itself: who creates the file again finds that another was first
            retry_action(lambda: sync_names(path.parent), f"syncing {path.parent}")
    finally:
        commit.temporary.unlink(missing_ok=True)


def create_text(path: Path, text: str, *, durable: bool = True) -> bool:
    """Create a text file; False where another writer was first."""
    with create_file(path, durable=durable) as commit:
        commit.temporary.write_text(text, encoding="utf-8")
    return commit.won


class Commit:
    """An exclusive write to ``temporary``; ``won`` says afterwards whether it was the first."""

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


def move_path(path: Path, to: Path) -> Path | None:
    """Move a file or folder; None if it is gone, e.g. moved by another task."""
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
    retry_action(lambda: sync_names(path.parent), f"syncing {path.parent}")
    return won


def remove_whole(path: Path) -> None:
    """Remove a file or folder, renamed first so that no reader finds a part; durable, and nothing where it is gone."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            sync_directory(path.parent)
        return
    doomed = path if is_temporary(path) else path.rename(temporary_sibling(path))
    sync_directory(path.parent)
    shutil.rmtree(doomed, ignore_errors=True)
    if doomed.exists():
        _remove_rest(doomed)


def _remove_rest(doomed: Path) -> None:
    """Or raise: a file that a process holds open on NFS stays as ``.nfs...``."""
    try:
        shutil.rmtree(doomed)
    except OSError as error:
        error.filename = str(doomed)  # it is named within its folder only
        raise


def sync_tree(directory: Path) -> None:
    """Sync a directory tree, in parallel: one commit of a journal serves many callers, and the servers of a parallel
    filesystem work side by side.
    """
    directories, files = tree(directory)
    syncs = [_sync_pool().submit(sync_file, path) for path in [*directories, *files]]
    wait(syncs)
    for sync in syncs:
        sync.result()  # raises what the sync raised


@cache
def _sync_pool() -> ThreadPoolExecutor:
    """Threads that sync; kept, because starting them takes longer than committing a group."""
    return ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="sync")


os.register_at_fork(after_in_child=_sync_pool.cache_clear)  # a child has no threads but the one that forked


def tree(directory: Path) -> tuple[list[Path], list[Path]]:
    """The directories (itself first) and files of a tree. ``Path.rglob`` silently skips what it cannot list in newer
    Pythons.
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
    """Otherwise a rename may reach the disk before the data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    sync_file(path)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder of a run, and the folder's own. Each process does so once, as the maker may have died
    before its sync.
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
    """[paths] SHA-256 of each file, in parallel: one thread reads some 1.8 GB/s, less than a disk may give."""
    if not paths:
        return []
    with ThreadPoolExecutor(min(len(paths), CHECKSUMS_AT_ONCE)) as pool:
        return list(pool.map(checksum, paths))


def checksum(path: Path) -> str:
    """SHA-256, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
