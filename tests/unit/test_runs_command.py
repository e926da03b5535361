"""``mrt-hpc runs``: the runs below directories, with their states."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from canned_queue import TRAINER, CannedRun, canned_run
from click.testing import CliRunner
from synthetic_run import SyntheticEvaluation

from mrt_hpc.cli.main import main
from mrt_hpc.cli.status import in_bytes
from mrt_hpc.run.task_state import TaskState

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = {
    "run", "name", "kind", "state", "iterations_done", "iterations_planned", "evaluations_done", "evaluations_planned",
    "newest_event", "newest_event_kind", "bytes", "trouble",
}  # fmt: skip


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[CannedRun]:
    """Three runs: one that runs on Slurm, one that waits there, and one that is finished."""
    names = ("running", "queued", "finished")
    runs = [canned_run(tmp_path, monkeypatch, f"name={name}", name=f"runs/{name}") for name in names]
    runs[0].submitted(trainer="12")
    runs[1].submitted(trainer="13")
    runs[2].submitted(trainer="14")
    runs[2].done()
    runs[0].queue("12|RUNNING|1|None|node1", "13|PENDING|N/A|Priority|")
    return runs


def listed(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(main, ["runs", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return list(json.loads(result.output))


def test_runs_have_states_from_one_question_to_the_queue(several: list[CannedRun], tmp_path: Path) -> None:
    found = {run["name"]: run for run in listed(str(tmp_path))}
    assert {name: run["state"] for name, run in found.items()} == {
        "running": "running", "queued": "queued", "finished": "finished",
    }  # fmt: skip
    assert all(set(run) == FIELDS for run in found.values())
    assert found["running"]["kind"] == "mrt_online"
    assert found["running"]["iterations_planned"] == 20
    assert found["running"]["bytes"] is None
    assert sorted(several[0].calls) == ["sacct", "squeue"]


def test_the_run_with_the_newest_event_comes_first(several: list[CannedRun], tmp_path: Path) -> None:
    for time, run in ((10.0, several[1]), (20.0, several[0])):
        run.events(TRAINER, "a", {"kind": "checkpoint", "time": time})
    assert [run["name"] for run in listed(str(tmp_path))] == ["running", "queued", "finished"]
    assert listed(str(tmp_path))[0]["newest_event_kind"] == "checkpoint"


@pytest.mark.usefixtures("several")
def test_the_default_place_is_runs_and_the_table_says_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["runs"])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert "running" in lines["runs/running"]
    assert "0/20" in lines["runs/queued"]
    assert lines["next:"].startswith("next: mrt-hpc status runs/")


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("columns", ["60", "100"])
def test_the_table_fits_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(tmp_path)
    output = CliRunner().invoke(main, ["runs", "--size"]).output
    table = [line for line in output.splitlines() if "next:" not in line]
    assert max(map(len, table)) <= int(columns)
    assert "…" not in output


def test_an_evaluation_on_its_own_is_listed_with_its_suite(tmp_path: Path) -> None:
    SyntheticEvaluation(tmp_path / "alone").write()
    (found,) = listed(str(tmp_path / "alone"))
    assert found["kind"] == "suite small_world"
    assert found["iterations_planned"] == 0


def test_a_damaged_run_is_listed_with_the_reason(several: list[CannedRun], tmp_path: Path) -> None:
    several[0].layout.plan.write_text("{")
    found = {run["name"]: run for run in listed(str(tmp_path))}
    assert found["running"]["state"] is None
    assert "the plan cannot be read" in found["running"]["trouble"]
    assert found["queued"]["state"] == "queued"
    assert "damaged" in CliRunner().invoke(main, ["runs", str(tmp_path)]).output


def test_a_run_without_a_readable_lock_is_listed(several: list[CannedRun], tmp_path: Path) -> None:
    several[0].layout.recipe_lock.write_text("a: [")
    assert {run["name"]: run["kind"] for run in listed(str(tmp_path))}["running"] == "unknown"


def test_a_failed_task_makes_a_failed_run(several: list[CannedRun], tmp_path: Path) -> None:
    several[1].queue()
    several[1].task(TRAINER, TaskState.FAILED, message="no")
    assert {run["name"]: run["state"] for run in listed(str(tmp_path))}["queued"] == "failed"


def test_the_size_counts_blocks_on_disk_once(several: list[CannedRun], tmp_path: Path) -> None:
    before = {run["name"]: run["bytes"] for run in listed(str(tmp_path), "--size")}
    data = several[0].layout.root / "large"
    data.write_bytes(b"x" * 1_000_000)
    os.link(data, several[0].layout.root / "the same")
    after = {run["name"]: run["bytes"] for run in listed(str(tmp_path), "--size")}
    assert 1_000_000 <= after["running"] - before["running"] < 1_100_000
    assert after["queued"] == before["queued"]


def test_a_place_without_runs_says_what_to_type(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["runs", str(tmp_path)])
    assert result.exit_code == 0
    assert "no runs in" in result.output
    assert "mrt-hpc submit RECIPE" in result.output


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB"), (2**52, "4096.0 TiB")]
)
def test_sizes_in_words(count: float, words: str) -> None:
    assert in_bytes(count) == words
