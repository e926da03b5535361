"""Whether a run goes on, from the records of its tasks, the queue, and the process that runs the plan; and the list of
runs with their states, ``mrt-hpc runs``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from basics import EVALUATION, INFERENCE, TRAINER
from canned_queue import CannedRun, canned_run
from commands import typed
from synthetic_run import SyntheticEvaluation

from mrt_hpc.backends.queued_jobs import look_at_queues
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_look import RunLook


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch)


def look(run: CannedRun) -> tuple[set[tuple[str, int]], str]:
    """The tasks that run, and the state of the run."""
    found = RunLook.at(run.layout, run.plan, look_at_queues(run.layout, 3.0))
    return {*found.running}, found.state.value


def beat(run: CannedRun, attempt: str, job: str = TRAINER) -> None:
    write_json(run.layout.heart(job, 0), {"attempt": attempt, "beat": 1})


def test_the_records_of_tasks_decide_where_nothing_is_queued(run: CannedRun) -> None:
    assert look(run) == (set(), "stopped")
    run.submitted(trainer="12")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    assert look(run) == (set(), "stopped"), "Slurm has lost the attempt"
    run.task(TRAINER, TaskState.FAILED, message="no")
    assert look(run) == (set(), "failed")
    run.submitted(evaluation="14")
    run.queue("14_0|RUNNING|1|None|node1")
    assert look(run) == ({(EVALUATION, 0)}, "running")
    run.queue()
    run.done()
    assert look(run) == (set(), "finished")


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        (["12|RUNNING|1|None|node1"], "running"),
        (["12|PENDING|N/A|Priority|"], "queued"),
        (["12|PENDING|N/A|SomethingNew|"], "queued"),
        (["12|PENDING|N/A|Dependency|"], "waiting"),
        (["12|PENDING|N/A|JobHeldUser|"], "waiting"),
        (["12|FAILED|1|NonZeroExitCode|"], "stopped"),
        (["12|PENDING|N/A|Resources|", "13|PENDING|N/A|Dependency|"], "queued"),
    ],
)
def test_the_queue_decides_for_submitted_jobs_in_two_calls(run: CannedRun, lines: list[str], state: str) -> None:
    run.submitted(trainer="12", report="13")
    run.queue(*lines)
    assert look(run)[1] == state
    assert sorted(run.calls) == ["sacct", "squeue"]


def test_where_the_queue_was_not_reached_the_hearts_decide(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.unreached()
    assert look(run)[1] == "queued", "it may be queued"
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    beat(run, "12.0")
    assert look(run)[1] == "running"
    beat(run, "11.0")
    assert look(run)[0] == set(), "that is the heart of another attempt"


def test_the_process_that_runs_the_plan_decides(run: CannedRun) -> None:
    run.task(INFERENCE, TaskState.RUNNING, attempt="ab")
    beat(run, "ab", INFERENCE)
    run.claim(os.getpid())
    assert look(run) == ({(INFERENCE, 0)}, "running")
    run.claim(os.getpid(), "0")
    assert look(run) == (set(), "stopped"), "it is dead, whatever is left"
    run.claim(12, "5", "elsewhere")
    assert look(run)[1] == "stopped"
    beat(run, "elsewhere:12:5", "local")
    assert look(run)[1] == "running"


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[CannedRun]:
    """Three runs: one that runs on Slurm, one that waits there, and one that is finished."""
    names = ("running", "queued", "finished")
    runs = [canned_run(tmp_path, monkeypatch, f"name={name}", name=f"runs/{name}") for name in names]
    for number, run in enumerate(runs, 12):
        run.submitted(trainer=str(number))
    runs[2].done()
    runs[0].queue("12|RUNNING|1|None|node1", "13|PENDING|N/A|Priority|")
    monkeypatch.chdir(tmp_path)
    return runs


def listed(*arguments: object) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in json.loads(typed("runs", *arguments, "--json").output)}


def test_runs_have_states_from_one_question_to_the_queue(several: list[CannedRun], tmp_path: Path) -> None:
    found = listed(tmp_path)
    assert {name: run["state"] for name, run in found.items()} == {name: name for name in found}
    (kind, planned, size) = (found["running"][key] for key in ("kind", "iterations_planned", "bytes"))
    assert (kind, planned, size) == ("mrt_online", 20, None)
    assert sorted(several[0].calls) == ["sacct", "squeue"]
    several[1].queue()
    several[1].task(TRAINER, TaskState.FAILED, message="no")
    for time, run in ((10.0, several[1]), (20.0, several[0])):
        run.events(TRAINER, "a", {"kind": "checkpoint", "time": time})
    found = listed()
    assert [*found] == ["running", "queued", "finished"], "the newest event comes first"
    assert (found["queued"]["state"], found["running"]["newest_event_kind"]) == ("failed", "checkpoint")


@pytest.mark.usefixtures("several")
def test_the_table_fits_the_terminal_and_says_what_is_next() -> None:
    for columns in (60, 100):
        output = typed("runs", "--size", columns=columns).output
        lines = {line.split()[0]: line for line in output.splitlines()}
        assert "running" in lines["runs/running"] and "0/20" in lines["runs/queued"]
        assert lines.pop("next:").startswith("next: mrt-hpc status runs/")
        assert max(map(len, lines.values())) <= columns
        assert "…" not in output


def test_an_evaluation_on_its_own_is_listed_with_its_suite(tmp_path: Path) -> None:
    SyntheticEvaluation(tmp_path / "alone").write()
    (found,) = listed(tmp_path / "alone").values()
    assert (found["kind"], found["iterations_planned"]) == ("suite small_world", 0)


def test_a_damaged_run_is_listed_with_the_reason(several: list[CannedRun]) -> None:
    several[0].layout.plan.write_text("{")
    several[2].layout.recipe_lock.write_text("a: [")
    found = listed()
    assert found["running"]["state"] is None
    assert "plan" in found["running"]["trouble"]
    assert (found["queued"]["state"], found["finished"]["kind"]) == ("queued", "unknown")
    assert "damaged" in typed("runs").output


def test_the_size_counts_blocks_on_disk_once(several: list[CannedRun]) -> None:
    before = listed("--size")
    data = several[0].layout.root / "large"
    data.write_bytes(b"x" * 1_000_000)
    os.link(data, several[0].layout.root / "the same")
    more = {name: run["bytes"] - before[name]["bytes"] for name, run in listed("--size").items()}
    assert 1_000_000 <= more["running"] < 1_100_000
    assert more["queued"] == 0
