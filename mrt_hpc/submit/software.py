"""The software that a run is executed with: versions in its lock, and the container image. A later submission with
other software is shown what that means; nothing is refused, since an upgrade may be what repairs a run.

An image may have tens of gigabytes, so a run remembers its digest with path, size, time of modification and inode of
the file. Where these are the same, the content is trusted to be the same, and is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import mrt_hpc
from mrt_hpc.backends.backend import Site
from mrt_hpc.errors import word
from mrt_hpc.recipe.lock import recorded_versions, versions
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.typed_file import read_if_there

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


@dataclass(frozen=True)
class ImageRecord:
    """The image that tasks were last submitted with."""

    sha256: str
    file: FileState | None = None


def _image(layout: RunLayout, site: Site) -> Iterator[str]:
    before, file = _recorded_image(layout), site.image_file()
    state = None if file is None else FileState.of(file)  # before the digest, so that a later change is noticed
    if before is not None and state is not None and before.file == state:
        return
    image = site.image_digest()
    if image is None:
        return
    if before is not None and before.sha256 != image:
        yield f"the image has changed (sha256 {before.sha256[:12]} before, {image[:12]} now): {HOLDS}"
    if (now := ImageRecord(image, state)) != before:
        write_json(layout.image_lock, asdict(now))


def _recorded_image(layout: RunLayout) -> ImageRecord | None:
    """The image of the last submission; None before the first submission with one.

    Raises:
        UnreadableError: the record is damaged.
    """
    advice = f"rm -r {word(layout.image_lock)}, and the same command again, which writes it"
    return read_if_there(layout.image_lock, ImageRecord, "the record of the image", None, advice=advice)
