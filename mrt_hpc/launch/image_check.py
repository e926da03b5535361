"""Looks into a container image: whether it is the one that was built, and whether it holds what tasks need."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mrt_hpc
from mrt_hpc.launch.image_build import checksum_file, require_apptainer
from mrt_hpc.run.atomic import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mrt_hpc.launch.slurm.site import Container

LOOK_S = 300.0
"""The seconds that one look into an image may take: the first import of torch from a shared filesystem is slow."""
MODULES = ("torch", "transformers", "deepspeed", "vllm", "math_verify")
"""What a task imports."""
LOOK = """
import importlib, json, sys
found, errors = {}, {}
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        found[name] = str(getattr(module, "__version__", "installed"))
    except Exception as error:
        errors[name] = repr(error)
print(json.dumps({"found": found, "errors": errors, "python": sys.version.split()[0]}))
"""


@dataclass(frozen=True)
class ImageCheck:
    """One thing that was looked at."""

    what: str
    passed: bool
    evidence: str
    """What was seen."""
    remedy: str = ""
    """What to type where it did not pass."""


def check_image(container: Container, image: Path) -> list[ImageCheck]:
    """Check an image by its checksum, and by a look inside.

    Args:
        container: how tasks start it.
        image: the SIF file.

    Raises:
        UserError: Apptainer is missing.
    """
    require_apptainer(container.executable)
    if not image.is_file():
        return [ImageCheck("the image", False, f"{image} is not there", f"mrt-hpc container build cuda {image}")]
    return [_checksum(image), *_inside(container, image)]


def _checksum(image: Path) -> ImageCheck:
    told, digest = checksum_file(image), checksum(image)
    if not told.is_file():
        return ImageCheck("checksum", True, f"{digest}; {told.name} is not there, so it is compared with nothing")
    expected = told.read_text().split()[0]
    remedy = "" if expected == digest else f"build or copy the image again, with {told.name}"
    return ImageCheck("checksum", expected == digest, f"{digest}, and {expected} in {told.name}", remedy)


def _inside(container: Container, image: Path) -> Iterator[ImageCheck]:
    binds = [word for bind in container.binds for word in ("--bind", bind)]
    command = [container.executable, "exec", *binds, str(image), container.python, "-c", LOOK, "mrt_hpc", *MODULES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LOOK_S)
    except subprocess.TimeoutExpired:
        yield ImageCheck("start", False, f"no answer within {LOOK_S:.0f} s", "try it on a compute node")
        return
    if done.returncode or not done.stdout.strip():
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        yield ImageCheck("start", False, last, f"{container.executable} shell {image}")
        return
    yield from _told(json.loads(done.stdout.splitlines()[-1]), image)


def _told(seen: dict[str, Any], image: Path) -> Iterator[ImageCheck]:
    """What Python saw in the image."""
    yield ImageCheck("start", True, f"Python {seen['python']}")
    version, ours = seen["found"].get("mrt_hpc"), mrt_hpc.__version__
    same = version == ours
    remedy = "" if same else f"mrt-hpc container build cuda {image} --force, or use the mrt-hpc of the image's version"
    yield ImageCheck("mrt-hpc", same, f"{version or 'not installed'} in the image, {ours} here", remedy)
    for name in MODULES:
        there = name in seen["found"]
        evidence = seen["found"][name] if there else seen["errors"][name]
        yield ImageCheck(name, there, evidence, "" if there else f"mrt-hpc container build cuda {image} --force")
