"""Uploads to W&B, and runs that go on where it fails: real offline directories, and a command that stands in for
``wandb`` where a network would be needed.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from mrt_hpc.analysis.measures import IterationMetrics
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.report import run as report_role
from mrt_hpc.roles.report import write_report
from mrt_hpc.roles.tracking import Tracker, run_id
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from click.testing import Result

    from mrt_hpc.roles.task.context import Task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
METRICS = IterationMetrics(iteration=0, tokens_per_rollout=12.0)
UPLOADS = 'shift; for run; do for file in "$run"/*.wandb; do touch "$file.synced"; done; echo "$run" >> "$LIST"; done'


def task_of(root: Path, job: str = "segment-000.trainer", tracks: str = "true") -> Task:
    recipe = load_recipe(QUICKSTART, (f"tracking.wandb={tracks}",))
    layout = create_or_open(root, recipe, compile_plan(recipe, LocalSite()))
    return load_task(layout, job, 0, Placement(0, 1, 0, "a.0"))


def tracked(root: Path) -> Task:
    task = task_of(root)
    with Tracker.of(task) as tracker:
        tracker.log(METRICS)
    return task


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command that marks what it is given as uploaded, as `wandb sync` does, and lists it in this file."""
    put(tmp_path, UPLOADS)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("LIST", str(tmp_path / "list"))
    return tmp_path / "list"


def put(folder: Path, script: str) -> None:
    path = folder / "bin" / "wandb"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def sync(task: Task) -> Result:
    return CliRunner().invoke(main, ["sync", str(task.layout.root)])


def test_all_directories_go_to_one_run_in_their_order_with_the_report(tmp_path: Path, wandb: Path) -> None:
    task = tracked(tmp_path / "run")
    write_report(task.layout)
    result = sync(task)
    assert result.exit_code == 0, result.output
    told = wandb.read_text().split()
    assert told == sorted(told)
    assert len(told) == 2
    assert {Path(path).name.rpartition("-")[2] for path in told} == {run_id(task)}
    attached = Path(told[-1]) / "files"
    assert (attached / "report.md").read_bytes() == task.layout.report.read_bytes()
    assert (attached / "report.html").exists()
    assert "uploaded 2 offline W&B directories, with " in result.output
    status = CliRunner().invoke(main, ["status", str(task.layout.root)])
    assert "not uploaded" not in status.output


def test_what_is_uploaded_is_not_uploaded_again(tmp_path: Path, wandb: Path) -> None:
    task = tracked(tmp_path / "run")
    write_report(task.layout)
    assert sync(task).exit_code == 0
    before = wandb.read_text()
    claims(task)
    result = sync(task)
    assert "all offline W&B directories are uploaded" in result.output
    assert wandb.read_text() == before


def claims(task: Task) -> None:
    """Let the claims go that a command would have let go with its process."""
    for claim in task.layout.jobs.glob("local-*.json"):
        claim.unlink()


@pytest.mark.parametrize("script", ["echo 'Network error' >&2; exit 1", "exit 0"])
def test_an_upload_that_fails_says_so_and_can_be_repeated(tmp_path: Path, wandb: Path, script: str) -> None:
    task = tracked(tmp_path / "run")
    put(tmp_path, script)
    result = sync(task)
    assert result.exit_code != 0
    assert f"mrt-hpc sync {task.layout.root} again" in result.output
    put(tmp_path, UPLOADS)
    claims(task)
    assert sync(task).exit_code == 0
    assert wandb.exists()


@pytest.mark.parametrize(("tracks", "told"), [("false", "does not track"), ("true", "has logged nothing")])
def test_a_run_without_offline_directories_is_told_why(tmp_path: Path, wandb: Path, tracks: str, told: str) -> None:
    result = sync(task_of(tmp_path / "run", tracks=tracks))
    assert result.exit_code != 0
    assert told in result.output
    assert not wandb.exists()


# -- nothing of W&B stops a run


class Full:
    """A W&B run whose disk is full."""

    def log(self, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    finish = log


def test_a_trainer_goes_on_where_wandb_cannot_begin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = task_of(tmp_path / "run")
    task.layout.wandb.write_text("a file where W&B wants a folder")
    with Tracker.of(task) as tracker:
        tracker.log(METRICS)
    assert "W&B failed" in caplog.text


def test_a_trainer_goes_on_where_wandb_cannot_write(caplog: pytest.LogCaptureFixture) -> None:
    with Tracker(Full()) as tracker:
        tracker.log(METRICS)
        tracker.log(METRICS)
    assert caplog.text.count("W&B failed") == 1
    with Tracker(Full()):
        pass
    assert caplog.text.count("W&B failed") == 2


def test_an_interruption_still_goes_through() -> None:
    class Interrupting:
        def log(self, *_: Any, **__: Any) -> None:
            raise SystemExit(143)

        def finish(self, **_: Any) -> None:
            return

    with pytest.raises(SystemExit), Tracker(Interrupting()) as tracker:
        tracker.log(METRICS)


def test_the_report_is_written_where_wandb_cannot_log_the_evaluations(tmp_path: Path) -> None:
    task = task_of(tmp_path / "run", "report")
    summary = summarise_evaluation(0, "held-out", {"p": [1.0, 0.0]})
    summary.write(task.layout.evaluation_summary(0, "held-out"))
    task.layout.wandb.mkdir()
    (task.layout.wandb / "evaluations.json").write_text("cut off by a full d")
    with pytest.raises(UserError, match="the report is incomplete"):
        report_role(task)
    assert task.layout.report.exists()
