"""Whose a file is. Code is imported, and commands are taken, only from what only this user and root can change."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from mrt_hpc.errors import UserError, word

ROOT = 0
REACHED_BY_OTHERS = stat.S_IXGRP | stat.S_IXOTH
"""The rights of a folder without which no other user reaches what is in it, whatever rights that has."""


CODE = "read what is there; then copy it to a folder of your own, or add --trust where the command has it"
"""What to do about code of another user."""


def refuse_changeable(path: Path, what: str, instead: str = CODE) -> None:
    """Refuse a file or a folder that another user owns, may write to, or may put another one in the place of.

    Folders that lie higher than the one that holds it are not looked at: who can exchange those can exchange all that
    this user has in them.

    Args:
        path: what is there; links are followed.
        what: what is refused, a sentence about it.
        instead: what to do where another user owns it.

    Raises:
        UserError: naming the place, its owner and its mode.
    """
    place = path.resolve()
    sheltered = any(not parent.stat().st_mode & REACHED_BY_OTHERS for parent in place.parents)
    for each in (place, place.parent):
        status = each.stat()
        written = not sheltered and is_written_by_others(each) and (each == place or not status.st_mode & stat.S_ISVTX)
        if status.st_uid not in (os.geteuid(), ROOT) or written:
            raise _changeable(each, what, instead)


def is_written_by_others(path: Path) -> bool:
    """Whether its mode lets another user write to a file or folder. A group that has no member but this user, as many
    systems give to each, is no other user.
    """
    status = path.stat()
    return bool(status.st_mode & stat.S_IWOTH) or (
        bool(status.st_mode & stat.S_IWGRP) and (not _is_own_group(status.st_gid) or _has_access_list(path))
    )


def _is_own_group(number: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (number, group.gr_name) and set(group.gr_mem) <= {user.pw_name}


def _has_access_list(path: Path) -> bool:
    """Whether more users than its owner and group have rights, which its mode does not name."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


def _changeable(place: Path, what: str, instead: str) -> UserError:
    status = place.stat()
    mine = status.st_uid in (os.geteuid(), ROOT)
    return UserError(
        f"{what}, because another user can change it",
        where=place,
        value=f"owner {_name(status.st_uid)}, mode {stat.filemode(status.st_mode)}",
        expected="owner you or root, and no other user with the right to write",
        advice=f"chmod go-w {word(place)}" if mine else instead,
    )


def _name(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} ({number})"
    except KeyError:
        return str(number)
