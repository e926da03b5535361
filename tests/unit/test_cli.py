"""The commands as a user meets them: help, plan, status, logs, cancel, and refusals that leave nothing behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.cli.main import main
from mrt_hpc.errors import ExitCode
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrt_hpc.run.layout import RunLayout

ROOT = Path(__file__).parents[2]
QUICKSTART = str(ROOT / "recipes" / "quickstart.yaml")
REFERENCE = str(ROOT / "recipes" / "mrt_online.yaml")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run directory of which nothing has been done."""
    recipe = load_recipe(Path(QUICKSTART))
    return create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))


COMMANDS = [
    "plan", "submit", "status", "logs", "cancel", "report", "eval", "regrade", "compare", "fields", "data", "analyze",
    "runs", "explain", "validate", "init", "doctor", "container", "model", "recipes",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"mrt-hpc {command}" in result.output


@pytest.mark.parametrize("columns", ["0", "-3", "wide"])
@pytest.mark.parametrize("command", [("plan", QUICKSTART), ("runs", "{run}"), ("status", "{run}")], ids=lambda c: c[0])
def test_a_width_that_is_none_changes_nothing(run: RunLayout, command: tuple[str, ...], columns: str) -> None:
    words = [word.format(run=run.root) for word in command]
    usual, odd = (CliRunner().invoke(main, words, env={"COLUMNS": width}) for width in (None, columns))
    assert odd.exit_code == 0
    assert odd.output == usual.output


def test_plan_prints_every_job_and_the_cost() -> None:
    result = invoke("plan", REFERENCE)
    assert result.exit_code == 0
    assert "segment-003.trainer" in result.output
    assert "248 iterations in 4 segment(s)" in result.output
    assert "GPU-hours" in result.output
    assert "not there yet, submit will refuse" in result.output


def test_plan_obeys_overrides() -> None:
    result = invoke("plan", REFERENCE, "--set", "schedule.iterations_per_job=124")
    assert "in 2 segment(s)" in result.output


def test_sbatch_texts_need_a_slurm_site() -> None:
    result = invoke("plan", QUICKSTART, "--sbatch")
    assert result.exit_code == 2
    assert "--site" in result.stderr


def test_fields_documents_every_field() -> None:
    result = invoke("fields")
    assert result.exit_code == 0
    for name in ("training.learning_rate", "prover[forced_answer].branches", "schedule.max_staleness"):
        assert name in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit", QUICKSTART, "--set", "training.lerning_rate=1"], ["learning_rate is the nearest"]),
        (["submit", QUICKSTART, "--set", "data={type: jsonl, path: no.jsonl}"], ["no such data file", "no.jsonl"]),
        (["submit", QUICKSTART, "--set", "model={type: hugging_face, path: no}"], ["no model directory"]),
        (["submit", QUICKSTART, "--site", "nowhere"], ["no such site profile", "nowhere"]),
        (["submit", "recipes/none.yaml"], ["no such recipe", "recipes/none.yaml"]),
        (["submit", QUICKSTART, "--set", "resources.trainer.gpus=99"], ["99 GPUs"]),
        (["submit", QUICKSTART, "--set", "data.problems=100000"], ["100000"]),
    ],
)
def test_a_refused_submission_leaves_nothing_behind(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    result = invoke(*arguments, "--run", str(tmp_path / "run"))
    assert result.exit_code == 2
    for word in words:
        assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_of_another_recipe_is_refused(run: RunLayout) -> None:
    result = invoke("submit", QUICKSTART, "--set", "training.learning_rate=0.5", "--run", str(run.root))
    assert result.exit_code == 2
    assert "training.learning_rate" in result.stderr
    assert "--run DIR" in result.stderr


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    result = invoke("submit", QUICKSTART, "--run", str(tmp_path))
    assert result.exit_code == 2
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_run_directory_is_private_and_holds_its_identity(run: RunLayout) -> None:
    assert run.root.stat().st_mode & 0o777 == 0o700
    assert (run.secrets / "server_key").stat().st_mode & 0o777 == 0o600
    assert json.loads(run.plan.read_text())["name"] == "quickstart"
    assert len(run.benchmark_data("held-out").read_text().splitlines()) == 500
    key = (run.secrets / "server_key").read_text()
    others = [p for p in run.root.rglob("*") if p.is_file() and p.parent != run.secrets]
    assert not [p for p in others if key in p.read_text(errors="replace")]


def test_status_tells_jobs_progress_and_failures(run: RunLayout) -> None:
    write_task(run, "prepare", 0, TaskRecord(TaskState.DONE))
    write_task(run, "segment-000.trainer", 0, TaskRecord(TaskState.FAILED, message="the disk is full\n  next: buy one"))
    result = invoke("status", str(run.root))
    assert result.exit_code == 0
    for word in ("1 done", "1 failed", "0/20", "the disk is full\n  next: buy one", "segment-000.evaluation"):
        assert word in result.output


def test_status_tells_how_far_the_collection_is(tmp_path: Path) -> None:
    recipe = load_recipe(ROOT / "recipes" / "small_world" / "star.yaml")
    run = create_or_open(tmp_path / "run", recipe, compile_plan(recipe, LocalSite()))
    assert ["collection", "0", "groups"] in [
        line.split() for line in invoke("status", str(run.root)).output.splitlines()
    ]


def test_status_of_what_is_no_run(tmp_path: Path) -> None:
    result = invoke("status", str(tmp_path))
    assert result.exit_code == 2
    assert "not a run directory" in result.stderr


def test_logs_show_the_end_of_the_newest_log_of_a_role(run: RunLayout) -> None:
    (run.logs / "segment-000.trainer.00000.a.rank0.log").write_text("".join(f"line {i}\n" for i in range(100)))
    (run.logs / "prepare.00000.b.rank0.log").write_text("other\n")
    result = invoke("logs", str(run.root), "trainer", "-n", "2")
    assert result.output.endswith("line 98\nline 99\n")
    assert "line 97" not in result.output
    assert invoke("logs", str(run.root), "evaluation").exit_code == 2


def test_cancel_of_a_run_that_does_not_run(run: RunLayout) -> None:
    result = invoke("cancel", str(run.root))
    assert result.exit_code == 2
    assert "no job and no process of this run is running" in result.stderr


def test_cancel_of_a_run_on_another_machine_says_where(run: RunLayout) -> None:
    claim = {"pid": 12, "started": "5", "host": "elsewhere"}
    (run.jobs / "local-00001.json").write_text(json.dumps(claim))
    result = invoke("cancel", str(run.root))
    assert result.exit_code == ExitCode.FATAL
    assert "'elsewhere'" in result.stderr


def test_report_of_a_run_without_results_says_what_is_missing(run: RunLayout) -> None:
    result = invoke("report", str(run.root))
    assert result.exit_code == 0
    assert "missing: metrics of iterations" in result.output
    assert run.report.is_file()
    assert f"page: {run.page}" in result.output
    assert "There are no traces to show." in run.page.read_text()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem with room for next to nothing."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("mounting a small filesystem needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_is_told_and_nothing_half_made_is_left(full_disk: Path) -> None:
    result = invoke("submit", QUICKSTART, "--run", str(full_disk / "run"))
    assert result.exit_code == ExitCode.RETRYABLE
    assert "the disk is full" in result.output
    assert "make room" in result.output
    assert list(full_disk.iterdir()) == []
