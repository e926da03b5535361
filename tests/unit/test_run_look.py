"""Whether a run goes on: from the records of its tasks, the queue, and the process that runs the plan."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from canned_queue import EVALUATION, INFERENCE, PREPARE, TRAINER, CannedRun, canned_run

from mrt_hpc.backends.queued_jobs import look_at_queues
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.task_state import TaskState
from mrt_hpc.view.run_look import RunLook, RunState

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CannedRun:
    return canned_run(tmp_path, monkeypatch)


def look(run: CannedRun) -> RunLook:
    return RunLook.at(run.layout, run.plan, look_at_queues(run.layout, 3.0))


def claim(run: CannedRun, pid: int, started: str, host: str) -> None:
    (run.layout.jobs / "local-00001.json").write_text(json.dumps({"pid": pid, "started": started, "host": host}))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until the end of the test."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started


def kernel_start(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_a_run_that_was_never_started_is_stopped(run: CannedRun) -> None:
    assert look(run).state is RunState.STOPPED


def test_a_run_whose_tasks_are_all_done_is_finished(run: CannedRun) -> None:
    run.done()
    assert look(run).state is RunState.FINISHED


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("12|RUNNING|1|None|node1", RunState.RUNNING),
        ("12|PENDING|N/A|Priority|", RunState.QUEUED),
        ("12|PENDING|N/A|SomethingNew|", RunState.QUEUED),
        ("12|PENDING|N/A|Dependency|", RunState.WAITING),
        ("12|PENDING|N/A|BeginTime|", RunState.WAITING),
        ("12|PENDING|N/A|JobHeldUser|", RunState.WAITING),
        ("12|FAILED|1|NonZeroExitCode|", RunState.STOPPED),
    ],
)
def test_the_queue_decides_for_a_submitted_job(run: CannedRun, line: str, state: RunState) -> None:
    run.submitted(trainer="12")
    run.queue(line)
    assert look(run).state is state


def test_one_task_that_waits_for_its_turn_makes_the_run_queued(run: CannedRun) -> None:
    run.submitted(trainer="12", report="13")
    run.queue("12|PENDING|N/A|Resources|", "13|PENDING|N/A|Dependency|")
    assert look(run).state is RunState.QUEUED


def test_a_record_of_an_attempt_that_slurm_has_lost_is_not_a_running_task(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    seen = look(run)
    assert seen.running == frozenset()
    assert seen.state is RunState.STOPPED


def test_a_failed_task_decides_only_when_nothing_else_goes_on(run: CannedRun) -> None:
    run.task(TRAINER, TaskState.FAILED, message="no")
    assert look(run).state is RunState.FAILED
    run.submitted(evaluation="14")
    run.queue("14_0|RUNNING|1|None|node1")
    assert look(run).state is RunState.RUNNING
    assert look(run).running == {(EVALUATION, 0)}


def test_where_the_queue_was_not_reached_the_hearts_decide(run: CannedRun) -> None:
    run.submitted(trainer="12")
    run.command("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert look(run).state is RunState.QUEUED, "it may be queued"
    run.task(TRAINER, TaskState.RUNNING, attempt="12.0")
    write_json(run.layout.heart(TRAINER, 0), {"attempt": "12.0", "beats": 1, "beat": 1})
    assert look(run).state is RunState.RUNNING
    write_json(run.layout.heart(TRAINER, 0), {"attempt": "11.0", "beat": 1})
    assert look(run).running == frozenset(), "that is the heart of another attempt"


def test_a_live_process_of_this_machine_runs_the_recorded_tasks(
    run: CannedRun, process: subprocess.Popen[bytes]
) -> None:
    claim(run, process.pid, kernel_start(process.pid), socket.gethostname())
    run.task(INFERENCE, TaskState.RUNNING, attempt="ab")
    seen = look(run)
    assert seen.state is RunState.RUNNING
    assert seen.running == {(INFERENCE, 0)}


def test_a_dead_process_of_this_machine_runs_nothing_even_if_hearts_are_left(run: CannedRun) -> None:
    claim(run, os.getpid(), "0", socket.gethostname())
    run.task(PREPARE, TaskState.RUNNING, attempt="ab")
    write_json(run.layout.heart(PREPARE, 0), {"attempt": "ab", "beat": 3})
    seen = look(run)
    assert seen.running == frozenset()
    assert seen.state is RunState.STOPPED


def test_a_process_of_another_machine_runs_as_long_as_its_heart_is_there(run: CannedRun) -> None:
    claim(run, 12, "5", "elsewhere")
    assert look(run).state is RunState.STOPPED
    write_json(run.layout.heart("local", 0), {"attempt": "elsewhere:12:5", "beat": 3})
    assert look(run).state is RunState.RUNNING


def test_all_of_this_costs_two_calls(run: CannedRun) -> None:
    run.submitted(prepare="11", inference="12", trainer="13", evaluation="14", report="15")
    look(run)
    assert sorted(run.calls) == ["sacct", "squeue"]
