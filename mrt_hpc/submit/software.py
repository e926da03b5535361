"""The software that a run is executed with: versions in its lock, and the container image. A change is explained and
not refused, since an upgrade may be what repairs a run.

An image may have tens of gigabytes, so a run remembers its digest with path, size, time of modification and inode of
the file, and reads it only where these differ.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import mrt_hpc
from mrt_hpc.backends.backend import Site
from mrt_hpc.errors import Advice
from mrt_hpc.recipe.lock import recorded_versions, versions
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.typed_file import read_if_there

HOLDS = (
    "finished results stay, the recipe keeps the values that the run began with, and tasks that start from now on use "
    "the new one"
)


def noticed_changes(layout: RunLayout, site: Site) -> Iterator[str]:
    """A sentence for each change of software since the run began; the first submission with an image records it."""
    before = recorded_versions(layout.recipe_lock)
    now = {"mrt-hpc": mrt_hpc.__version__, **versions()}
    for name in sorted(before.keys() & now.keys()):
        if before[name] != now[name]:
            yield f"the run began with {name} {before[name]}, and this is {now[name]}: {HOLDS}"
    yield from _image(layout, site)


@dataclass(frozen=True)
class FileState:
    """A file's metadata; where unchanged, its content is trusted to be."""

    path: str
    size: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(path: Path) -> "FileState":
        status = path.stat()
        return FileState(str(path.absolute()), status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True)
class ImageRecord:
    sha256: str
    file: FileState | None = None


def _image(layout: RunLayout, site: Site) -> Iterator[str]:
    lock, file = layout.image_lock, site.image_file()
    advice = Advice("rm -r {lock}, and the same command again, which writes it", lock=lock)
    before = read_if_there(lock, ImageRecord, "the record of the image", None, advice=advice)
    state = None if file is None else FileState.of(file)  # before the digest, so that a later change is noticed
    if before is not None and state is not None and before.file == state:
        return
    if (image := site.image_digest()) is None:
        return
    if before is not None and before.sha256 != image:
        yield f"the image has changed (sha256 {before.sha256[:12]} before, {image[:12]} now): {HOLDS}"
    if (now := ImageRecord(image, state)) != before:
        write_json(lock, asdict(now))
