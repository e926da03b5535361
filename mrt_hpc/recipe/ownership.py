"""Whose a file or folder is, and what this user does with one that another user can change.

Another user may exchange a path between two looks, so owner, mode, size, content and place are taken from one
descriptor. Actions in a folder walk there through no link and no folder of another user.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, AnyStr, BinaryIO

from mrt_hpc.errors import Advice, UserError

ROOT = 0
REACHED_BY_OTHERS = stat.S_IXGRP | stat.S_IXOTH
"""Without these rights of a folder no other user reaches what is in it."""
FOREIGN_CODE = (
    "read what is there; then copy it to a folder of your own, or add --trust where the command has it; where all of "
    "it is yours, its owner or an administrator gives it back (chown -R)"
)
MOST_BYTES = 256 * 2**20
LONGEST_LINE = 64 * 2**20
_NO_FILE = {
    errno.EISDIR: "it is a folder, not a file",
    errno.ENXIO: "it is a socket, not a file",
    errno.ELOOP: "its links lead in a circle",
}


@dataclass(frozen=True)
class Opened:
    """What a path led to when it was opened."""

    place: Path
    """The kernel's path, without links."""
    status: os.stat_result
    is_written_by_others: bool
    """A group that holds this user alone does not count."""
    content: bytes = b""
    """A file's content, where it was asked for."""

    @property
    def is_foreign(self) -> bool:
        """Whether its owner is neither this user nor root."""
        return self.status.st_uid not in (os.geteuid(), ROOT)

    @property
    def owner(self) -> str:
        try:
            return f"{pwd.getpwuid(self.status.st_uid).pw_name} ({self.status.st_uid})"
        except KeyError:
            return str(self.status.st_uid)


def look_at_path(path: Path) -> Opened:
    """Links are followed."""
    descriptor = os.open(path, os.O_PATH)
    try:
        return look_at_descriptor(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, most: int = MOST_BYTES) -> Opened:
    with file_stream(path, most) as stream:
        return look_at_descriptor(stream.fileno(), stream.read())


def file_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most ``most`` bytes, without waiting for a writer.

    Raises:
        ValueError: it is no regular file, or is longer.
    """
    with file_stream(path, most) as stream:
        return stream.read()


def file_stream(path: Path, most: int) -> BinaryIO:
    stream = _stream(path)
    status, fault = os.fstat(stream.fileno()), ""
    if not stat.S_ISREG(status.st_mode):
        fault = f"it is {'a pipe' if stat.S_ISFIFO(status.st_mode) else 'a device'}, not a file"
    elif status.st_size > most:
        fault = f"it has {status.st_size:,} bytes, more than the {most:,} that such a file may have"
    if fault:
        stream.close()
        raise ValueError(fault)
    return stream


def limited_lines(stream: IO[AnyStr], where: object) -> Iterator[AnyStr]:
    """Refuses a line longer than any row of data: a compressed text may be far larger than its file."""
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            what = "a line of the file is too long"
            expected = f"lines of less than {LONGEST_LINE:,} bytes or characters"
            raise UserError(what, where=where, expected=expected, advice="write one row a line, and the file once more")
        yield line


def _stream(path: Path) -> BinaryIO:
    try:
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as error:
        if (reason := _NO_FILE.get(error.errno or 0)) is not None:
            raise ValueError(reason) from error
        raise


def look_at_descriptor(descriptor: int, content: bytes = b"") -> Opened:
    status = os.fstat(descriptor)
    group_writes = status.st_mode & stat.S_IWGRP and (
        not _is_own_group(status.st_gid) or _has_access_list(descriptor_path(descriptor))
    )
    written = bool(status.st_mode & stat.S_IWOTH or group_writes) and not stat.S_ISLNK(status.st_mode)
    return Opened(descriptor_path(descriptor).readlink(), status, written, content)


@contextmanager
def file_of_model(folder: Path, name: str) -> Iterator[int]:
    """A descriptor (that reads nothing) of a file of a model directory that another user may own. A link of another
    user is followed only to a file of the same hub's cache: otherwise a run would let others read what only this user
    may.
    """
    descriptor = os.open(folder / name, os.O_PATH | os.O_NOFOLLOW)
    try:
        found = look_at_descriptor(descriptor)
        if stat.S_ISLNK(found.status.st_mode):
            target = Path(os.readlink("", dir_fd=descriptor))
            real = _blob(folder, target) if found.is_foreign else os.open(folder / target, os.O_PATH)
            os.close(descriptor)
            descriptor = real
        yield descriptor
    finally:
        os.close(descriptor)


def _blob(folder: Path, target: Path) -> int:
    """A link ``MODEL/snapshots/COMMIT/NAME`` leads to ``MODEL/blobs/DIGEST``."""
    blobs = look_at_path(folder).place.parents[1] / "blobs"
    if Path(os.path.normpath(look_at_path(folder).place / target)).parent != blobs:
        raise UserError(
            "a file of this model is a link of another user that leads out of the model, and is not followed",
            value=str(target),
            where=folder,
            expected="files, or links into the blobs of the same hub's cache",
            advice=Advice(
                "ls -l {folder}; then ask the owner of the model for a copy without such links", folder=folder
            ),
        )
    above = os.open(blobs, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return os.open(target.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=above)
    finally:
        os.close(above)


def descriptor_path(descriptor: int) -> Path:
    """A path to what a descriptor was opened on, and to nothing else."""
    return Path(f"/proc/self/fd/{descriptor}")


def _is_own_group(number: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (number, group.gr_name) and set(group.gr_mem) <= {user.pw_name}


def _has_access_list(path: Path) -> bool:
    """Whether more users have rights than its mode names."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


def refuse_changeable(found: Path | Opened, what: str, instead: str = FOREIGN_CODE) -> Path:
    """Refuse a file or a folder that another user owns, may write to, or may exchange. Only the folder that holds it is
    looked at: who can exchange higher ones can exchange all that this user has there. Return its place, to be used from
    here on.

    Args:
        what: a sentence about the thing.
        instead: the advice where another user owns it.
    """
    itself = look_at_path(found) if isinstance(found, Path) else found
    sheltered = any(not parent.stat().st_mode & REACHED_BY_OTHERS for parent in itself.place.parents)
    for each in (itself, look_at_path(itself.place.parent)):
        shared = not sheltered and each.is_written_by_others
        if each.is_foreign or (shared and (each is itself or not each.status.st_mode & stat.S_ISVTX)):
            raise UserError(
                f"{what}, because another user can change it",
                where=each.place,
                value=f"owner {each.owner}, mode {stat.filemode(each.status.st_mode)}",
                expected="owner you or root, and no other user with the right to write",
                advice=instead if each.is_foreign else Advice("chmod go-w {place}", place=each.place),
            )
    return itself.place


def refuse_to_write(run: Path, instead: str | None = None) -> Path:
    """Refuse to write to a run directory that another user owns or may write to: tasks execute what it holds. Return
    its path as typed, or the checked place where another user can exchange the path.

    ``instead`` is the advice where another user owns it; None is a fork of the run.
    """
    found = look_at_path(run)
    if found.status.st_uid != os.geteuid():
        raise UserError(
            f"this run belongs to the user {found.owner}, and this command writes to a run",
            where=run,
            expected="a run of your own",
            advice=instead
            or Advice("mrt-hpc fork {run} --at last, which begins a run of your own with its weights", run=run),
        )
    if found.is_written_by_others:
        raise UserError(
            "others can write to the run directory, and tasks would run what they put there",
            value=f"mode {stat.filemode(found.status.st_mode)}",
            where=run,
            expected="no other user with the right to write",
            advice=Advice("chmod go-w {run}; where the filesystem knows no owners: --run DIR on another", run=run),
        )
    holders = (run.lstat(), run.absolute().parent.stat())
    return run if all(each.st_uid in (os.geteuid(), ROOT) for each in holders) else found.place


@contextmanager
def folder_below(root: Path, folder: Path) -> Iterator[int]:
    """A descriptor of a folder; all folders from ``root`` to it are this user's, and no link is in between."""
    with ExitStack() as opened_here:
        place, descriptor = root, os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        opened_here.callback(os.close, descriptor)
        for name in folder.relative_to(root).parts:
            _refuse_foreign_folder(place, descriptor)
            place /= name
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            except NotADirectoryError as error:
                raise _not_acted_on(place, "a link, or no folder") from error
            opened_here.callback(os.close, descriptor)
        _refuse_foreign_folder(place, descriptor)
        yield descriptor


def _refuse_foreign_folder(place: Path, descriptor: int) -> None:
    if os.fstat(descriptor).st_uid != os.geteuid():
        raise _not_acted_on(place, "a folder of another user")


def _not_acted_on(place: Path, found: str) -> UserError:
    what = "nothing is changed here, because this is no folder of your own"
    expected = "a folder that you own, and no link to one"
    return UserError(what, where=place, value=found, expected=expected, advice=Advice("ls -ld {place}", place=place))
