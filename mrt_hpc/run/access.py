"""Sets who may read a run: its owner alone, or the owner's group as well. The mode of the run directory shows which.
Also who may connect to the processes of one node.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from mrt_hpc.run.atomic import tree

if TYPE_CHECKING:
    from pathlib import Path

READ_BY_GROUP = stat.S_ISGID | stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP
"""Mode of a run directory that the group reads; what is made in it belongs to the same group."""
CLOSED_TO_OTHERS = 0o027
"""Umask of the processes that write in such a directory: the group reads, and others do neither."""

ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
"""The environment of processes that compute together on one node: gloo and NCCL listen on the loopback address only,
whatever a site has set for several nodes.
"""


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
