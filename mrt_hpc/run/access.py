"""Sets who may read a run: its owner, or the group too, as the mode of its directory shows. Makes private folders in
places that a node's users share.
"""

import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mrt_hpc.run.atomic import tree

log = logging.getLogger(__name__)

READ_BY_GROUP = stat.S_ISGID | stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP
"""Mode of a run directory that the group reads; what is made in it belongs to that group."""
CLOSED_TO_OTHERS = 0o027
"""Umask there: the group reads, others do not."""

CACHES_FOLDER = "mrt-hpc-caches"
"""A node's folder for compiled code, before the user's number."""
CACHES = {
    "XDG_CACHE_HOME": "other",
    "VLLM_CACHE_ROOT": "vllm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
}
"""Variables for compiled code, unless set, and their folders below the caches. Home directories have small quotas, and
nodes would wait for each other.
"""


def open_to_group(root: Path) -> None:
    """Let the group read a fresh run directory."""
    root.chmod(READ_BY_GROUP)  # mkdir does not set the bit that passes the group to new files


def is_open_to_group(root: Path) -> bool:
    return bool(root.stat().st_mode & stat.S_IRGRP)


def follow_access(root: Path) -> None:
    """Make this process's files group-readable where the run directory is."""
    if is_open_to_group(root):
        os.umask(CLOSED_TO_OTHERS)


@contextmanager
def restored_umask() -> Iterator[None]:
    """Give the process its own umask again at the end: a notebook's later files are not the run's."""
    before = os.umask(CLOSED_TO_OTHERS)
    os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


def share_as_directory(directory: Path) -> None:
    """Let the group read files below a directory that it may read: safetensors ignores the umask.

    Files with a second name are left alone: they were not made here.
    """
    if is_open_to_group(directory):
        for file in tree(directory)[1]:
            status = file.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and not status.st_mode & stat.S_IRGRP:
                file.chmod(stat.S_IMODE(status.st_mode) | stat.S_IRGRP)


def private_folder(parent: Path, name: str) -> Path:
    """A folder that only this user may enter, found again by later calls.

    Other users may have made a folder or link of a predictable name: it is only used if private. Otherwise a folder
    with a random end takes its place.
    """
    path = parent / name
    if (folder := next(filter(is_private, (path, *_others(path))), None)) is None:
        folder = path if _mkdir(path) or is_private(path) else Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    if folder != path:
        log.warning("%s belongs to another user, is a link, or is open to others; %s is used instead", path, folder)
    return folder


def _others(path: Path) -> list[Path]:
    """Folders that replaced this one; none where listing is not allowed."""
    try:
        return sorted(Path(entry) for entry in os.scandir(path.parent) if entry.name.startswith(f"{path.name}-"))
    except PermissionError:
        return []


def _mkdir(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def is_private(path: Path) -> bool:
    """Whether this user alone has rights to a folder. Links do not count. Below a folder that hands on its group the
    set-group bit is allowed: it gives no right.
    """
    return is_mine(path, lambda mode: stat.S_ISDIR(mode) and stat.S_IMODE(mode) & 0o777 == stat.S_IRWXU)


def is_mine(path: Path, is_wanted: Callable[[int], bool]) -> bool:
    """Whether this user owns what lies at a path.

    Args:
        path: need not exist; links are not followed.
        is_wanted: checks the mode, as ``stat.S_ISREG``.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return is_wanted(status.st_mode) and status.st_uid == os.geteuid()


def cache_variables() -> dict[str, str]:
    """Variables that keep this node's compiled code in a private folder."""
    folder = node_caches()
    return {name: str(folder / below) for name, below in CACHES.items()}


def node_caches() -> Path:
    return private_folder(Path(tempfile.gettempdir()), f"{CACHES_FOLDER}-{os.geteuid()}")
