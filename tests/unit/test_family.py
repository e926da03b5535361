"""Sweeps: families of runs, how they are made and continued, and which commands take them."""

import os
import shutil
from pathlib import Path

import pytest
from basics import QUICKSTART
from canned_queue import CannedRun, canned_run
from commands import in_a_process, typed
from evaluated import commit_all, run_directory
from slurm_texts import squeue_prints

from mrt_hpc.analysis.named_models import split_arms
from mrt_hpc.attempt.ledger import claimed, submissions
from mrt_hpc.errors import UserError
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.family import Axis, Family, arms_of, runs_of
from mrt_hpc.run.layout import RunLayout

TWO = ("--sweep", "seed=0..1", "--sweep", "algorithm.alpha=0.5,1")


def test_values_are_ranges_or_lists() -> None:
    assert Axis.of("seed=-1..2").values == ("-1", "0", "1", "2")
    assert Axis.of("training.learning_rate=1e-6,2e-6") == Axis("training.learning_rate", ("1e-6", "2e-6"))
    family = Family((Axis.of("seed=3,5"), Axis.of("algorithm.alpha=1,2")))
    assert [member.folder for member in family.members][:2] == ["seed=3+algorithm.alpha=1", "seed=3+algorithm.alpha=2"]
    with pytest.raises(UserError, match=r"--sweep seed=0\.\.2"):
        Axis.of("seed=0-2")
    for wrong in ("seed", "seed=", "=1", "seed=2..1", "seed=1,1", "seed=1,", "model.path=/a", "seed=[1,2]", "a b=1"):
        with pytest.raises(UserError):
            Axis.of(wrong)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The profile of a cluster on which jobs stay in the queue."""
    run = canned_run(tmp_path, monkeypatch)
    shutil.rmtree(run.layout.root)
    (run.commands / "queued").write_text(squeue_prints("@|PENDING|N/A|None|").splitlines()[1] + "\n")
    run.command("scontrol", "exit 0")
    run.command("scancel", "exit 0")
    run.command(
        "sbatch",
        f'for script; do :; done\ncd {run.commands}; n=$(ls | grep -c "^script-"); n=$((n + 1))\n'
        'cp "$script" script-$n; sed "s/@/$n/" queued >> queue; echo $n',
    )
    profile = tmp_path / "profile.yaml"
    profile.write_text("type: slurm\nname: profile\n")
    return profile


def test_a_sweep_is_a_run_for_each_combination_held_back_by_those_before(cluster: Path, tmp_path: Path) -> None:
    root = tmp_path / "family"
    words = ("submit", QUICKSTART, *TWO, "--run", root, "--site", cluster)
    assert "run 4 of 4" in typed(*words, "--at-once", 2).output
    runs = runs_of(root)
    found = [
        (recipe.seed, recipe.algorithm.alpha) for r in runs if (recipe := read_recipe_lock(r / "recipe.lock.yaml"))
    ]
    assert found == [(0, 0.5), (0, 1.0), (1, 0.5), (1, 1.0)]
    assert {read_recipe_lock(r / "recipe.lock.yaml").evaluation.results for r in runs} == {str(root / "results")}
    ids = [[entry.job_id for entry in submissions(RunLayout(r))] for r in runs]
    first = [(tmp_path / "bin" / f"script-{of_run[0]}").read_text() for of_run in ids]
    waits = [line for text in first for line in text.splitlines() if line.startswith("#SBATCH --dependency")]
    wanted = [f"#SBATCH --dependency=afterany:{':'.join(sorted(of_run))}" for of_run in ids[:2]]
    assert waits == wanted, "the third behind the first, and the fourth behind the second"


def test_a_family_grows_and_is_continued_and_takes_no_other_values(cluster: Path, tmp_path: Path) -> None:
    root = tmp_path / "family"
    words = ("submit", QUICKSTART, "--run", root, "--site", cluster)
    in_a_process(*words, "--sweep", "seed=0..1")
    (tmp_path / "bin" / "queue").write_text(squeue_prints())
    CannedRun(RunLayout(root / "seed=0"), tmp_path / "bin").done()
    again = in_a_process("submit", root, "--site", cluster)
    assert "0 job(s) submitted, 0 queued before, 5 done" in again
    assert "5 job(s) submitted, 0 queued before, 0 done" in again
    assert len(runs_of(root)) == 2
    (tmp_path / "bin" / "queue").write_text(squeue_prints())
    in_a_process(*words, "--sweep", "seed=0..2")
    assert [run.name for run in runs_of(root)] == ["seed=0", "seed=1", "seed=2"]
    assert "this family has runs with other values" in typed(*words, "--sweep", "seed=1..2", exits=2).stderr
    assert "a sweep begins with a recipe" in typed("submit", root, "--sweep", "seed=0..2", exits=2).stderr
    assert "continued as they are" in typed("submit", root, "--set", "seed=7", exits=2).stderr
    for number in range(3):
        assert f"seed={number}" in typed("status", root).output
        assert f"{root / f'seed={number}'}:" in typed("explain", root).output


def test_a_run_that_has_begun_is_held_back_too(cluster: Path, tmp_path: Path) -> None:
    root, queue = tmp_path / "family", tmp_path / "bin" / "queue"
    in_a_process("submit", QUICKSTART, "--run", root, "--site", cluster, "--sweep", "seed=0..1")
    queue.write_text(squeue_prints())
    CannedRun(RunLayout(root / "seed=1"), queue.parent).done("prepare")
    in_a_process("submit", QUICKSTART, "--run", root, "--site", cluster, "--sweep", "seed=0..1", "--at-once", 1)
    first, second = (submissions(RunLayout(run)) for run in runs_of(root))
    before = ":".join(sorted(entry.job_id for entry in first[5:]))
    scripts = [(queue.parent / f"script-{entry.job_id}").read_text() for entry in second[5:]]
    held = [f"#SBATCH --dependency=afterany:{before}\n" in script for script in scripts]
    assert len(held) == 4 and held[0] and not all(held), "its first jobs that are left, of five one is done"


def test_a_member_with_nothing_to_cancel_keeps_no_other(cluster: Path, tmp_path: Path) -> None:
    root = tmp_path / "family"
    in_a_process("submit", QUICKSTART, "--run", root, "--site", cluster, "--sweep", "seed=0..1")
    (tmp_path / "bin" / "queue").write_text(squeue_prints())
    first, second = runs_of(root)
    assert f"{first}: no job" not in typed("cancel", root).output
    shutil.rmtree(first / "jobs")
    said = typed("cancel", root).output
    assert f"{first}: the records" in said and f"{second}: no job" not in said
    shutil.rmtree(second / "jobs")
    (second / "jobs").mkdir()  # as before it was submitted
    assert "no job and no process" in typed("cancel", root, exits=2).stderr


def test_one_process_at_a_time_runs_a_family_and_its_members_wait_for_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = canned_run(tmp_path, monkeypatch)
    family, words = RunLayout(run.layout.root.parent), ("explain", run.layout.root)
    Family((Axis.of("seed=0..1"),)).record(family.root)
    assert "The run has stopped" in typed(*words).output
    family.jobs.mkdir()
    with claimed(family, 10.0):
        monkeypatch.setattr(os, "getpid", lambda: 1)  # as another process sees it
        assert "waits for its turn in the sweep that process" in typed(*words).output
        (family.jobs / "local-00001.json").write_text("damaged")
        assert "local-00001.json" in typed(*words).output, "a record that cannot be read hides nothing else"


def test_nothing_is_made_where_one_recipe_is_wrong(cluster: Path, tmp_path: Path) -> None:
    root = tmp_path / "family"
    words = ("submit", QUICKSTART, "--run", root, "--site", cluster, "--sweep", "algorithm.alpha=1,-1")
    assert "algorithm.alpha" in typed(*words, exits=2).stderr
    assert not root.exists()


def test_a_family_is_compared_by_its_arms(tmp_path: Path) -> None:
    root = tmp_path / "family"
    root.mkdir()
    family = Family((Axis.of("algorithm.alpha=1,2"), Axis.of("seed=0..1")))
    for number, member in enumerate(family.members):
        run = run_directory(tmp_path / f"run{number}", *member.overrides)
        for version in (2, 20):
            commit_all(run, version)
        shutil.move(run.root, root / member.folder)
    family.record(root)
    alone, arms = arms_of([str(root), "runs/other@3"])
    assert alone == ["runs/other@3"]
    assert [arm.partition("=")[0] for arm in arms] == ["alpha 1", "alpha 2"]
    assert all(arm.count(str(root)) == 2 for arm in arms)
    assert "this is a family of runs" in typed("traces", root, exits=2).stderr
    assert split_arms([f"all={root}", "one=runs/a"]) == {"all": [str(run) for run in runs_of(root)], "one": ["runs/a"]}
    assert str(root / "report.html") in typed("report", root).output
    assert all(member.folder in (root / "report.html").read_text() for member in family.members)
    shutil.copytree(root, other := tmp_path / "other")
    _, arms = arms_of([str(root), str(other)])
    assert [arm.partition("=")[0] for arm in arms] == [f"{f}, alpha {n}" for f in ("family", "other") for n in (1, 2)]
    assert all(arm.count("seed=") == 2 for arm in arms), "runs of two families are never one arm"
