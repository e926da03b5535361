"""What ``mrt-hpc clean`` removes of a run, and what it never removes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import typed
from families import holder_of
from synthetic_run import Shape, SyntheticRun

from mrt_hpc.attempt.ledger import record_submission
from mrt_hpc.cli.life import KINDS
from mrt_hpc.cli.options import ROLES
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.recipe.lock import read_lock
from mrt_hpc.run.groups import commit_group, read_group
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest
from mrt_hpc.run.pins import pin
from mrt_hpc.run.quarantine import set_aside
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.weights import publish, published_versions
from mrt_hpc.submit.cleaning import Removable, frees, removals

LAST = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight iterations that is done, evaluated at 0, 4 and 8."""
    run = SyntheticRun(tmp_path_factory.mktemp("made") / "run", Shape(LAST, 4, problems=2, paragraphs=1)).write()
    for version in range(1, LAST + 1):
        publish(run, version, lambda folder: (folder / "model.safetensors").write_bytes(bytes(1000)) and None)
    for step in (6, 8):
        run.checkpoint(step).mkdir(parents=True)
        (run.checkpoint(step) / "state").write_bytes(bytes(5000))
    (run.logs / "trainer.log").write_text("x" * 100)
    (run.logs / "submission.sh").write_text("script")
    damaged = run.root / "damaged"
    damaged.write_bytes(bytes(300))
    set_aside(run, [damaged], "damaged")
    for name in ("samples", ".shard-00000.tmp-0123456789ab"):
        (run.evaluation(0, "aime24") / name).mkdir()
    for benchmark in ("aime24", "math500"):
        source = run.evaluation_shard(0, benchmark, 0)
        named = {name: read_manifest(source).about[name] for name in ("weights", "settings")}
        commit_group(run.evaluation_shard(4, benchmark, 0), read_group(source), **named)
    for job in read_plan(run.plan).jobs:
        for index in range(job.tasks):
            write_task(run, job.name, index, TaskRecord(TaskState.DONE))
    return run.root


@pytest.fixture
def run(made: Path, tmp_path: Path) -> RunLayout:
    return RunLayout(shutil.copytree(made, tmp_path / "run"))


def found(layout: RunLayout, *asked: Removable) -> dict[Removable, list[str]]:
    every = removals(layout, read_plan(layout.plan), read_lock(layout.recipe_lock), asked)
    return {one.kind: [path.name for path in one.paths] for one in every}


def clean(layout: RunLayout, *options: str, exits: int = 0) -> str:
    return typed("clean", layout.root, *options, exits=exits).output


def files(layout: RunLayout, *without: str) -> set[Path]:
    """The files of a run, without those of some folders and half-made ones."""
    every = {path for path in layout.root.rglob("*") if path.is_file()}
    return {p for p in every if p.relative_to(layout.root).parts[0] not in without and ".tmp-" not in str(p)}


def test_the_usual_removal_keeps_results_and_the_last_weights_and_checkpoint(run: RunLayout) -> None:
    every = set(run.root.rglob("*"))
    shown = clean(run, exits=2)
    assert all(fact in shown for fact in ("4.9 KiB", "step000008", "--yes")), "one checkpoint"
    assert set(run.root.rglob("*")) == every, "nothing is removed without a yes"
    free = ("weights", "checkpoints", "set_aside", "logs", "hearts", "jobs")
    before = files(run, *free)
    assert "freed " in clean(run, "--yes")
    assert (published_versions(run), [path.name for path in run.checkpoints.iterdir()]) == ([0, LAST], ["step000008"])
    assert list(run.set_aside.iterdir()) == []
    assert not run.evaluation_samples(0, "aime24").exists()
    assert files(run, *free) == before
    assert "freed" not in clean(run, "--yes"), "nothing is left to remove"
    assert (run.logs / "trainer.log").exists()


def test_logs_go_by_name_and_job_scripts_stay(run: RunLayout) -> None:
    clean(run, "--what", "logs", "--yes")
    assert [path.name for path in run.logs.iterdir()] == ["submission.sh"]
    assert published_versions(run) == [*range(LAST + 1)], "nothing else goes"
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step000006", "step000008"]


def test_the_last_checkpoint_goes_only_by_name_and_only_when_the_run_is_finished(run: RunLayout) -> None:
    assert found(run)[Removable.CHECKPOINTS] == ["step000006"]
    assert found(run, Removable.CHECKPOINTS) == {Removable.CHECKPOINTS: ["step000006", "step000008"]}
    trainer = next(job for job in read_plan(run.plan).jobs if job.role is Role.TRAINER)
    write_task(run, trainer.name, 0, TaskRecord(TaskState.STOPPED))
    assert found(run, Removable.CHECKPOINTS) == {Removable.CHECKPOINTS: ["step000006"]}
    assert f"v{LAST - 1:06d}" not in found(run)[Removable.WEIGHTS], "a run that goes on keeps its last versions"


def test_a_version_and_samples_that_an_evaluation_waits_for_stay(run: RunLayout, tmp_path: Path) -> None:
    versions = [f"v{version:06d}" for version in range(1, LAST)]
    assert found(run)[Removable.WEIGHTS] == versions
    run.evaluation_samples(4, "math500").mkdir()
    run.evaluation_summary(4, "math500").unlink()
    (tmp_path / "eval" / "secrets").mkdir(parents=True)
    (tmp_path / "eval" / "secrets" / "server_key").write_text("key")
    pin(run, 3, RunLayout(tmp_path / "eval"))
    assert found(run)[Removable.WEIGHTS] == [version for version in versions if version[-1] not in "34"]
    assert found(run)[Removable.PARTS] == ["samples", ".shard-00000.tmp-0123456789ab"]


def test_a_run_that_runs_or_may_be_queued_is_not_touched(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(run, "jobs", "hearts")
    monkeypatch.setenv("PATH", "/nowhere")  # no queue can be asked
    record_submission(run, "prepare", "12", "site")
    clean(run, "--yes", exits=2)
    with holder_of(run.root) as process:
        shown = clean(run, "--yes", exits=2)
    assert (f"process {process.pid}" in shown, "KiB" in shown) == (True, False), "it is refused before the table"
    assert files(run, "jobs", "hearts") == before


def test_files_with_another_link_free_nothing(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(10))
    (tmp_path / "two").write_bytes(bytes(100))
    os.link(tmp_path / "two", tmp_path / "link")
    assert frees([tmp_path / "one", tmp_path / "two"]) == 10
    assert (list(KINDS), ROLES) == ([kind.value for kind in Removable], [role.value for role in Role])


def test_what_is_held_open_is_named_and_all_else_is_removed(run: RunLayout) -> None:
    """A mounted folder cannot be removed, as the folder around a file that is held open on NFS."""
    (held := run.weights_version(3) / "a").mkdir()
    (run.weights_version(3) / "b").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(held)], check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        printed = typed("clean", run.root, "--what", "weights", "--yes").output
    finally:
        (left,) = run.weights.glob(".v000003.tmp-*")
        subprocess.run(["umount", str(left / "a")], check=True)
    assert (published_versions(run), [path.name for path in left.iterdir()]) == ([0, 8], ["a"])
    assert str(left) in " ".join(printed.split()) and "a process still holds it open" in printed
    typed("clean", run.root, "--what", "parts", "--yes")
    assert not left.exists()
