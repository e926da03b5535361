"""What ``mrt-hpc clean`` removes of a run, and what it never removes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from slurm_texts import squeue_prints

from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.cli.life import KINDS, size
from mrt_hpc.cli.main import main
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.run.groups import commit_group, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.weights import pin, publish, published_versions
from mrt_hpc.submit.cleaning import Removable, frees, removals
from tests.support.synthetic_run import Shape, SyntheticRun

if TYPE_CHECKING:
    from pathlib import Path

LAST = 8


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A run of eight iterations that is done, evaluated at 0, 4 and 8."""
    layout = SyntheticRun(tmp_path / "run", Shape(LAST, 4, problems=2, paragraphs=1)).write()
    for version in range(1, LAST + 1):
        publish(layout, version, lambda folder: (folder / "model.safetensors").write_bytes(bytes(1000)) and None)
    for step in (6, 8):
        layout.checkpoint(step).mkdir(parents=True)
        (layout.checkpoint(step) / "state").write_bytes(bytes(5000))
    (layout.logs / "trainer.log").write_text("x" * 100)
    (layout.logs / "submission.sh").write_text("script")
    damaged = layout.root / "damaged"
    damaged.write_bytes(bytes(300))
    set_aside(layout, [damaged], "damaged")
    for name in ("parts-00000", ".shard-00000.tmp-0123456789ab"):
        (layout.evaluation(0, "aime24") / name).mkdir()
    shard = layout.evaluation_shard(4, "aime24", 0)
    for version, benchmark in ((4, "aime24"), (4, "math500")):
        source = layout.evaluation_shard(0, benchmark, 0)
        named = {name: read_manifest(source).about[name] for name in ("weights", "settings")}
        commit_group(layout.evaluation_shard(version, benchmark, 0), read_group(source), **named)
    assert shard.is_dir()
    for job in read_plan(layout.plan).jobs:
        for index in range(job.tasks):
            write_task(layout, job.name, index, TaskRecord(TaskState.DONE))
    return layout


def found(layout: RunLayout, *asked: Removable) -> dict[Removable, list[str]]:
    every = removals(layout, read_plan(layout.plan), read_lock(layout.recipe_lock), asked)
    return {one.kind: [path.name for path in one.paths] for one in every}


def clean(layout: RunLayout, *options: str) -> Result:
    return CliRunner().invoke(main, ["clean", str(layout.root), *options])


def kept(layout: RunLayout) -> set[Path]:
    """What may never be removed."""
    files = {path for path in layout.root.rglob("*") if path.is_file()}
    free = ("weights", "checkpoints", "set_aside", "logs", "hearts", "jobs")
    return {p for p in files if p.relative_to(layout.root).parts[0] not in free and ".tmp-" not in str(p)}


def test_the_usual_removal_keeps_results_and_the_last_weights_and_checkpoint(run: RunLayout) -> None:
    before = kept(run)
    result = clean(run, "--yes")
    assert result.exit_code == 0, result.output
    assert published_versions(run) == [0, LAST]
    assert [path.name for path in run.checkpoints.iterdir()] == ["step000008"]
    assert list(run.set_aside.iterdir()) == []
    assert not (run.evaluation(0, "aime24") / "parts-00000").exists()
    assert (run.logs / "trainer.log").exists()
    assert kept(run) == before
    assert "freed " in result.output
    assert "there is nothing to remove" in clean(run, "--yes").output


def test_the_table_shows_what_and_how_much_and_nothing_is_removed_without_a_yes(run: RunLayout) -> None:
    before = {path for path in run.root.rglob("*")}
    result = clean(run)
    assert result.exit_code != 0
    assert "there is no terminal to ask at" in result.output
    assert "5.0 kB" in result.output  # one checkpoint
    assert "step000008, the newest, stays" in result.output
    assert {path for path in run.root.rglob("*")} == before


def test_the_last_checkpoint_goes_only_by_name_and_only_when_the_run_is_finished(run: RunLayout) -> None:
    assert found(run)[Removable.CHECKPOINTS] == ["step000006"]
    assert found(run, Removable.CHECKPOINTS) == {Removable.CHECKPOINTS: ["step000006", "step000008"]}
    trainer = next(job for job in read_plan(run.plan).jobs if job.role is Role.TRAINER)
    write_task(run, trainer.name, 0, TaskRecord(TaskState.STOPPED))
    assert found(run, Removable.CHECKPOINTS) == {Removable.CHECKPOINTS: ["step000006"]}


def test_a_version_with_an_evaluation_to_come_stays(run: RunLayout) -> None:
    assert found(run)[Removable.WEIGHTS] == [f"v{version:06d}" for version in range(1, LAST)]
    run.evaluation_summary(4, "math500").unlink()
    assert "v000004" not in found(run)[Removable.WEIGHTS]


def test_a_version_that_an_evaluation_on_its_own_waits_for_stays(run: RunLayout, tmp_path: Path) -> None:
    (tmp_path / "eval" / "secrets").mkdir(parents=True)
    (tmp_path / "eval" / "secrets" / "server_key").write_text("key")
    assert "v000003" in found(run)[Removable.WEIGHTS]
    pin(run, 3, RunLayout(tmp_path / "eval"))
    assert "v000003" not in found(run)[Removable.WEIGHTS]


def test_parts_of_a_shard_that_is_not_whole_stay(run: RunLayout) -> None:
    (run.evaluation(4, "aime24") / "parts-00001").mkdir()
    assert found(run)[Removable.PARTS] == ["parts-00000", ".shard-00000.tmp-0123456789ab"]


def test_logs_go_by_name_and_job_scripts_stay(run: RunLayout) -> None:
    assert Removable.LOGS not in found(run)
    assert clean(run, "--what", "logs", "--yes").exit_code == 0
    assert [path.name for path in run.logs.iterdir()] == ["submission.sh"]
    assert len(published_versions(run)) == LAST + 1


def test_a_run_whose_jobs_are_queued_is_not_touched(
    run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "squeue").write_text(f"#!/bin/sh\necho '{squeue_prints('12|PENDING|N/A|Priority|')}'\n")
    (folder / "sacct").write_text("#!/bin/sh\nexit 0\n")
    for name in ("squeue", "sacct"):
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    record_submission(run, "prepare", "12", "site")
    result = clean(run, "--yes")
    assert result.exit_code != 0
    assert "queued or running, so nothing is removed" in result.output
    assert len(published_versions(run)) == LAST + 1


def test_a_run_of_this_machine_that_runs_is_not_touched(run: RunLayout) -> None:
    hold = (
        "import sys, time; from pathlib import Path; from mrt_hpc.attempt.ledger import claimed; "
        "from mrt_hpc.run.layout import RunLayout\n"
        "with claimed(RunLayout(Path(sys.argv[1])), 60): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", hold, str(run.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        result = clean(run, "--yes")
        process.kill()
    assert result.exit_code != 0
    assert f"process {process.pid}" in result.output
    assert "items" not in result.output  # refused before the table
    assert len(published_versions(run)) == LAST + 1


def test_a_run_whose_queue_cannot_be_asked_is_not_touched(
    run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    record_submission(run, "prepare", "12", "site")
    assert clean(run, "--yes").exit_code != 0
    assert len(published_versions(run)) == LAST + 1


def test_files_with_another_link_free_nothing(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(10))
    (tmp_path / "two").write_bytes(bytes(100))
    os.link(tmp_path / "two", tmp_path / "link")
    assert frees([tmp_path / "one", tmp_path / "two"]) == 10


def test_the_kinds_of_the_command_are_those_of_the_code() -> None:
    assert list(KINDS) == [kind.value for kind in Removable]


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (18.2e9, "18.2 GB")])
def test_sizes_are_readable(count: float, text: str) -> None:
    assert size(count) == text
