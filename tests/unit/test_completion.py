"""What the shell offers after TAB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from canned_queue import CannedRun, canned_run
from click.shell_completion import ShellComplete

from mrt_hpc.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def offered(words: str, incomplete: str = "", kind: str = "plain") -> list[str]:
    """The words that are offered after others; those of another kind stand for any file or folder."""
    complete = ShellComplete(main, {}, "mrt-hpc", "_MRT_HPC_COMPLETE")
    return [item.value for item in complete.get_completions(words.split(), incomplete) if item.type == kind]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    run = canned_run(tmp_path, monkeypatch, "resources.inference.tasks=4", name="runs/mine")
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize("command", ["plan", "submit", "validate", "serve"])
def test_recipes_are_offered_by_their_names(command: str) -> None:
    assert "mrt_online" in offered(command)
    assert "small_world/grpo" in offered(command, "small_world/")
    assert "small_world/bases/world" not in offered(command, "small_world/bases/"), "bases are no recipes"
    assert not any("suites" in name for name in offered(command))
    assert offered(command, kind="file")


@pytest.mark.parametrize("command", ["plan", "submit", "eval"])
def test_sites_are_offered_with_this_machine_and_the_users_own(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "mrt-hpc" / "sites"
    folder.mkdir(parents=True)
    (folder / "mycluster.yaml").write_text("type: slurm\n")
    assert {"local", "example", "mycluster"} <= set(offered(f"{command} x --site"))
    assert offered(f"{command} x --site", "my") == ["mycluster"]


def test_suites_names_of_fields_and_roles_are_offered() -> None:
    assert {"paper_20", "small_world"} <= set(offered("eval x --suite"))
    assert "paper_64" in offered("analyze regret x --suite", "paper_6")
    assert "training.learning_rate=" in offered("submit x --set", "training.learning")
    assert "prover.branches=" in offered("validate x --set", "prover.br")
    assert offered("submit x --set", "training.learning_rate=2") == []
    assert {"recipe", "site", "training", "training.learning_rate"} <= set(offered("fields"))
    assert "trainer" in offered("logs x")


def test_runs_are_offered_and_their_jobs_and_tasks(run: CannedRun) -> None:
    for command in ("status", "logs", "cancel", "report", "regrade", "explain", "compare", "eval"):
        assert offered(command) == offered(command, "runs/m") == ["runs/mine"], command
        assert offered(command, "x") == []
        assert offered(command, kind="dir")
    root = run.layout.root
    assert offered("status", f"{root.parent}/") == [str(root)]
    jobs = ["prepare", "segment-000.inference", "segment-000.trainer", "segment-000.evaluation", "report"]
    assert offered("explain runs/mine") == jobs
    assert offered("explain runs/mine", f"{jobs[1]}[") == [f"{jobs[1]}[{n}]" for n in range(4)]
    assert offered("explain no-run") == []
