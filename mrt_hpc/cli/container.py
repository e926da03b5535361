"""``mrt-hpc container``: build, check and enter the container images of tasks."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mrt_hpc.cli import options
from mrt_hpc.cli.terminal import Terminal, echo, table_of
from mrt_hpc.errors import Advice, ExitCode, UserError
from mrt_hpc.recipe.find import absolute

if TYPE_CHECKING:
    from mrt_hpc.backends.slurm.site import Container, SlurmSite


@click.group(short_help="Build, check and enter container images.")
def container() -> None:
    """Apptainer images in which the tasks of a run start, for nodes whose own system is too old or differs.

    \b
    Examples:
      mrt-hpc container build cuda images/mrt-hpc-cuda.sif
      mrt-hpc container check images/mrt-hpc-cuda.sif
      mrt-hpc container shell images/mrt-hpc-cuda.sif
    """


CPUS, MEMORY_GIB, MINUTES = 4, 16, 120
"""Of a build on a compute node: installing the environment and compressing the image take most of it."""


executable = click.option("--executable", default="apptainer", show_default=True, help="The command of Apptainer.")


@container.command(short_help="Build an image.")
@click.argument("kind", type=click.Choice(["cpu", "cuda", "debian"]))
@click.argument("image", type=options.FILE)
@click.option(
    "--base",
    metavar="IMAGE",
    help="Build from this image of Debian or Ubuntu: a SIF file, or a name with its digest in a registry.",
)
@click.option("--any-base", is_flag=True, help="Take a --base without a digest, as debian:12: whatever that is today.")
@click.option(
    "--build-arg", "build_arguments", multiple=True, metavar="NAME=VALUE", help="As in MIRROR=URL. Repeatable."
)
@click.option(
    "--bind",
    "binds",
    multiple=True,
    metavar="PATH[:PLACE]",
    help="A file or folder that the build sees, as /etc/pip.conf. Repeatable.",
)
@click.option(
    "--env",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An environment variable of the build, as UV_DEFAULT_INDEX=URL. The image keeps its value. Repeatable.",
)
@click.option("--fakeroot/--no-fakeroot", default=True, show_default=True, help="Build without being root.")
@click.option("--force", is_flag=True, help="Replace IMAGE if it is there.")
@click.option("--on-node", is_flag=True, help="Build on a compute node of the site, where the login node forbids it.")
@options.site
@executable
def build(image: Path, force: bool, on_node: bool, site: str | None, **asked: Any) -> None:
    """Build IMAGE: the locked environment with mrt-hpc for nodes without GPUs (cpu) or with NVIDIA GPUs (cuda), or
    Debian alone (debian), from which the others can be built where no registry of images can be reached.

    The checksum goes to IMAGE.sha256. The image is there when the build has succeeded, and not before.

    \b
    Examples:
      mrt-hpc container build cuda /shared/me/mrt-hpc-cuda.sif
      mrt-hpc container build cuda /shared/me/mrt-hpc-cuda.sif --on-node
      mrt-hpc container build cpu cpu.sif --base registry.example.org/debian@sha256:DIGEST --bind /etc/pip.conf
      mrt-hpc container build debian debian.sif
      mrt-hpc container build cpu cpu.sif --base debian.sif
    """
    from mrt_hpc.images import ImageAsked, build_image

    if image.exists() and not force:
        raise UserError("the image file exists already", value=str(image), advice="--force replaces it")
    if on_node:
        _build_on_node(site, sys.argv[1:])
        return
    wanted = ImageAsked(image=absolute(image), **asked)
    echo(f"{image}: sha256 {build_image(wanted, partial(echo, err=True))}")
    if wanted.kind == "debian":
        then = Advice("mrt-hpc container build cuda mrt-hpc-cuda.sif --base {image}", image=image)
    else:
        advice = "mrt-hpc container check {image}, and container: {{image: {absolute}}} in the site profile"
        then = Advice(advice, image=image, absolute=absolute(image))
    echo(f"next: {then}")


def _build_on_node(site: str | None, arguments: list[str]) -> None:
    """By srun, whose output comes to this terminal."""

    from mrt_hpc.backends.sites import find_site
    from mrt_hpc.backends.slurm.site import require_slurm

    profile = require_slurm(find_site(site))
    profile.refuse_to_run_here()
    if shutil.which("srun") is None:
        raise UserError("srun was not found", expected="a login node of the cluster", advice="leave out --on-node")
    command = srun_command(profile, [word for word in arguments if word != "--on-node"])
    if code := subprocess.run(command, check=False).returncode:
        click.get_current_context().exit(code)


@container.command(short_help="Check an image.")
@click.argument("image", type=options.FILE, required=False)
@options.site
@executable
def check(image: Path | None, site: str | None, executable: str) -> None:
    """Check IMAGE, or that of a site profile: its checksum, the mrt-hpc and the packages in it. The exit status is 0 if
    everything passed, and 2 otherwise.

    \b
    Examples:
      mrt-hpc container check
      mrt-hpc container check mrt-hpc-cuda.sif
    """
    from mrt_hpc.images import check_image

    profile, how = _container(image, site, executable)
    results = check_image(how) if profile is None else check_image(how, profile.setup, profile.environment)
    table = table_of(how.image, "what", "", "seen", "what to type")
    for result in results:
        table.add_row(result.what, "ok" if result.passed else "fails", result.evidence, result.remedy)
    Terminal(sys.stdout).print(table)
    if not all(result.passed for result in results):
        click.get_current_context().exit(int(ExitCode.FATAL))


@container.command(short_help="Open a shell in an image.")
@click.argument("image", type=options.FILE, required=False)
@options.site
@executable
def shell(image: Path | None, site: str | None, executable: str) -> None:
    """Open a shell in IMAGE, or in that of a site profile, with its folders bound as for a task.

    \b
    Examples:
      mrt-hpc container shell mrt-hpc-cuda.sif
    """

    from mrt_hpc.images import require_apptainer

    _, how = _container(image, site, executable)
    require_apptainer(how.executable)
    os.execvp(how.executable, how.words("shell", str(Path.cwd()), gpus=Path("/proc/driver/nvidia").is_dir()))


def _container(image: Path | None, site: str | None, executable: str) -> "tuple[SlurmSite | None, Container]":
    """The site profile that is named, or the user's default where no image is named either, unless that is no cluster;
    and the image of the command, or of the profile.
    """
    from mrt_hpc.backends.sites import find_site
    from mrt_hpc.backends.slurm.site import Container, SlurmSite, require_slurm

    profile = None
    if site is not None:
        profile = require_slurm(find_site(site))
        profile.refuse_to_run_here()
    elif image is None and isinstance(default := find_site(None), SlurmSite):
        profile = default
    if image is not None:
        return profile, Container(image=str(absolute(image)), executable=executable)
    kept = None if profile is None else profile.container
    if kept is None:
        expected = "an image, or a site profile with container.image"
        raise UserError("no image is named", expected=expected, advice="mrt-hpc container check IMAGE")
    if kept.command:
        raise UserError(
            "this site profile starts its image with words of its own, and this command is for images of Apptainer",
            value=" ".join(kept.command),
            where="container.command",
            advice="mrt-hpc doctor --on-node, which looks into the image on a node",
        )
    return profile, kept


def srun_command(site: "SlurmSite", arguments: Sequence[str]) -> list[str]:
    """Runs ``mrt-hpc`` with these arguments, without ``--on-node``, after the site's setup lines."""
    from mrt_hpc.backends.slurm.site import MemoryRequest, option_word

    minutes = min(MINUTES, site.max_time_minutes or MINUTES)
    options = [option_word(name, value) for name, value in site.options("cpu").items()]
    memory = {
        MemoryRequest.MEM: [f"--mem={MEMORY_GIB}G"],
        MemoryRequest.MEM_PER_CPU: [f"--mem-per-cpu={ceil(MEMORY_GIB / CPUS)}G"],
        MemoryRequest.NONE: [],
    }[site.memory_request]
    python = shlex.join([site.python or sys.executable, "-m", "mrt_hpc", *arguments])
    script = "\n".join([*site.setup, "export PYTHONSAFEPATH=1", f"exec {python}"])
    return ["srun", *options, *memory, "--ntasks=1", f"--cpus-per-task={CPUS}", f"--time={minutes}",
            "--job-name=mrt-hpc-container", "bash", "-c", script]  # fmt: skip
