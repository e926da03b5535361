"""What a run keeps for W&B: real offline directories, what is told of them, and what they hold."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from mrt_hpc.cli.main import main
from mrt_hpc.launch.create import create_or_open
from mrt_hpc.launch.placement import Placement
from mrt_hpc.launch.task import load_task
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.site import LocalSite
from mrt_hpc.roles.report import write_report
from mrt_hpc.roles.tracking import Tracker

if TYPE_CHECKING:
    from mrt_hpc.roles.task import Task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TRAINER = "segment-000.trainer"


def task_of(root: Path, job: str, attempt: str = "a.0", *changes: str) -> Task:
    recipe = load_recipe(QUICKSTART, changes or ("tracking.wandb=true",))
    layout = create_or_open(root, recipe, compile_plan(recipe, LocalSite()))
    return load_task(layout, job, 0, Placement(0, 1, 0, attempt))


def status(task: Task) -> str:
    result = CliRunner().invoke(main, ["status", str(task.layout.root)])
    assert result.exit_code == 0, result.output
    return result.output


def report(task: Task) -> str:
    write_report(task.layout)
    return task.layout.report.read_text()


def test_status_and_report_tell_how_to_upload_what_is_not_uploaded(tmp_path: Path) -> None:
    trainer = task_of(tmp_path / "a run", TRAINER)
    assert "wandb" not in status(trainer)
    with Tracker.of(trainer):
        pass
    command = f"wandb sync {shlex.quote(str(tmp_path / 'a run' / 'wandb' / 'wandb'))}/offline-run-*"
    for told in (status(trainer), report(trainer)):
        assert "1 offline W&B directory is not uploaded." in told
        assert command in [line.strip() for line in told.splitlines()]
    (written,) = trainer.layout.offline_runs.glob("offline-run-*/*.wandb")
    written.with_suffix(".wandb.synced").touch()
    for told in (status(trainer), report(trainer)):
        assert "wandb sync" not in told


def test_nothing_is_told_of_wandb_where_tracking_is_off(tmp_path: Path) -> None:
    trainer = task_of(tmp_path / "run", TRAINER, "a.0", "tracking.wandb=false")
    with Tracker.of(trainer):
        pass
    assert "W&B" not in status(trainer)
    assert "W&B" not in report(trainer)


def test_the_command_told_is_one_that_wandb_takes_for_all_directories(tmp_path: Path) -> None:
    """W&B tells without a network what it would upload."""
    trainer = task_of(tmp_path / "a run", TRAINER)
    with Tracker.of(trainer):
        pass
    command = ["sh", "-c", f"{report(trainer).split('```')[1].strip()} --dry-run"]
    there = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=there)
    (directory,) = trainer.layout.offline_runs.glob("offline-run-*")
    assert "Would sync 1 run(s)" in told.stderr
    assert directory.name in told.stderr
