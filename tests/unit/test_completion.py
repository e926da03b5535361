"""What the shell offers after TAB."""

from pathlib import Path

import pytest
from basics import JOBS
from canned_queue import canned_run
from click.shell_completion import ShellComplete
from tables import tables

from mrt_hpc.cli.main import main

TABLES = tables("completion")


def offered(words: str, incomplete: str = "", kind: str = "plain") -> list[str]:
    """The words that are offered after others; those of another kind stand for any file or folder."""
    complete = ShellComplete(main, {}, "mrt-hpc", "_MRT_HPC_COMPLETE")
    return [item.value for item in complete.get_completions(words.split(), incomplete) if item.type == kind]


def test_names_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (folder := tmp_path / "mrt-hpc" / "sites").mkdir(parents=True)
    (folder / "mycluster.yaml").write_text("type: slurm\n")
    for words, begun, word in TABLES["offered"]:
        assert word in offered(words, begun)
    assert offered("plan x --site", "my") == ["mycluster"]
    assert offered("submit", kind="file")
    assert offered("submit x --set", "training.learning_rate=2") == []


def test_runs_are_offered_and_their_jobs_and_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = canned_run(tmp_path, monkeypatch, "resources.inference.tasks=4", name="runs/mine").layout.root
    monkeypatch.chdir(tmp_path)
    for command in ("status", "logs", "cancel", "report", "regrade", "explain", "compare", "eval"):
        assert offered(command) == offered(command, "runs/m") == ["runs/mine"], command
        assert offered(command, "x") == []
        assert offered(command, kind="dir")
    assert offered("status", f"{root.parent}/") == [str(root)]
    assert offered("explain runs/mine") == list(JOBS)
    assert offered("explain runs/mine", f"{JOBS[1]}[") == [f"{JOBS[1]}[{n}]" for n in range(4)]
    assert offered("explain no-run") == []
