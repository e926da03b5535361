"""Looks into a container image: whether it is the one that was built, and whether it holds what tasks need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mrt_hpc
from mrt_hpc.launch.images.build import require_apptainer
from mrt_hpc.launch.python_look import PythonLookError, look_at_python
from mrt_hpc.launch.slurm.site import checksum_file
from mrt_hpc.run.atomic import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mrt_hpc.launch.python_look import PythonLook
    from mrt_hpc.launch.slurm.site import Container

LOOK_S = 300.0
"""The seconds that one look into an image may take: the first import of torch from a shared filesystem is slow."""


@dataclass(frozen=True)
class ImageCheck:
    """One thing that was looked at."""

    what: str
    passed: bool
    evidence: str
    """What was seen."""
    remedy: str = ""
    """What to type where it did not pass."""


def check_image(
    container: Container, setup: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> list[ImageCheck]:
    """Check an image by its checksum, and by a look inside, started as a task starts it.

    Args:
        container: the image and how tasks start it.
        setup: shell lines of the site profile, which may bring Apptainer.
        environment: variables of the site profile.

    Raises:
        UserError: Apptainer is missing, and no line of ``setup`` might bring it.
    """
    if not setup:
        require_apptainer(container.executable)
    image = Path(container.image)
    if not image.is_file():
        return [ImageCheck("the image", False, f"{image} is not there", f"mrt-hpc container build cuda {image}")]
    return [_checksum(image), *_inside(container, setup, environment)]


def _checksum(image: Path) -> ImageCheck:
    told, digest = checksum_file(image), checksum(image)
    if not told.is_file():
        return ImageCheck("checksum", True, f"{digest}; {told.name} is not there, so it is compared with nothing")
    expected = told.read_text().split()[0]
    remedy = "" if expected == digest else f"build or copy the image again, with {told.name}"
    return ImageCheck("checksum", expected == digest, f"{digest}, and {expected} in {told.name}", remedy)


def _inside(container: Container, setup: Sequence[str], environment: Mapping[str, str] | None) -> Iterator[ImageCheck]:
    image, words = Path(container.image), container.python_words
    try:
        seen = look_at_python(words, setup=setup, environment=environment, importing=True, deadline_s=LOOK_S)
    except PythonLookError as error:
        remedy = "try it on a compute node" if error.timed_out else f"{container.executable} shell {image}"
        yield ImageCheck("start", False, str(error), remedy)
        return
    yield from image_contents(seen, image)


def image_contents(seen: PythonLook, image: Path) -> Iterator[ImageCheck]:
    """What the Python of an image must have, compared with what it has."""
    yield ImageCheck("start", True, f"Python {seen.python}")
    kind = "cpu" if "torch" in seen.packages and seen.cuda is None else "cuda"
    ours, again = mrt_hpc.__version__, f"mrt-hpc container build {kind} {image} --force"
    same = seen.mrt_hpc == ours
    remedy = "" if same else f"{again}, or use the mrt-hpc of the image's version"
    yield ImageCheck("mrt-hpc", same, f"{seen.mrt_hpc or 'not installed'} in the image, {ours} here", remedy)
    for name, version in seen.packages.items():
        yield ImageCheck(name, True, version)
    for name, error in seen.errors.items():
        yield ImageCheck(name, False, error, again)
