"""Checks of this machine: the Python and the image of the tasks, scratch, and the limits that jobs inherit."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import mrt_hpc
from mrt_hpc.domains.base import Verifier
from mrt_hpc.domains.verifiers import verifiers_of
from mrt_hpc.errors import word
from mrt_hpc.inference.socket_paths import LONGEST_SOCKET_FOLDER
from mrt_hpc.launch.filesystems import GIB, filesystem, scratch_problems
from mrt_hpc.launch.gpus import OLDEST_DRIVER
from mrt_hpc.launch.python_look import PythonLookError, look_at_python, no_sampling
from mrt_hpc.launch.slurm.doctor.findings import doubtful, fails, not_checked, ok
from mrt_hpc.launch.slurm.doctor.node_half import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mrt_hpc.launch.slurm.doctor.findings import Result
    from mrt_hpc.launch.slurm.doctor.situation import Situation

IMAGE_INSTEAD = "or build an image, `mrt-hpc container build {kind} mrt-hpc-{kind}.sif`, and name it as container.image"
LEAST_OPEN_FILES = 4096
LEAST_PROCESSES = 1024
LEAST_BYTES, LEAST_FILES = GIB, 10_000
"""What the filesystem of the environment should have free."""


def python(situation: Situation) -> Iterator[Result]:
    """The Python that runs the tasks is here, has this version of mrt-hpc and the training stack."""
    site = situation.slurm
    if site is not None and site.container is not None:
        return
    path = sys.executable if site is None or site.python is None else site.python
    if not Path(path).exists():
        yield fails(
            f"site profile: python: {path} does not exist here",
            "set python in the site profile to the Python of an environment on the shared filesystem (env/setup "
            "cuda), or to null for the Python that runs mrt-hpc",
        )
        return
    kind = _kind(situation)
    yield from _asked(
        situation,
        path,
        [path],
        f"run `env/setup {kind}` of a checkout on the shared filesystem and name its .venv/bin/python as python in the "
        f"site profile; {IMAGE_INSTEAD.format(kind=kind)}",
    )


def image(situation: Situation) -> Iterator[Result]:
    """The image of the profile and Apptainer are here, and the Python in it has this version of mrt-hpc."""
    site = situation.slurm
    if site is None or site.container is None:
        return
    container = site.container
    if not Path(container.image).exists():
        yield fails(
            f"site profile: container.image: {container.image} does not exist",
            f"mrt-hpc container build {_kind(situation)} {container.image}; or correct container.image",
        )
        return
    if not os.access(container.image, os.R_OK):
        yield fails(f"{container.image} cannot be read by you", f"chmod +r {word(Path(container.image))}, as its owner")
        return
    if shutil.which(container.executable) is None:
        yield doubtful(
            f"{container.executable} is not in PATH here; the image was not tried",
            "--on-node shows whether compute nodes have it; a `module load` belongs into setup of the site profile",
        )
        return
    remedy = f"mrt-hpc container build {_kind(situation)} {container.image} --force, with this version of mrt-hpc"
    yield from _asked(situation, container.image, container.python_words, remedy)


def _kind(situation: Situation) -> str:
    """The locked environment that the jobs of this recipe and site need."""
    return "cuda" if situation.uses_gpus else "cpu"


def _asked(situation: Situation, name: str, words: list[str], remedy: str) -> Iterator[Result]:
    """Start a Python as a task would, and compare what it has."""
    site = situation.slurm
    setup = () if site is None else site.setup
    try:
        has = look_at_python(words, setup=setup, environment=None if site is None else site.environment)
    except PythonLookError as error:
        if error.timed_out:
            yield doubtful(f"{name}: {error}", "try `mrt-hpc doctor --on-node`")
            return
        yield fails(
            f"{name} cannot be started{' after the lines of setup' if setup else ''}: {error}",
            f"{'correct setup in the site profile; or ' if setup else ''}{remedy}",
        )
        return
    said = f"{name}: Python {has.python}, mrt-hpc {has.mrt_hpc or 'missing'}"
    if has.mrt_hpc != mrt_hpc.__version__:
        yield fails(f"{said}; this command has mrt-hpc {mrt_hpc.__version__}", remedy)
    elif has.errors:
        yield fails(f"{said}, without {', '.join(has.errors)}, which tasks need", remedy)
    elif has.needs_gpus and (recipe := situation.recipe) and (refusal := no_sampling(recipe, lambda: name)) is not None:
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


def scratch(situation: Situation) -> Iterator[Result]:
    """The folder for sockets and temporary files is short enough for a socket, and absolute. Where tasks run here, it
    does what they do in it.
    """
    site = situation.slurm
    if site is None:
        yield from scratch_results("this machine", scratch_problems(Path(tempfile.gettempdir()), os.environ))
    if site is None or site.scratch is None:
        return
    path = site.scratch
    for name, value in (("SLURM_JOB_ID", "12345678"), ("SLURM_ARRAY_TASK_ID", "100")):
        path = path.replace(f"${{{name}}}", value).replace(f"${name}", value)
    path = os.path.expandvars(path)
    if not path.startswith(("/", "$")):
        yield fails(
            f"site profile: scratch: {site.scratch} is no absolute path", "set scratch to a path that begins with /"
        )
    elif len(path) > LONGEST_SOCKET_FOLDER:
        yield doubtful(
            f"site profile: scratch: {path} has {len(path)} characters, more than the {LONGEST_SOCKET_FOLDER} that "
            "leave room for a socket: servers put their sockets into /tmp instead",
            "choose a shorter scratch if nodes have no /tmp of their own",
        )
    else:
        yield ok(f"site profile: scratch: {path} has {len(path)} of at most {LONGEST_SOCKET_FOLDER} characters")


def scratch_results(node: str, problems: Mapping[str, str]) -> Iterator[Result]:
    """What a node's folder for temporary files does not do.

    Args:
        node: the node's name.
        problems: by operation; empty text where it works.
    """
    remedy = (
        "set scratch in the site profile (on this machine TMPDIR) to a folder on a disk of each node that takes locks "
        "and sockets and is not mounted noexec; where a variable is named, set that one in environment, or remove it"
    )
    broken = {name: problem for name, problem in problems.items() if problem}
    for name, problem in broken.items():
        yield fails(f"on {node}: {problem}", remedy, about=f"({name})")
    if problems and not broken:
        yield ok(f"on {node}: {', '.join(problems)}", about="(what tasks do there)")


def environment(situation: Situation) -> Iterator[Result]:
    """The filesystem of the Python that runs the tasks has some room: one that is full ends more than installations."""
    site = situation.slurm
    if site is not None and site.container is not None:
        return
    found = filesystem(Path(sys.executable if site is None or site.python is None else site.python).parent)
    few = found.writable_files is not None and found.writable_files < LEAST_FILES
    if few or found.writable_bytes < LEAST_BYTES:
        remedy = "make room: `uv cache clean` removes uv's cache, which may be as large as the environment"
        yield doubtful(found.told(), f"{remedy}; env/setup says how much an environment needs")
    else:
        yield ok(found.told())


def verifiers(situation: Situation) -> Iterator[Result]:
    """Verifiers that need something of the machine find it here, where tasks run here."""
    for verifier in [] if situation.recipe is None else verifiers_of(situation.recipe):
        if type(verifier).refusal is Verifier.refusal:
            continue
        if situation.slurm is not None:
            yield not_checked("answers are judged on compute nodes", "add --on-node", about=verifier.type)
        elif (refusal := verifier.refusal()) is not None:
            yield fails(refusal.evidence, refusal.advice or "give it what it lacks", about=verifier.type)
        else:
            yield ok("answers can be judged here", about=verifier.type)


def inherited_limits(situation: Situation) -> Iterator[Result]:
    """No limit of this shell (ulimit), which jobs inherit, ends a task."""
    settings = None if situation.cluster is None else situation.cluster.settings
    if situation.slurm is not None and settings is not None and not settings.propagates:
        yield ok("scontrol show config: PropagateResourceLimits = NONE: jobs do not inherit the limits of this shell")
        return
    found = list(limit_results({name: resource.getrlimit(number) for name, number in LIMITS.items()}))
    yield from found or [ok("ulimit: no limit of this shell, which jobs inherit, is too low")]


def limit_results(limits: dict[str, tuple[int, int]]) -> Iterator[Result]:
    """The limits that are too low.

    Args:
        limits: soft and hard limit by name; -1 for none.
    """
    where = "in ~/.bashrc or before mrt-hpc submit, or `sbatch: {propagate: NONE}` in the site profile"
    if limits["cpu"][0] != resource.RLIM_INFINITY:
        yield fails(
            f"ulimit -t: {limits['cpu'][0]} s of CPU time: tasks are killed after that", f"ulimit -t unlimited {where}"
        )
    if limits["as"][0] != resource.RLIM_INFINITY:
        yield fails(
            f"ulimit -v: {limits['as'][0] // 1024} KiB of address space: CUDA and vLLM reserve far more",
            f"ulimit -v unlimited {where}",
        )
    if limits["fsize"][0] != resource.RLIM_INFINITY:
        yield fails(f"ulimit -f: files of {limits['fsize'][0]} bytes at most", f"ulimit -f unlimited {where}")
    if 0 <= limits["nofile"][1] < LEAST_OPEN_FILES:
        yield doubtful(f"ulimit -Hn: {limits['nofile'][1]} open files", f"ulimit -n {LEAST_OPEN_FILES} {where}")
    if 0 <= limits["nproc"][0] < LEAST_PROCESSES:
        yield doubtful(f"ulimit -u: {limits['nproc'][0]} processes and threads", f"ulimit -u {LEAST_PROCESSES} {where}")


def cuda_here(situation: Situation) -> Iterator[Result]:
    """Whether GPUs were looked at: that takes a job on a node."""
    if situation.slurm is not None and situation.uses_gpus and not situation.answers:
        yield not_checked("drivers and GPUs are on compute nodes", "add --on-node")
