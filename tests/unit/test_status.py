"""What ``mrt-hpc status`` tells where Slurm tells little or nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from slurm_texts import squeue_prints

from mrt_hpc.attempt.end import settled
from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm import queue as slurm_queue
from mrt_hpc.cli.main import main
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TRAINER = "segment-000.trainer"
PENDING = f"echo '{squeue_prints('12|PENDING|N/A|BeginTime|')}'"


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run whose trainer was submitted."""
    recipe = load_recipe(QUICKSTART)
    layout = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    record_submission(layout, TRAINER, "12", "site")
    return layout


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands before all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def put(folder: Path, script: str, *names: str) -> None:
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)


def status(run: RunLayout) -> str:
    result = CliRunner().invoke(main, ["status", str(run.root)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("script", ["exec sleep 60", "echo 'Unable to contact slurm controller' >&2; exit 1"])
def test_a_controller_that_is_down_does_not_hold_back_what_the_files_tell(
    run: RunLayout, commands: Path, script: str
) -> None:
    put(commands, script, "squeue", "sacct")
    write_task(run, TRAINER, 0, TaskRecord(TaskState.RETRYING, message="its own words", failures=1))
    began = time.monotonic()
    told = status(run)
    assert time.monotonic() - began < 30.0
    assert "queue was not reached" in told
    assert "its own words" in told
    assert "0/20" in told


def test_a_job_that_slurm_has_forgotten_is_told_by_the_files(run: RunLayout, commands: Path) -> None:
    put(commands, "echo 'Invalid job id specified' >&2; exit 1", "squeue")
    put(commands, "echo 'Slurm accounting storage is disabled' >&2; exit 1", "sacct")
    write_task(run, TRAINER, 0, TaskRecord(TaskState.DONE))
    told = status(run)
    assert "unknown" not in told
    assert "1 done" in told
    assert slurm_queue.queue_states(["12"])["12"].ended


def test_a_preempted_task_says_why_it_does_not_run(run: RunLayout, commands: Path) -> None:
    put(commands, PENDING, "squeue")
    put(commands, "exit 0", "sacct")
    write_task(run, TRAINER, 0, TaskRecord(TaskState.RUNNING, attempt="12.0"))
    settled(run, TRAINER, 0, "12.0", 143, retries=3)
    told = status(run)
    assert "segment-000.trainer[0] stopped: stopped from outside: preempted" in told


def test_a_report_older_than_the_results_is_called_so(run: RunLayout, commands: Path) -> None:
    put(commands, "exit 0", "squeue", "sacct")
    metrics = run.metrics(0)
    metrics.parent.mkdir(parents=True, exist_ok=True)
    metrics.write_text("{}")
    run.report.parent.mkdir(parents=True, exist_ok=True)
    run.report.write_text("report")
    assert "older than the newest results" not in status(run)
    os.utime(run.report, (1.0, 1.0))
    assert "older than the newest results" in status(run)


def test_no_name_is_cut_off_on_a_narrow_terminal(
    run: RunLayout, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(commands, PENDING, "squeue")
    put(commands, "exit 0", "sacct")
    monkeypatch.setenv("COLUMNS", "60")
    told = status(run)
    assert "…" not in told
    assert "segment-000.evaluation\n" in told
    assert max(len(line) for line in told.splitlines() if str(run.root)[:20] not in line) <= 60
    assert "1 queued (BeginTime)" in told
