"""The wheel with its declared base dependencies, alone in an environment, runs every command that a login node does: on
the oldest and the newest Python of the locks that this machine has.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from install_support import REPOSITORY, UV, require_registry, shell
from tables import tables

from mrt_hpc.analysis.measures import IterationMetrics, Phase
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.recipe.lock import look_at_lock
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.layout import RunLayout

OLDEST, *_, NEWEST = shell(". env/common.sh; echo $PYTHONS").split()
COMMANDS = """
plan submit status logs cancel report compare fields data analyze runs explain init doctor container model
recipes
"""
RECIPES = ("recipes/quickstart.yaml", "recipes/mrt_online.yaml", "recipes/backtracking.yaml")
HEAVY = "torch, transformers, vllm, deepspeed, math_verify, httpx, wandb, ray"
SLURM_PROGRAMS: dict[str, str] = tables("login_node")["slurm_programs"]
SITE = "type: slurm\nname: lab\npartitions: {cpu: short, gpu: gpu}\npython: /shared/env/bin/python\n"


@dataclass(frozen=True)
class LoginNode:
    """An environment with the wheel, in a folder from which commands are given."""

    folder: Path

    @property
    def command(self) -> Path:
        return self.folder / "env" / "bin" / "mrt-hpc"

    @property
    def run(self) -> RunLayout:
        return RunLayout(self.folder / "run")

    def gives(
        self, *arguments: str | Path, code: int = 0, at: Path = REPOSITORY, command: Sequence[str | Path] = ()
    ) -> str:
        """What a command prints, typed at a directory; ``command`` is another way to start it."""
        environment = {
            "PATH": f"{self.folder / 'slurm'}:/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8",
            "MPLCONFIGDIR": str(self.folder / "matplotlib"),
        }  # fmt: skip
        typed = [*(command or (self.command,)), *arguments]
        done = subprocess.run(typed, cwd=at, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr


def interpreter(version: str) -> Path | None:
    """A Python of this version on this machine: this one, one of PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [sys.executable, shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for candidate in filter(None, candidates):
        told = [candidate, "-c", "import sys, ssl; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(told, capture_output=True, text=True, check=False).stdout.strip() == version:
            return Path(candidate)
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, and that from a copy, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(REPOSITORY / "mrt_hpc", source / "mrt_hpc", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("containers", "env", "recipes", "slurm"):
        shutil.copytree(REPOSITORY / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    _uv("build", str(source), "--out-dir", str(folder))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def node(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> LoginNode:
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"this machine has no Python {request.param}")
    folder = tmp_path_factory.mktemp(f"login-{request.param}")
    _uv("venv", "--python", str(python), str(folder / "env"))
    _uv("pip", "install", "--python", str(folder / "env" / "bin" / "python"), str(wheel))
    (folder / "lab.yaml").write_text(SITE)
    (folder / "slurm").mkdir()
    for name, script in SLURM_PROGRAMS.items():
        (folder / "slurm" / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / "slurm" / name).chmod(0o755)
    return LoginNode(folder)


ON_NEWEST = pytest.mark.parametrize("node", [NEWEST], indirect=True)
"""What does not depend on the version of Python, beyond the modules that other tests import on both."""


def _uv(*arguments: str) -> None:
    done = subprocess.run([UV, *arguments], capture_output=True, text=True, timeout=300, check=False)
    require_registry(done)
    assert done.returncode == 0, done.stderr


def test_nothing_heavy_is_installed_and_the_module_is_the_command(node: LoginNode) -> None:
    script = f"import importlib.util as u; print([n for n in '{HEAVY}'.split(', ') if u.find_spec(n)])"
    python = node.command.with_name("python")
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert list((node.folder / "env").glob("lib/python*/site-packages/mrt_hpc/py.typed")), "the types come with it"
    assert "mrt-hpc, version" in node.gives("--version", at=node.folder, command=(python, "-m", "mrt_hpc"))


def test_every_command_has_its_help(node: LoginNode) -> None:
    for command in COMMANDS.split():
        assert "Examples:" in node.gives(command, "--help"), command


def test_plan_and_fields(node: LoginNode) -> None:
    site = node.folder / "lab.yaml"
    assert "training.learning_rate" in node.gives("fields")
    assert "max_array_size" in node.gives("fields", "site")
    for recipe in RECIPES:
        assert "segment-000" in node.gives("plan", recipe, "--site", site, "--run", node.run.root)
    assert "#SBATCH" in node.gives("plan", RECIPES[0], "--site", site, "--run", node.run.root, "--sbatch")


@ON_NEWEST
def test_data_is_prepared_and_checked(node: LoginNode) -> None:
    (node.folder / "rows.jsonl").write_text('{"question": "What is 1+1?", "answer": 2}\n')
    out = node.folder / "mine.jsonl"
    assert "mine.jsonl: 1 problems" in node.gives("data", "prepare", node.folder / "rows.jsonl", out)
    assert "nothing was found" in node.gives("data", "check", out)
    refused = node.gives("data", "prepare", "hub:lab/sums", node.folder / "other.jsonl", code=2)
    assert "needs the package huggingface_hub" in refused


def test_a_run_from_its_submission_to_its_report(node: LoginNode) -> None:
    recipe = REPOSITORY / "recipes" / "quickstart.yaml"
    submitted = node.gives("submit", recipe, "--site", node.folder / "lab.yaml", "--run", node.run.root)
    assert "submitted segment-000.trainer" in submitted
    _measure(node.run)
    assert "segment-000.trainer" in node.gives("status", node.run.root)
    (node.run.logs / "segment-000.trainer.00000.attempt.rank0.log").write_text("the last word\n")
    assert "the last word" in node.gives("logs", node.run.root, "trainer")
    assert "report.md" in node.gives("report", node.run.root)
    assert (node.run.plots / "accuracy.png").exists()
    assert "Not shown, as they cannot be read: evaluation of version 3 on held-out" in node.run.page.read_text()
    node.gives("cancel", node.run.root)
    node.gives("status", node.run.root)


@ON_NEWEST
def test_recipes_and_profiles_come_with_the_package(node: LoginNode) -> None:
    recipes = node.folder / "env" / "share" / "mrt-hpc" / "recipes"
    for name, *shape in (("small_world/grpo",), ("mrt_online", "--shape", "one_gpu")):
        told = node.gives("plan", name, *shape, "--site", "example", at=node.folder)
        assert f"{recipes / name}.yaml" in told
    assert "Expected:" in told, "the recipe of the paper has its hours"
    listed = node.gives("recipes", "list", at=node.folder)
    assert f"recipes in {recipes}\n" in listed and "\n  small_world/mrt_online " in listed
    node.gives("recipes", "copy", "quickstart", "copied.yaml", at=node.folder)
    node.gives("recipes", "copy", "example:my_method", at=node.folder)
    assert "segment-000" in node.gives("plan", "copied.yaml", at=node.folder)


@ON_NEWEST
def test_fetching_needs_the_client_of_the_hub_and_finding_does_not(node: LoginNode) -> None:
    for command in (("model", "fetch", "lab/tiny"), ("data", "fetch", "aime24", node.folder / "aime24.jsonl")):
        refused = node.gives(*command, code=2)
        assert "needs the package huggingface_hub" in refused and "pip install huggingface-hub" in refused
    assert "numina_math_4000" in node.gives("data", "fetch", "--list")
    model = ("--set", "model={type: hugging_face, path: 'hub:lab/tiny'}")
    assert "mrt-hpc model fetch lab/tiny" in node.gives("plan", "quickstart", *model)
    submit = ("submit", "quickstart", *model, "--site", node.folder / "lab.yaml")
    assert "mrt-hpc model fetch lab/tiny" in node.gives(*submit, code=2, at=node.folder)
    _put_model(node.folder / ".cache" / "huggingface" / "hub" / "models--lab--tiny")
    assert "not there yet" not in node.gives("plan", "quickstart", *model)


@ON_NEWEST
def test_refusals_are_told_in_words(node: LoginNode) -> None:
    assert "there is no such recipe" in node.gives("plan", "recipes/none.yaml", code=2)
    assert "not a run directory" in node.gives("status", node.folder, code=2)
    submit = ("submit", "recipes/quickstart.yaml", "--run", node.folder / "other")
    model = ("--set", "model={type: hugging_face, path: nowhere}", "--site", node.folder / "lab.yaml")
    assert "no model directory" in node.gives(*submit, *model, code=2)
    assert "which has no torch" in node.gives(*submit, code=2), "tasks would run with this Python"


def _put_model(folder: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)


def _measure(run: RunLayout) -> None:
    for number in range(3):
        seconds = {Phase.GENERATION: 3.0, Phase.OPTIMISATION: 1.0}
        metrics = IterationMetrics(iteration=number, reward_mean=0.3, tokens_per_rollout=100.0, seconds=seconds)
        metrics.write(run.metrics(number))
    settings = evaluation_settings(run, look_at_lock(run.recipe_lock))["held-out"].summarised
    for version in (0, 3):
        rewards = {f"p{number}": [float(number < 4 + version), 0.0] for number in range(20)}
        summary = summarise_evaluation(version, "held-out", rewards, settings=settings)
        summary.write(run.evaluation_summary(version, "held-out"))
