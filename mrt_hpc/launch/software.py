"""The software that a run is executed with: versions in its lock, and the container image. A later submission with
other software is told what that means; nothing is refused, since an upgrade may be what repairs a run.

An image may have tens of gigabytes, so a run remembers its digest with path, size, time of modification and inode of
the file. Where these are the same, the content is trusted to be the same, and is not read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import mrt_hpc
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.lock import recorded_versions, versions
from mrt_hpc.run.atomic import write_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mrt_hpc.launch.backend import Site
    from mrt_hpc.run.layout import RunLayout

HOLDS = (
    "finished results stay, the recipe keeps the values that the run began with, and tasks that start from now on use "
    "the new one"
)


def noticed_changes(layout: RunLayout, site: Site) -> Iterator[str]:
    """A sentence for each part of the software that has changed since the run began; an image is recorded at the first
    submission with one.

    Args:
        layout: the run directory, which this process holds.
        site: of the submission.
    """
    yield from _versions(layout)
    yield from _image(layout, site)


def _versions(layout: RunLayout) -> Iterator[str]:
    before = recorded_versions(layout.recipe_lock)
    now = {"mrt-hpc": mrt_hpc.__version__, **versions()}
    for name in sorted(before.keys() & now.keys()):
        if before[name] != now[name]:
            yield f"the run began with {name} {before[name]}, and this is {now[name]}: {HOLDS}"


@dataclass(frozen=True)
class FileState:
    """The metadata of a file; where they are the same at two times, its content is trusted to be the same."""

    path: str
    size: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(path: Path) -> FileState:
        """The metadata of a file that is there."""
        status = path.stat()
        return FileState(str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino)


def _image(layout: RunLayout, site: Site) -> Iterator[str]:
    before, file = _recorded_image(layout), site.image_file()
    state = None if file is None else asdict(FileState.of(file))  # before the digest, so that a later change is noticed
    if state is not None and before.get("file") == state:
        return
    image = site.image_digest()
    if image is None:
        return
    if before and before["sha256"] != image:
        yield f"the image has changed (sha256 {before['sha256'][:12]} before, {image[:12]} now): {HOLDS}"
    if (now := {"sha256": image, "file": state}) != before:
        write_json(layout.image_lock, now)


def _recorded_image(layout: RunLayout) -> dict[str, Any]:
    """``sha256`` of the image of the last submission, and the state of its ``file``, which records of earlier versions
    lack; empty before the first submission with an image.

    Raises:
        UserError: the record is damaged.
    """
    try:
        content: dict[str, Any] = json.loads(layout.image_lock.read_text())
        return {"sha256": str(content["sha256"]), "file": content.get("file")}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"the record of the image cannot be read: {error}",
            where=layout.image_lock,
            expected="the file that `mrt-hpc submit` wrote",
            advice=f"rm {layout.image_lock}, and the same command again, which writes it",
        ) from error
