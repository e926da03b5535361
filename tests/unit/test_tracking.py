"""What a run keeps for W&B: real offline directories, what is told of them, and what they hold."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from click.testing import CliRunner
from wandb.proto.wandb_internal_pb2 import Record

from mrt_hpc.analysis.measures import EvaluationSummary, IterationMetrics
from mrt_hpc.analysis.rows import summarise_evaluation
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.report import run, write_report
from mrt_hpc.roles.tracking import Tracker, run_id
from mrt_hpc.run.atomic import is_temporary
from mrt_hpc.run.evaluation_settings import evaluation_settings
from mrt_hpc.run.waiting import wait_until
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.roles.task.context import Task

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
TRAINER = "segment-000.trainer"


def task_of(root: Path, job: str, attempt: str = "a.0", *changes: str) -> Task:
    recipe = load_recipe(QUICKSTART, changes or ("tracking.wandb=true",))
    layout = create_or_open(root, recipe, compile_plan(recipe, LocalSite()))
    return load_task(layout, job, 0, Placement(0, 1, 0, attempt))


def told(task: Task) -> list[str]:
    """The lines of status and of the report that are about W&B."""
    result = CliRunner().invoke(main, ["status", str(task.layout.root)])
    assert result.exit_code == 0, result.output
    write_report(task.layout)
    lines = [line.strip() for line in (*result.output.splitlines(), *task.layout.report.read_text().splitlines())]
    return [line for line in lines if "W&B" in line or "wandb" in line]


def test_status_and_report_give_a_command_that_uploads_what_is_not_uploaded(tmp_path: Path) -> None:
    """W&B tells without a network what it would upload."""
    off = task_of(tmp_path / "off", TRAINER, "a.0", "tracking.wandb=false")
    with Tracker.of(off):
        pass
    trainer = task_of(tmp_path / "a run", TRAINER)
    assert told(off) == told(trainer) == []
    with Tracker.of(trainer):
        pass
    command = f"wandb sync {shlex.quote(str(tmp_path / 'a run' / 'wandb' / 'wandb'))}/offline-run-*"
    assert told(trainer).count(command) == 2
    there = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    dry = subprocess.run(
        f"{command} --dry-run", shell=True, capture_output=True, text=True, check=True, timeout=60, env=there
    )
    (written,) = trainer.layout.offline_runs.glob("offline-run-*/*.wandb")
    assert written.parent.name in dry.stderr
    written.with_suffix(".wandb.synced").touch()
    assert command not in told(trainer)


def listening_below(pid: int) -> set[Path]:
    """The sockets with a place at which the processes listen that one has started."""
    connections = [c for child in psutil.Process(pid).children(recursive=True) for c in child.net_connections("unix")]
    return {Path(c.laddr) for c in connections if str(c.laddr).startswith("/")}


def test_no_other_user_reaches_the_sockets_of_wandb(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Tracker.of(task_of(tmp_path / "run", TRAINER)) as tracker:
            tracker.log(IterationMetrics(iteration=0, tokens_per_rollout=12.0))
            wait_until(
                lambda: any("symon" in path.name for path in listening_below(os.getpid())),
                reason="W&B's monitor of the machine",
                deadline_s=20,
            )
            sockets = listening_below(os.getpid())
    finally:
        os.umask(before)
    assert {path.parent for path in sockets if path.parent.is_dir() and path.parent.stat().st_mode & 0o077} == set()
    assert "mrt-hpc-wandb" not in os.environ.get("TMPDIR", "")


# -- evaluations


def evaluate(task: Task, version: int, right: int) -> None:
    summary = summarise_evaluation(
        version,
        "held-out",
        {f"p{i}": [float(i < right), 0.0] for i in range(20)},
        tokens_per_rollout=99.0,
        regret={4096: {"p0": 0.5, "p1": 0.25}},
        settings=evaluation_settings(task.layout, task.recipe)["held-out"].summarised,
    )
    summary.write(task.layout.evaluation_summary(version, "held-out"))


def logged(task: Task) -> list[dict[str, float]]:
    """The rows of all directories that `wandb sync` would upload, oldest directory first."""
    paths = sorted(task.layout.offline_runs.glob("offline-run-*/*.wandb"))
    assert {path.name for path in paths} <= {f"run-{run_id(task)}.wandb"}
    return [row for path in paths for row in rows(path.read_bytes())]


def rows(content: bytes) -> Iterator[dict[str, float]]:
    """The history in a .wandb file: a LevelDB log of protobuf records, in blocks of 32 KiB, after 7 bytes."""
    at, message = 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        message += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record, message = Record.FromString(message), b""
            if record.HasField("history"):
                yield {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}


def versions(task: Task) -> list[float]:
    return [row["evaluation/version"] for row in logged(task) if "evaluation/version" in row]


def report_role(task: Task) -> None:
    """The report of a run that has not measured all, which is an error that names the report."""
    with pytest.raises(UserError) as refused:
        run(task)
    assert refused.value.where == task.layout.report


def test_evaluations_are_logged_into_the_run_of_the_training_metrics(tmp_path: Path) -> None:
    trainer = task_of(tmp_path / "run", TRAINER)
    with Tracker.of(trainer) as tracker:
        tracker.log(IterationMetrics(iteration=0, tokens_per_rollout=12.0))
    task = task_of(tmp_path / "run", "report")
    evaluate(task, 0, 4)
    evaluate(task, 20, 10)
    report_role(task)
    training, *evaluations = logged(task)
    assert training["tokens_per_rollout"] == 12.0
    assert [row["evaluation/version"] for row in evaluations] == [0, 20]
    last, summary = evaluations[-1], EvaluationSummary.read(task.layout.evaluation_summary(20, "held-out"))
    assert summary.accuracy == 0.25
    assert {name: last[f"evaluation/held-out/{name}"] for name in (
        "accuracy", "accuracy_low", "accuracy_high", "tokens_per_rollout", "regret/4096"
    )} == {
        "accuracy": 0.25, "accuracy_low": summary.low, "accuracy_high": summary.high, "tokens_per_rollout": 99.0,
        "regret/4096": 0.375,
    }  # fmt: skip
    assert "2 offline W&B directories" in task.layout.report.read_text()


def test_a_report_that_runs_again_logs_only_what_is_new(tmp_path: Path) -> None:
    task = task_of(tmp_path / "run", "report")
    evaluate(task, 0, 4)
    report_role(task)
    report_role(task)
    assert versions(task) == [0]
    shutil.rmtree(task.layout.offline_runs)  # as `wandb clean` does with what is uploaded
    evaluate(task, 20, 10)
    report_role(task)
    assert versions(task) == [20]


KILLED = """
import os, sys
from pathlib import Path
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.roles import report, tracking
from mrt_hpc.run.layout import RunLayout

def killed(event, arguments):
    if event == "os.rename" and MOMENT in f"{arguments[0]} {arguments[1]}":
        os.kill(os.getpid(), 9)

MOMENT = sys.argv[2]
sys.addaudithook(killed)
report.run(load_task(RunLayout(Path(sys.argv[1])), "report", 0, Placement(0, 1, 0, "a.0")))
"""


@pytest.mark.parametrize("moment", ["evaluations.json", "/offline-run-"])
def test_an_evaluation_is_logged_once_though_the_report_is_killed(tmp_path: Path, moment: str) -> None:
    """Before the record names the finished directory, and before this takes its place."""
    task = task_of(tmp_path / "run", "report")
    evaluate(task, 0, 4)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(task.layout.root), moment], timeout=120, check=False)
    assert killed.returncode == -9
    assert versions(task) == []
    report_role(task)
    assert versions(task) == [0]
    assert [path for path in task.layout.wandb.iterdir() if is_temporary(path)] == []


def test_a_directory_begun_in_the_same_second_as_another_gets_a_name_of_its_own(tmp_path: Path) -> None:
    task = task_of(tmp_path / "run", "report")
    now = datetime.now()  # W&B names directories by local time
    for second in range(6):
        taken = f"offline-run-{now + timedelta(seconds=second):%Y%m%d_%H%M%S}-{run_id(task)}"
        (task.layout.offline_runs / taken / "files").mkdir(parents=True)
    evaluate(task, 0, 4)
    report_role(task)
    assert versions(task) == [0]
