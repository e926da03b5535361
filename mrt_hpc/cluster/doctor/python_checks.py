"""Checks of the Python and the image of the tasks: both have this version of mrt-hpc and what it needs."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import mrt_hpc
from mrt_hpc.attempt.gpus import OLDEST_DRIVER
from mrt_hpc.attempt.python_look import PythonLookError, look_at_python, needs_gpus, no_sampling
from mrt_hpc.cluster.doctor.checks import CheckResult, doubtful, fails, not_checked, ok
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.errors import Advice, UserError, word

IMAGE_INSTEAD = "or build an image, `mrt-hpc container build {kind} mrt-hpc-{kind}.sif`, and name it as container.image"


def python(situation: Situation) -> Iterator[CheckResult]:
    """The Python of the tasks is here, with this version of mrt-hpc and the training stack."""
    site = situation.slurm
    if site is not None and site.container is not None:
        return
    path = sys.executable if site is None or site.python is None else site.python
    if (others := _other_machines(situation)) and site is not None:
        seen = f"scontrol show node: nodes are {', '.join(others)}, and this machine is {platform.machine()}"
        if site.python is None:
            remedy = "set python in the site profile to a Python for those nodes, made by env/setup on one of them"
            instead = IMAGE_INSTEAD.format(kind=_kind(situation))
            yield fails(f"{seen}: tasks would run with the Python of this command", f"{remedy}; {instead}")
        else:
            yield not_checked(f"{seen}: {path} cannot be tried here", "add --on-node")
        return
    if not Path(path).exists():
        yield fails(
            f"site profile: python: {path} does not exist here",
            "set python in the site profile to the Python of an environment on the shared filesystem (env/setup "
            "cuda), or to null for the Python that runs mrt-hpc",
        )
        return
    remedy = (
        f"run `env/setup {(kind := _kind(situation))}` of a checkout on the shared filesystem and name its "
        f".venv/bin/python as python in the site profile; {IMAGE_INSTEAD.format(kind=kind)}"
    )
    yield from _check_python(situation, path, [path], remedy)


def _other_machines(situation: Situation) -> list[str]:
    """Architectures of the profile's partitions, where none is this machine's."""
    of_nodes = {name for kind in situation.kinds for one in situation.partitions(kind) for name in one.architectures}
    return [] if platform.machine() in of_nodes else sorted(of_nodes)


def image(situation: Situation) -> Iterator[CheckResult]:
    """The profile's image and Apptainer are here, and the image has this version of mrt-hpc."""
    site = situation.slurm
    if site is None or site.container is None:
        return
    container = site.container
    build = Advice("mrt-hpc container build {kind} {image}", kind=_kind(situation), image=container.image)
    if container.is_of_srun:
        yield not_checked(f"srun starts {container.image}, so it cannot be tried here", "add --on-node")
        return
    if not container.command and not Path(container.image).exists():
        remedy = Advice("{build}; or correct container.image", build=build)
        yield fails(f"site profile: container.image: {container.image} does not exist", remedy)
        return
    if not container.command and not os.access(container.image, os.R_OK):
        yield fails(f"{container.image} cannot be read by you", f"chmod +r {word(Path(container.image))}, as its owner")
        return
    if shutil.which(tool := container.words("exec")[0]) is None:
        yield doubtful(
            f"{tool} is not in PATH here; the image was not tried",
            "--on-node shows whether compute nodes have it; a `module load` belongs into setup of the site profile",
        )
        return
    remedy = Advice("{build} --force, with this version of mrt-hpc", build=build)
    yield from _check_python(situation, container.image, container.python_words, remedy)


def _kind(situation: Situation) -> str:
    return "cuda" if situation.uses_gpus else "cpu"


def _check_python(situation: Situation, name: str, words: list[str], remedy: str) -> Iterator[CheckResult]:
    """Start a Python as a task would, and compare."""
    site = situation.slurm
    setup = () if site is None else site.setup
    try:
        if site is not None:
            site.refuse_to_run_here()
        has = look_at_python(words, setup=setup, environment=None if site is None else site.task_environment)
    except UserError as error:
        yield not_checked(f"{name}: {error.evidence}", str(error.advice))
        return
    except PythonLookError as error:
        after, correct = (" after the lines of setup", "correct setup in the site profile; or ") if setup else ("", "")
        late = doubtful(f"{name}: {error}", "try `mrt-hpc doctor --on-node`")
        yield late if error.timed_out else fails(f"{name} cannot be started{after}: {error}", f"{correct}{remedy}")
        return
    said = f"{name}: Python {has.python}, mrt-hpc {has.mrt_hpc or 'missing'}"
    if has.failed_setup:
        yield doubtful(
            f"a line of setup failed here, and jobs go on without what it does: {has.failed_setup}",
            "correct setup in the site profile; where only compute nodes have what it loads, --on-node shows it",
            about="(setup)",
        )
    for package, file in has.strangers.items():
        yield doubtful(
            f"{name}: tasks would take {package} from {file}, which is not of this environment (PYTHONPATH, ~/.local)",
            "unset PYTHONPATH in the shell and in what setup loads; or environment: {PYTHONPATH: '', PYTHONNOUSERSITE: "
            "'1'} in the site profile",
            about=f"({package})",
        )
    if has.mrt_hpc != mrt_hpc.__version__:
        yield fails(f"{said}; this command has mrt-hpc {mrt_hpc.__version__}", remedy)
    elif has.errors:
        yield fails(f"{said}, without {', '.join(has.errors)}, which tasks need", remedy)
    elif needs_gpus(has.vllm) and situation.recipe and (refusal := no_sampling(situation.recipe, lambda: name)):
        yield fails(refusal.evidence, refusal.advice or remedy)
    elif situation.uses_gpus and has.cuda is None:
        result = fails if situation.recipe is not None else doubtful
        yield result(f"{said}; its torch is a build without CUDA, and jobs ask for GPUs", remedy)
    else:
        yield ok(f"{said}{_cuda(has.cuda)}")


def _cuda(version: str | None) -> str:
    if version is None:
        return ", torch without CUDA"
    oldest = OLDEST_DRIVER.get(int(version.partition(".")[0]))
    return f", torch for CUDA {version}" + (f", which needs driver {oldest} or newer" if oldest else "")
