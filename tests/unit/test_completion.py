"""What the shell offers after TAB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from canned_queue import CannedRun, canned_run
from click.shell_completion import ShellComplete

from mrt_hpc.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def offered(arguments: Sequence[str], incomplete: str = "") -> list[str]:
    """The words that are offered; what stands for any file or folder is left out."""
    complete = ShellComplete(main, {}, "mrt-hpc", "_MRT_HPC_COMPLETE")
    return [item.value for item in complete.get_completions(list(arguments), incomplete) if item.type == "plain"]


def kinds(arguments: Sequence[str], incomplete: str = "") -> set[str]:
    complete = ShellComplete(main, {}, "mrt-hpc", "_MRT_HPC_COMPLETE")
    return {item.type for item in complete.get_completions(list(arguments), incomplete)}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    run = canned_run(tmp_path, monkeypatch, "resources.inference.tasks=4", name="runs/mine")
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize("command", ["plan", "submit", "validate", "serve"])
def test_recipes_are_offered_by_their_names(command: str) -> None:
    assert "mrt_online" in offered([command])
    assert "small_world/grpo" in offered([command], "small_world/")
    assert "small_world/bases/world" not in offered([command], "small_world/bases/"), "bases are no recipes"
    assert not any("suites" in name for name in offered([command]))
    assert "file" in kinds([command])


@pytest.mark.parametrize("command", ["plan", "submit", "eval"])
def test_sites_are_offered_with_this_machine_and_the_users_own(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "mrt-hpc" / "sites"
    folder.mkdir(parents=True)
    (folder / "mycluster.yaml").write_text("type: slurm\n")
    assert {"local", "example", "mycluster"} <= set(offered([command, "x", "--site"]))
    assert offered([command, "x", "--site"], "my") == ["mycluster"]


def test_suites_are_offered() -> None:
    assert {"paper_20", "small_world"} <= set(offered(["eval", "x", "--suite"]))
    assert "paper_64" in offered(["analyze", "regret", "x", "--suite"], "paper_6")


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    "arguments", [[name] for name in ("status", "logs", "cancel", "report", "regrade", "explain", "compare", "eval")]
)
def test_runs_are_offered(arguments: list[str]) -> None:
    assert offered(arguments) == ["runs/mine"]
    assert offered(arguments, "runs/m") == ["runs/mine"]
    assert offered(arguments, "x") == []
    assert "dir" in kinds(arguments)


def test_runs_of_the_folder_that_was_typed_are_offered(run: CannedRun) -> None:
    folder = run.layout.root.parent
    assert offered(["status"], f"{folder}/") == [str(run.layout.root)]


@pytest.mark.usefixtures("run")
def test_jobs_and_tasks_of_the_run_are_offered() -> None:
    jobs = ["prepare", "segment-000.inference", "segment-000.trainer", "segment-000.evaluation", "report"]
    assert offered(["explain", "runs/mine"]) == jobs
    assert offered(["explain", "runs/mine"], "segment-000.inference[") == [
        f"segment-000.inference[{n}]" for n in range(4)
    ]
    assert offered(["explain", "no-run"]) == []


def test_names_of_fields_are_offered_for_overrides() -> None:
    assert "training.learning_rate=" in offered(["submit", "x", "--set"], "training.learning")
    assert "prover.branches=" in offered(["validate", "x", "--set"], "prover.br")
    assert offered(["submit", "x", "--set"], "training.learning_rate=2") == []


def test_fields_offers_sections_and_fields() -> None:
    words = offered(["fields"])
    assert {"recipe", "site", "training", "training.learning_rate"} <= set(words)


def test_roles_are_offered_for_logs() -> None:
    assert "trainer" in offered(["logs", "x"])
