"""Builds a container image with Apptainer, and writes its checksum beside it. The image appears whole or not at all."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mrt_hpc
from mrt_hpc.attempt.python_look import PythonLook, PythonLookError, look_at_python
from mrt_hpc.backends.slurm.site import Container, checksum_file, checksum_in
from mrt_hpc.errors import Advice, UserError
from mrt_hpc.recipe.find import installed_folders
from mrt_hpc.run.atomic import checksum, write_text

# -- tree --------------------------------------------------------------------------------------------------------------
# The files that a container image of mrt-hpc is built from: those of a checkout, or those that came with the wheel.


OF_CHECKOUT = {"pyproject.toml": "pyproject.toml", "README.md": "README.md", "env": "env", "recipes": "recipes",
               "slurm/sites": "slurm/sites", "containers": "containers"}  # fmt: skip
OF_WHEEL = {"build/pyproject.toml": "pyproject.toml", "build/README.md": "README.md", "build/env": "env",
            "recipes": "recipes", "sites": "slurm/sites", "containers": "containers"}  # fmt: skip
"""Where the files lie, and their places in the tree that an image is built from."""


def build_files() -> tuple[Path, dict[str, str]]:
    """The checkout that the package runs from, or the folder of what was installed with it, and the places of its files
    in the tree of an image.
    """
    checkout = Path(mrt_hpc.__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "containers").is_dir():
        return checkout, OF_CHECKOUT
    for folder in installed_folders():
        if (folder / "build" / "pyproject.toml").is_file():
            return folder, OF_WHEEL
    raise UserError(
        "the files that images are built from are not there",
        where=checkout,
        expected="a checkout, or an installation of the wheel",
        advice="pip install mrt-hpc again, or type the command with the .venv of a checkout",
    )


def make_tree(tree: Path) -> None:
    """Copy the package and the files of :func:`build_files` into an empty folder, which is then like a checkout."""
    root, places = build_files()
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(mrt_hpc.__file__).parent, tree / "mrt_hpc", ignore=without_caches)
    for name, place in places.items():
        source, target = root / name, tree / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=without_caches)
        else:
            shutil.copy(source, target)


KINDS = ("cpu", "cuda", "debian")
"""The definitions of ``containers/``, without their suffix."""
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
"""The end of a name that always means the same image."""
ARGUMENTS = "build-arguments"
"""The definition's arguments, in the tree that an image is built from."""


@dataclass(frozen=True)
class ImageAsked:
    kind: str
    """One of ``KINDS``."""
    image: Path
    """The SIF file."""
    base: str | None = None
    """The image that it is built from: a SIF file, or a name in a registry, with its digest; by default that of the
    definition.
    """
    build_arguments: tuple[str, ...] = ()
    """As ``NAME=VALUE``; they replace those of the definition."""
    binds: tuple[str, ...] = ()
    """Files and folders of this machine that the build sees, as ``SOURCE`` or ``SOURCE:PLACE``: ``/etc/pip.conf`` where
    packages come from a mirror.
    """
    settings: tuple[str, ...] = ()
    """Environment variables of the build, as ``NAME=VALUE``; Apptainer does not pass on those of the shell."""
    executable: str = "apptainer"
    fakeroot: bool = True
    """Whether Apptainer maps this user to root in the image; root itself may do without."""
    any_base: bool = False
    """Whether the name may be without a digest: the registry then decides at each build which image that is."""


def build_image(asked: ImageAsked, show: Callable[[str], None]) -> str:
    """Build an image, and return its SHA-256. ``show`` gets a sentence about each step; Apptainer's own words go to the
    terminal.
    """
    require_apptainer(asked.executable)
    asked.image.parent.mkdir(parents=True, exist_ok=True)
    unfinished = asked.image.absolute().with_name(f".{asked.image.name}.{os.getpid()}.unfinished")
    with tempfile.TemporaryDirectory(prefix="mrt-hpc-image-") as folder:
        make_tree(tree := Path(folder))
        command = build_command(asked, unfinished, tree)
        show(f"running {shlex.join(command)}")
        try:
            done = subprocess.run(command, cwd=tree, check=False)
            if done.returncode or not unfinished.is_file():
                raise _build_error(asked, command, done.returncode)
            digest, sidecar = checksum(unfinished), checksum_file(asked.image)
            sidecar.unlink(missing_ok=True)  # an image without its checksum is complete, a wrong one is not
            unfinished.replace(asked.image)
        finally:
            unfinished.unlink(missing_ok=True)
    write_text(sidecar, f"{digest}  {asked.image.name}\n")
    return digest


def build_command(asked: ImageAsked, target: Path, tree: Path) -> list[str]:
    """The arguments of the definition are written into a file of ``tree``, the folder in which the command is run."""
    options = ["--fakeroot"] if asked.fakeroot else []
    if arguments := [*_own_arguments(asked, tree), *asked.build_arguments]:
        # Not as options, whose values Apptainer splits at commas.
        (tree / ARGUMENTS).write_text("".join(f"{argument}\n" for argument in arguments))
        options += ["--build-arg-file", ARGUMENTS]
    for bind in asked.binds:
        options += ["--bind", _absolute(bind)]
    return [asked.executable, "build", *options, str(target), f"containers/{asked.kind}.def"]


def _own_arguments(asked: ImageAsked, tree: Path) -> list[str]:
    """What the definition needs beside the user's own build arguments; Apptainer takes the last of a name."""
    if asked.kind == "debian":
        lines = (tree / "env" / "debian-mirror").read_text().splitlines()
        return [f"MIRROR={line}" for line in lines if line and not line.startswith("#")]
    arguments = [f"PLACES={' '.join(map(_place, asked.binds))}"] if asked.binds else []
    if asked.settings:
        arguments.append(f"SETTINGS={shlex.join(asked.settings)}")
    return arguments if asked.base is None else [*arguments, *_base_arguments(asked.base, any_base=asked.any_base)]


def _base_arguments(base: str, *, any_base: bool) -> list[str]:
    """A file or folder of this machine, or the name of an image in a registry. It refuses a path where nothing is, and
    a name without a digest.
    """
    path = Path(base)
    if path.exists():
        return ["FROM=localimage", f"BASE={path.absolute()}"]
    if path.suffix == ".sif" or base.startswith(("/", "./", "../")):
        raise UserError("the base image is not there", value=base,
                        expected="a SIF file, or a name as debian@sha256:DIGEST",
                        advice=Advice("mrt-hpc container build debian {base} makes one", base=base))  # fmt: skip
    if not any_base and not DIGEST.search(base):
        raise UserError("the base image has no digest, so another image may have its name tomorrow", value=base,
                        expected=f"a name as {base.rpartition(':')[0] or base}@sha256:DIGEST",
                        advice="skopeo inspect docker://NAME shows the digest; or add --any-base")  # fmt: skip
    return [f"BASE={base}"]


def _place(bind: str) -> str:
    """The place of a file, or, with a slash at the end, of a folder in the build: the definition makes it, as Apptainer
    mounts only on what is there.
    """
    source, _, rest = _absolute(bind).partition(":")
    place = rest.partition(":")[0] or source
    if not Path(source).exists():
        raise UserError("a file for --bind is not there", value=source, expected="a file or folder of this machine",
                        advice="correct the path, or leave out --bind")  # fmt: skip
    if not place.startswith("/") or len(place.split()) != 1:
        raise UserError("a place for --bind cannot be made in the image", value=place,
                        expected="an absolute path without blank space",
                        advice="name the place: --bind PATH:/PLACE")  # fmt: skip
    return f"{place}/" if Path(source).is_dir() else place


def _absolute(bind: str) -> str:
    """A bind whose source is an absolute path: Apptainer runs in another folder."""
    source, colon, rest = bind.partition(":")
    return f"{Path(source).absolute()}{colon}{rest}"


def require_apptainer(executable: str) -> None:
    if shutil.which(executable) is None:
        raise UserError(
            f"the command {executable} was not found",
            expected="Apptainer 1.2 or newer, or SingularityCE 4.0 or newer",
            advice="module avail apptainer, or name it with --executable PATH; where only compute nodes have it, "
            "--on-node --site SITE",
        )


def _build_error(asked: ImageAsked, command: list[str], code: int) -> UserError:
    return UserError(
        f"{asked.executable} build ended with exit code {code}, and its last lines above say why",
        where=shlex.join(command),
        expected="a machine that reaches a registry of images, the package mirrors, and some 15 GB of room in TMPDIR",
        advice="without a registry of images: mrt-hpc container build debian debian.sif, then --base debian.sif; "
        "behind a mirror of Python packages: --bind /etc/pip.conf; with certificates of its own: "
        "--bind /usr/local/share/ca-certificates; "
        "where this user may not build on this machine: --on-node --site SITE",
    )


# -- check -------------------------------------------------------------------------------------------------------------
# Looks into a container image: whether it is the one that was built, and whether it holds what tasks need.


LOOK_S = 300.0
"""The seconds that one look into an image may take: the first import of torch from a shared filesystem is slow."""


@dataclass(frozen=True)
class ImageCheck:
    what: str
    passed: bool
    evidence: str
    remedy: str = ""
    """What to type where it did not pass."""


def check_image(
    container: Container, setup: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> list[ImageCheck]:
    """Check an image by its checksum, and by a look inside, started as a task starts it. ``setup`` and ``environment``
    are those of the site profile; ``setup`` may bring Apptainer.
    """
    if not setup:
        require_apptainer(container.executable)
    image = Path(container.image)
    if not image.is_file():
        build = Advice("mrt-hpc container build cuda {image}", image=image)
        return [ImageCheck("the image", False, f"{image} is not there", build)]
    return [_checksum(image), *_check_inside(container, setup, environment)]


def _checksum(image: Path) -> ImageCheck:
    sidecar, digest = checksum_file(image), checksum(image)
    if not sidecar.is_file():
        return ImageCheck("checksum", True, f"{digest}; {sidecar.name} is not there, so it is compared with nothing")
    expected = checksum_in(sidecar) or "nothing"
    remedy = "" if expected == digest else f"build or copy the image again, with {sidecar.name}"
    return ImageCheck("checksum", expected == digest, f"{digest}, and {expected} in {sidecar.name}", remedy)


def _check_inside(
    container: Container, setup: Sequence[str], environment: Mapping[str, str] | None
) -> Iterator[ImageCheck]:
    image, words = Path(container.image), container.python_words
    try:
        seen = look_at_python(words, setup=setup, environment=environment, importing=True, deadline_s=LOOK_S)
    except PythonLookError as error:
        remedy = "try it on a compute node" if error.timed_out else f"{container.executable} shell {image}"
        yield ImageCheck("start", False, str(error), remedy)
        return
    yield from image_contents(seen, image)


def image_contents(seen: PythonLook, image: Path) -> Iterator[ImageCheck]:
    yield ImageCheck("start", True, f"Python {seen.python}")
    kind = "cpu" if "torch" in seen.packages and seen.cuda is None else "cuda"
    ours, again = mrt_hpc.__version__, Advice("mrt-hpc container build {kind} {image} --force", kind=kind, image=image)
    same = seen.mrt_hpc == ours
    remedy = "" if same else f"{again}, or use the mrt-hpc of the image's version"
    yield ImageCheck("mrt-hpc", same, f"{seen.mrt_hpc or 'not installed'} in the image, {ours} here", remedy)
    yield from (ImageCheck(name, True, version) for name, version in seen.packages.items())
    yield from (ImageCheck(name, False, error, again) for name, error in seen.errors.items())
