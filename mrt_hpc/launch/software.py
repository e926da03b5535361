"""The software that a run is executed with: versions in its lock, and the container image. A later submission with
other software is told what that means; nothing is refused, since an upgrade may be what mends a run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import mrt_hpc
from mrt_hpc.recipe.lock import recorded_versions, versions
from mrt_hpc.run.atomic import write_json

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def _image(layout: RunLayout, site: Site) -> Iterator[str]:
    image = site.image_digest()
    if image is None:
        return
    before = json.loads(layout.image_lock.read_text()) if layout.image_lock.is_file() else None
    if before is not None and before["sha256"] != image:
        yield f"the image has changed (sha256 {before['sha256'][:12]} before, {image[:12]} now): {HOLDS}"
    if before is None or before["sha256"] != image:
        write_json(layout.image_lock, {"sha256": image})
