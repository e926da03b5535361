"""Whether a run goes on, from the records of its tasks, the queue, and the process that runs the plan; and the list of
runs with their states, ``mrt-hpc runs``.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from basics import EVALUATION, INFERENCE, TRAINER
from canned_queue import CannedRun, canned_run
from commands import typed
from synthetic_run import SyntheticEvaluation

from mrt_hpc.backends.queued_jobs import look_at_queues
from mrt_hpc.cli.status import in_bytes
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_look import RunLook, RunState

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch)


def look(run: CannedRun) -> RunLook:
    return RunLook.at(run.layout, run.plan, look_at_queues(run.layout, 3.0))


def beat(run: CannedRun, attempt: str, job: str = TRAINER) -> None:
    write_json(run.layout.heart(job, 0), {"attempt": attempt, "beat": 1})


def test_a_run_is_stopped_before_it_starts_and_finished_when_all_tasks_are_done(run: CannedRun) -> None:
    assert look(run).state is RunState.STOPPED
    run.done()
    assert look(run).state is RunState.FINISHED


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        (["12|RUNNING|1|None|node1"], RunState.RUNNING),
        (["12|PENDING|N/A|Priority|"], RunState.QUEUED),
        (["12|PENDING|N/A|SomethingNew|"], RunState.QUEUED),
        (["12|PENDING|N/A|Dependency|"], RunState.WAITING),
        (["12|PENDING|N/A|BeginTime|"], RunState.WAITING),
        (["12|PENDING|N/A|JobHeldUser|"], RunState.WAITING),
        (["12|FAILED|1|NonZeroExitCode|"], RunState.STOPPED),
        (["12|PENDING|N/A|Resources|", "13|PENDING|N/A|Dependency|"], RunState.QUEUED),
    ],
)
def test_the_queue_decides_for_submitted_jobs_in_two_calls(run: CannedRun, lines: list[str], state: RunState) -> None:
    run.submitted(trainer="12", report="13")
    run.queue(*lines)
    assert look(run).state is state
    assert sorted(run.calls) == ["sacct", "squeue"]


def test_a_record_of_an_attempt_that_slurm_has_lost_is_not_a_running_task(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    assert (look(run).running, look(run).state) == (frozenset(), RunState.STOPPED)


def test_a_failed_task_decides_only_when_nothing_else_goes_on(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="no")
    assert look(run).state is RunState.FAILED
    run.submitted(evaluation="14")
    run.queue("14_0|RUNNING|1|None|node1")
    assert (look(run).running, look(run).state) == ({(EVALUATION, 0)}, RunState.RUNNING)


def test_where_the_queue_was_not_reached_the_hearts_decide(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.unreached()
    assert look(run).state is RunState.QUEUED, "it may be queued"
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    beat(run, "12.0")
    assert look(run).state is RunState.RUNNING
    beat(run, "11.0")
    assert look(run).running == frozenset(), "that is the heart of another attempt"


def test_the_process_that_runs_the_plan_decides(run: CannedRun) -> None:
    run.task(INFERENCE, TaskState.RUNNING, attempt="ab")
    beat(run, "ab", INFERENCE)
    run.claim(os.getpid())
    assert (look(run).running, look(run).state) == ({(INFERENCE, 0)}, RunState.RUNNING)
    run.claim(os.getpid(), "0")
    assert (look(run).running, look(run).state) == (frozenset(), RunState.STOPPED), "it is dead, whatever is left"


def test_a_process_of_another_machine_runs_as_long_as_its_heart_is_there(run: CannedRun) -> None:
    run.claim(12, "5", "elsewhere")
    assert look(run).state is RunState.STOPPED
    beat(run, "elsewhere:12:5", "local")
    assert look(run).state is RunState.RUNNING


# -- mrt-hpc runs


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
    """The runs by their names, in their order."""
    return {run["name"]: run for run in json.loads(typed("runs", *arguments, "--json").output)}


def test_runs_have_states_from_one_question_to_the_queue(several: list[CannedRun], tmp_path: Path) -> None:
    found = listed(tmp_path)
    assert {name: run["state"] for name, run in found.items()} == {name: name for name in found}
    (kind, planned, size) = (found["running"][key] for key in ("kind", "iterations_planned", "bytes"))
    assert (kind, planned, size) == ("mrt_online", 20, None)
    assert sorted(several[0].calls) == ["sacct", "squeue"]
    several[1].queue()
    several[1].task(TRAINER, TaskState.FAILED, message="no")
    assert listed(tmp_path)["queued"]["state"] == "failed"


def test_the_run_with_the_newest_event_comes_first(several: list[CannedRun]) -> None:
    for time, run in ((10.0, several[1]), (20.0, several[0])):
        run.events(TRAINER, "a", {"kind": "checkpoint", "time": time})
    found = listed()
    assert [*found] == ["running", "queued", "finished"]
    assert found["running"]["newest_event_kind"] == "checkpoint"


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("columns", ["60", "100"])
def test_the_table_fits_the_terminal_and_says_what_is_next(columns: str) -> None:
    output = typed("runs", "--size", columns=columns).output
    lines = {line.split()[0]: line for line in output.splitlines()}
    assert "running" in lines["runs/running"] and "0/20" in lines["runs/queued"]
    assert lines.pop("next:").startswith("next: mrt-hpc status runs/")
    assert max(map(len, lines.values())) <= int(columns)
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
    assert [in_bytes(n) for n in (0, 1536, 3 * 2**30, 2**52)] == ["0 B", "1.5 KiB", "3.0 GiB", "4096.0 TiB"]


def test_a_place_without_runs_says_what_to_type(tmp_path: Path) -> None:
    assert "mrt-hpc submit RECIPE" in typed("runs", tmp_path).output
