"""Sets who may read a run: its owner alone, or the owner's group as well. The mode of the run directory shows which.
Folders for files that only this user may read or write, in places that all users of a node share, are made here, too,
and it says who may connect to the processes of one node.
"""

import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from mrt_hpc.run.atomic import tree

log = logging.getLogger(__name__)

READ_BY_GROUP = stat.S_ISGID | stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP
"""Mode of a run directory that the group reads; what is made in it belongs to the same group."""
CLOSED_TO_OTHERS = 0o027
"""Umask of the processes that write in such a directory: the group reads, and others do neither."""

ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""The environment of processes that compute together on one node: gloo and NCCL listen on the loopback address only,
whatever a site has set for several nodes.
"""
CACHES_FOLDER = "mrt-hpc-caches"
"""The folder of a node for what is compiled there: its name, before the number of the user."""
CACHES = {
    "XDG_CACHE_HOME": "other",
    "VLLM_CACHE_ROOT": "vllm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
}
"""What is compiled on a node is kept there, not in the home directory, where quotas are small and nodes wait for each
other: the variables that say where, unless they are set already, and the folders below that of the caches."""


def open_to_group(root: Path) -> None:
    """Let the group read a run directory that has just been made."""
    root.chmod(READ_BY_GROUP)  # mkdir does not set the bit that passes the group to new files


def is_open_to_group(root: Path) -> bool:
    """Whether the group may read a run directory."""
    return bool(root.stat().st_mode & stat.S_IRGRP)


def follow_access(root: Path) -> None:
    """Have this process make its files readable by the group, where the run directory is; else change nothing."""
    if is_open_to_group(root):
        os.umask(CLOSED_TO_OTHERS)


def share_as_directory(directory: Path) -> None:
    """Let the group read the files below a directory that it may read: safetensors ignores the umask and writes files
    that only their owner can read.

    A file that the group reads already is left alone: it may be a link to one that belongs to another user.
    """
    if is_open_to_group(directory):
        for file in tree(directory)[1]:
            if not (mode := stat.S_IMODE(file.stat().st_mode)) & stat.S_IRGRP:
                file.chmod(mode | stat.S_IRGRP)


def private_folder(parent: Path, name: str) -> Path:
    """A folder that only this user may enter, which each later call finds again.

    Any user of a node can make a folder, or a link to one, under a name that is known before: what is found under the
    name is used only if it is private. Otherwise a folder with a random end to its name takes its place.

    Args:
        parent: a folder that exists, as that for temporary files.
        name: of the folder.
    """
    path = parent / name
    if (folder := next(filter(is_private, (path, *_others(path))), None)) is None:
        folder = path if _made(path) or is_private(path) else Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    if folder != path:
        log.warning("%s belongs to another user, is a link, or is open to others; %s is used instead", path, folder)
    return folder


def _others(path: Path) -> list[Path]:
    """The folders that have taken the place of this one; none where this user may not list what is beside it."""
    try:
        return sorted(Path(entry) for entry in os.scandir(path.parent) if entry.name.startswith(f"{path.name}-"))
    except PermissionError:
        return []


def _made(path: Path) -> bool:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def is_private(path: Path) -> bool:
    """Whether this user owns a folder, and no other user has any right to it. A link is no folder. Below a folder that
    hands its group on a folder has that bit as well, which gives no right.
    """
    return is_mine(path, lambda mode: stat.S_ISDIR(mode) and stat.S_IMODE(mode) & 0o777 == stat.S_IRWXU)


def is_mine(path: Path, is_wanted: Callable[[int], bool]) -> bool:
    """Whether this user owns what has this path.

    Args:
        path: of a file or folder, which need not be there. A link is not followed.
        is_wanted: says of its mode whether it is what it should be, as ``stat.S_ISREG`` does.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return is_wanted(status.st_mode) and status.st_uid == os.geteuid()


def cache_variables() -> dict[str, str]:
    """The environment variables of a process of this node, by which what it compiles is kept in a private folder."""
    folder = node_caches()
    return {name: str(folder / below) for name, below in CACHES.items()}


def node_caches() -> Path:
    """The private folder of this node for what is compiled there."""
    return private_folder(Path(tempfile.gettempdir()), f"{CACHES_FOLDER}-{os.geteuid()}")
