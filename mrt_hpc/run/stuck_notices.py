"""The notices that a run is stuck: a file for each cause, so that one of many tasks and attempts notifies.

The file is a link to a small file beside it that bears the name of the job: some filesystems link within one folder
only. Of several tasks one succeeds in making it, and it takes neither a block nor an inode, of which a full disk has
none.
"""

from __future__ import annotations

import os
from pathlib import Path

from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.retries import list_directory
from mrt_hpc.run.typed_file import file_bytes

FULL_DISK = "full_disk"
"""The cause that ends without a submission: the disk is full."""
SIGNATURE = "by-"
"""The beginning of the names of files that bear the name of a job. The one without a name, which is made with the run,
serves jobs for whose own file there was no room.
"""


def sign(layout: RunLayout, job: str) -> None:
    """Make the file that bears the name of a job, while there is room for it.

    Raises:
        OSError: there is none.
    """
    if not (path := _signature(layout, job)).is_file():
        write_text(path, f"{job}\n")


def is_first_notice(layout: RunLayout, job: str, cause: str) -> bool:
    """Record that a cause is notified, and return whether it was not before.

    Args:
        layout: the run directory.
        job: the name of the job for which a task notifies.
        cause: the name of the file that is made.

    Raises:
        OSError: nothing could be recorded.
    """
    signature = _signature(layout, job)
    source = signature if signature.is_file() else _signature(layout, "")
    try:
        os.link(source, layout.notices / cause)
    except FileExistsError:
        return False
    return True


def forget(layout: RunLayout, cause: str) -> None:
    """Forget that a cause was notified, as the user could not be reached.

    Raises:
        OSError: the directory cannot be changed.
    """
    (layout.notices / cause).unlink(missing_ok=True)


def take_back(layout: RunLayout, job: str, cause: str) -> None:
    """Forget that a cause was notified, if a task of this job has done it: a later one is notified again.

    Raises:
        OSError: the directory cannot be read or changed.
    """
    path = layout.notices / cause
    try:
        if file_bytes(path) == f"{job}\n".encode():
            path.unlink(missing_ok=True)
    except (FileNotFoundError, ValueError):
        return


def forget_notices(layout: RunLayout) -> None:
    """Forget all notices: a person has looked at the run, and submits it again. The signatures of jobs stay, as
    their tasks may run.
    """
    for path in list_directory(layout.notices):
        if path.is_file() and not path.name.startswith(SIGNATURE):
            path.unlink(missing_ok=True)


def _signature(layout: RunLayout, job: str) -> Path:
    return layout.notices / f"{SIGNATURE}{job}"
