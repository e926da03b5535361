"""The command that the last task of a run calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrt_hpc.errors import UserError
from mrt_hpc.launch.create import create_or_open
from mrt_hpc.launch.entry import run_task
from mrt_hpc.launch.ledger import record_site, record_submission
from mrt_hpc.launch.local.site import LocalSite
from mrt_hpc.launch.notify import tell_end
from mrt_hpc.launch.placement import Placement
from mrt_hpc.launch.slurm.site import SlurmSite
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task

if TYPE_CHECKING:
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
HERE = Placement(0, 1, 0, "12.0")


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run whose site profile names a command that writes down what it gets."""
    recipe = load_recipe(QUICKSTART)
    layout = create_or_open(tmp_path / "a run", recipe, compile_plan(recipe, LocalSite()))
    command = tmp_path / "tell"
    command.write_text(f'#!/bin/sh\necho "$1|$2|$3|$MRT_HPC_OUTCOME" >> {tmp_path / "told"}\n')
    command.chmod(0o755)
    record_site(layout, SlurmSite(name="site", notify=(str(command), "me")))
    record_submission(layout, "report", "12", "site")
    return layout


def told(run: RunLayout) -> list[str]:
    path = run.root.parent / "told"
    return path.read_text().splitlines() if path.exists() else []


def does_nothing(_: Task) -> None:
    return


def fails(_: Task) -> None:
    raise UserError("the report is incomplete")


def test_the_report_tells_that_a_run_has_finished(run: RunLayout) -> None:
    run_task(str(run.root), "report", 0, HERE, does_nothing)
    assert told(run) == [f"me|{run.root}|finished|finished"]


def test_the_report_tells_that_a_run_has_failed(run: RunLayout) -> None:
    with pytest.raises(UserError):
        run_task(str(run.root), "report", 0, HERE, fails)
    assert told(run) == [f"me|{run.root}|failed|failed"]


def test_other_jobs_and_a_report_that_comes_back_tell_nothing(run: RunLayout) -> None:
    run_task(str(run.root), "prepare", 0, HERE, does_nothing)
    write_task(run, "report", 0, TaskRecord(TaskState.RETRYING))
    tell_end(run, "report", 0)
    assert told(run) == []


def test_a_command_that_fails_fails_nothing(run: RunLayout, caplog: pytest.LogCaptureFixture) -> None:
    record_site(run, SlurmSite(name="site", notify=("/no/such/command",)))
    write_task(run, "report", 0, TaskRecord(TaskState.DONE))
    tell_end(run, "report", 0)
    assert "notify" in caplog.text
