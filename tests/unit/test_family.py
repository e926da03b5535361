"""Sweeps: families of runs, how they are made and continued, and which commands take them."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from basics import QUICKSTART, RECIPES, TRAINER
from canned_queue import CannedRun, canned_run
from commands import in_a_process, refusal, typed
from evaluated import commit_all, run_directory
from run_of import say
from slurm_texts import squeue_prints
from submitted import age

from mrt_hpc import RunLayout, UserError
from mrt_hpc.analysis.named_models import split_arms
from mrt_hpc.attempt.ledger import claim_run, make_claim_folders, submissions
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.run.family import Axis, Family, arms_of, runs_of
from mrt_hpc.run.task_state import TaskState


def test_values_are_ranges_or_lists() -> None:
    assert Axis.of("seed=-1..2").values == ("-1", "0", "1", "2")
    assert Axis.of("training.learning_rate=1e-6,2e-6") == Axis("training.learning_rate", ("1e-6", "2e-6"))
    family = Family((Axis.of("seed=3,5"), Axis.of("algorithm.alpha=1,2")))
    assert [member.folder for member in family.members][:2] == ["seed=3+algorithm.alpha=1", "seed=3+algorithm.alpha=2"]
    with pytest.raises(UserError, match=r"--sweep seed=0\.\.2"):
        Axis.of("seed=0-2")
    assert Axis.of("seed=0..2,7").values == ("0", "1", "2", "7")
    for wrong in (
        "seed", "seed=", "=1", "seed=2..1", "seed=1,1", "seed=1,", "model.path=/a", "seed=[1,2]", "a b=1", "seed=0..",
        "seed=0,1,2,01", "algorithm.alpha=1,1.0", "training.learning_rate=1e-6,0.000001", "seed=0..2,1", "seed=...",
        "recipe=grpo,mrt",
    ):  # fmt: skip
        with pytest.raises(UserError) as refused:
            Axis.of(wrong)
        assert refused.value.where == "--sweep"


def test_arms_are_named_by_what_tells_their_fields_apart() -> None:
    """Two temperatures, of sampling and of the evaluation; and recipes, whose names need no field."""
    axes = ("sampling.temperature=0.7", "evaluation.sampling.temperature=1", "algorithm.alpha=2", "seed=3")
    (member,) = Family(tuple(map(Axis.of, axes))).members
    assert member.arm == "sampling.temperature 0.7 evaluation.sampling.temperature 1 alpha 2"
    (first, _) = Family((Axis("recipe", ("grpo", "mrt")), Axis.of("seed=0"))).members
    assert (first.arm, first.recipe) == ("grpo", "grpo")
    assert (first.folder, first.overrides) == ("recipe=grpo+seed=0", ("seed=0",))


def test_a_family_keeps_its_order_and_spelling(tmp_path: Path) -> None:
    """The same command with the fields in another order, and values that are spelt otherwise, is the same family."""
    family = Family((Axis.of("seed=0..1"), Axis.of("algorithm.alpha=0.5,1")))
    family.record(tmp_path)
    grown = Family((Axis.of("algorithm.alpha=1.0,2,0.50"), Axis.of("seed=01,0"))).continue_family(tmp_path)
    assert grown.axes == (Axis("seed", ("0", "1")), Axis("algorithm.alpha", ("0.5", "1", "2")))
    assert set(family.members) < set(grown.members)
    lacking = refusal(Family((Axis.of("seed=3"), Axis.of("algorithm.alpha=0.5,1"))).continue_family, tmp_path)
    assert "--sweep seed=0,1,3 --sweep algorithm.alpha=0.5,1," in (lacking.advice or "")
    assert "other fields" in refusal(Family((Axis.of("seed=0..1"),)).continue_family, tmp_path).what


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of a family."""
    return tmp_path / "family"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The profile of a cluster on which jobs stay in the queue."""
    run = canned_run(tmp_path, monkeypatch)
    shutil.rmtree(run.layout.root)
    line = squeue_prints("@|PENDING|N/A|None||NAME|SCRIPT|NOW").splitlines()[1]
    (run.commands / "queued").write_text(f"{line}\n")
    run.command("scontrol", "exit 0")
    run.command("scancel", "exit 0")
    run.command(
        "sbatch",
        f'for script; do :; done\ncd {run.commands}; n=$(ls | grep -c "^script-"); n=$((n + 1))\n'
        'cp "$script" script-$n; name=$(sed -n "s/^#SBATCH --job-name=//p" "$script")\n'
        'sed "s/@/$n/; s/NAME/$name/; s|SCRIPT|$script|; s/NOW/$(date +%s)/" queued >> queue; echo $n',
    )
    profile = tmp_path / "profile.yaml"
    profile.write_text("type: slurm\nname: profile\n")
    return profile


def all_end(root: Path) -> None:
    """No job of a family is queued any more, and all were submitted an hour ago."""
    (root.parent / "bin" / "queue").write_text(squeue_prints())
    for run in runs_of(root):
        age(RunLayout(run))


def first_scripts(root: Path) -> list[str]:
    """What sbatch got for the first job of each run."""
    first = [submissions(RunLayout(run))[0].job_id for run in runs_of(root)]
    return [(root.parent / "bin" / f"script-{job_id}").read_text() for job_id in first]


def test_a_sweep_is_a_run_for_each_combination_held_back_by_those_before(cluster: Path, root: Path) -> None:
    two = ("--sweep", "seed=0..1", "--sweep", "algorithm.alpha=0.5,1")
    typed("submit", QUICKSTART, *two, "--run", root, "--site", cluster, "--at-once", 2)
    locks = [read_recipe_lock(run / "recipe.lock.yaml") for run in runs_of(root)]
    assert [(lock.seed, lock.algorithm.alpha) for lock in locks] == [(0, 0.5), (0, 1.0), (1, 0.5), (1, 1.0)]
    ids = [[entry.job_id for entry in submissions(RunLayout(run))] for run in runs_of(root)]
    waits = [line for line in "".join(first_scripts(root)).splitlines() if line.startswith("#SBATCH --dependency")]
    wanted = [f"#SBATCH --dependency=afterany:{':'.join(sorted(of_run))}" for of_run in ids[:2]]
    assert waits == wanted, "the third behind the first, and the fourth behind the second"


def test_a_member_that_was_moved_out_of_its_family_is_not_made_again(cluster: Path, root: Path) -> None:
    typed("submit", QUICKSTART, "--sweep", "seed=0..1", "--run", root, "--site", cluster)
    moved, other = map(RunLayout, runs_of(root))
    moved.root.rename(root.parent / "moved")
    say(other, TRAINER, TaskState.RUNNING)
    assert refusal(say, moved, TRAINER, TaskState.RUNNING).where == moved.root
    assert runs_of(root) == [other.root]


@pytest.mark.parametrize("swept", ["seed=0..", "seeds=0..1", "algorithm.alpha=1,-1", "recipe.name.first=a"])
def test_a_wrong_value_of_a_sweep_is_told_by_its_option(cluster: Path, root: Path, swept: str) -> None:
    words = ("submit", QUICKSTART, "--run", root, "--site", cluster, "--set", "schedule.iterations=2")
    said = typed(*words, "--sweep", swept, exits=2).stderr
    assert "where:    --sweep" in said and "--sweep" in said.partition("next:")[2] and "--set" not in said
    assert not root.exists()


def test_a_family_grows_and_is_continued_and_takes_no_other_values(cluster: Path, root: Path) -> None:
    words = ("submit", QUICKSTART, "--run", root, "--site", cluster)
    in_a_process(*words, "--sweep", "seed=0..1")
    all_end(root)
    CannedRun(RunLayout(root / "seed=0"), root.parent / "bin").done()
    again = in_a_process("submit", root, "--site", cluster)
    assert "0 job(s) submitted, 0 queued before, 5 done" in again
    assert "5 job(s) submitted, 0 queued before, 0 done" in again
    assert len(runs_of(root)) == 2
    all_end(root)
    in_a_process(*words, "--sweep", "seed=0..2")
    assert [run.name for run in runs_of(root)] == ["seed=0", "seed=1", "seed=2"]
    assert "this family has runs with other values" in typed(*words, "--sweep", "seed=1..2", exits=2).stderr
    assert "continued as they are" in typed("submit", root, "--set", "seed=7", exits=2).stderr
    for number in range(3):
        assert f"seed={number}" in typed("status", root).output
        assert f"{root / f'seed={number}'}:" in typed("explain", root).output


def test_a_run_that_has_begun_is_held_back_too(cluster: Path, root: Path) -> None:
    commands = root.parent / "bin"
    words = ("submit", QUICKSTART, "--run", root, "--site", cluster, "--sweep", "seed=0..1")
    in_a_process(*words)
    all_end(root)
    CannedRun(RunLayout(root / "seed=1"), commands).done("prepare")
    in_a_process(*words, "--at-once", 1)
    first, second = (submissions(RunLayout(run)) for run in runs_of(root))
    before = ":".join(sorted(entry.job_id for entry in first[5:]))
    scripts = [(commands / f"script-{entry.job_id}").read_text() for entry in second[5:]]
    held = [f"#SBATCH --dependency=afterany:{before}\n" in script for script in scripts]
    assert len(held) == 4 and held[0] and not all(held), "its first jobs that are left, of five one is done"


def test_a_member_with_nothing_to_cancel_keeps_no_other(cluster: Path, root: Path) -> None:
    in_a_process("submit", QUICKSTART, "--run", root, "--site", cluster, "--sweep", "seed=0..1")
    all_end(root)
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
    make_claim_folders(family)
    with claim_run(family, 10.0):
        monkeypatch.setattr(os, "getpid", lambda: 1)  # as another process sees it
        assert "waits for its turn in the sweep that process" in typed(*words).output
        (family.jobs / "local-00001.json").write_text("damaged")
        assert "local-00001.json" in typed(*words).output, "a record that cannot be read hides nothing else"


def test_recipes_are_an_axis_with_one_cap_and_one_store(cluster: Path, root: Path) -> None:
    recipes = [RECIPES / "small_world" / f"{kind}.yaml" for kind in ("grpo", "mrt_online")]
    words = (*recipes, "--sweep", "seed=0..1", "--run", root, "--site", cluster)
    hours = json.loads(typed("plan", *words, "--json").stdout)
    assert not root.exists()
    names = ["small-world-grpo", "small-world-mrt-online"]
    assert {name: arm["runs"] for name, arm in hours["arms"].items()} == dict.fromkeys(names, 2)
    assert hours["all"]["jobs"] == sum(arm["jobs"] for arm in hours["arms"].values()) > 0
    assert "run 4 of 4" in in_a_process("submit", *words, "--at-once", 1)
    locks = [read_recipe_lock(run / "recipe.lock.yaml") for run in runs_of(root)]
    assert [(lock.name, lock.seed) for lock in locks] == [(name, seed) for name in names for seed in (0, 1)]
    assert {lock.evaluation.results for lock in locks} == {str(root / "results")}
    assert ["--dependency=afterany" in script for script in first_scripts(root)] == [False, True, True, True]
    assert [arm.partition("=")[0] for arm in arms_of([str(root)])[1]] == names
    assert "two recipes have the same name" in typed("plan", words[0], *words, exits=2).stderr
    assert "--sbatch" in typed("plan", *words, "--sbatch", exits=2).stderr


def test_the_hours_of_a_family_are_those_of_its_runs(root: Path) -> None:
    """Of the paper's recipe, by the stated rates of the example site: three runs take three times one."""
    words, sweep = ("plan", "mrt_online", "--site", "example"), ("--sweep", "seed=0..2", "--run", root)
    one = json.loads(typed(*words, "--json").stdout)["expected"].values()
    whole = json.loads(typed(*words, *sweep, "--json").stdout)["all"]
    assert whole["gpu_hours"] == pytest.approx(3 * sum(job["gpu_hours"] for job in one))
    shown = typed(*words, *sweep).output
    assert f"{whole['gpu_hours']:,.1f}" in shown and f"{whole['limit_gpu_hours']:,.1f}" in shown


def trained_family(root: Path, late: Sequence[str] = ()) -> Family:
    """Two seeds of two values; the last weights of those runs that are late are not evaluated."""
    root.mkdir()
    family = Family((Axis.of("algorithm.alpha=1,2"), Axis.of("seed=0..1")))
    for number, member in enumerate(family.members):
        run = run_directory(root.parent / f"run{number}", *member.overrides)
        for version in (0, 2) if member.folder in late else (2, 20):
            commit_all(run, version)
        shutil.move(run.root, root / member.folder)
    family.record(root)
    return family


def test_a_late_or_lost_run_of_a_family_is_named_and_the_others_are_compared(root: Path) -> None:
    late, lost = (root / f"algorithm.alpha={alpha}+seed=1" for alpha in (1, 2))
    trained_family(root, [late.name])
    whole = json.loads(typed("compare", root, "--json").stdout)
    (row,) = whole["comparisons"]
    assert (row["first"], row["first_runs"], row["second"], row["second_runs"]) == ("alpha 1", 1, "alpha 2", 2)
    assert whole["notes"][0].startswith("alpha 1 has 1 of 2 runs") and f"mrt-hpc status {late}" in whole["notes"][0]
    shutil.rmtree(lost)
    left = json.loads(typed("compare", root, "--json").stdout)
    assert left["comparisons"][0]["second_runs"] == 1
    again = f"mrt-hpc submit RECIPE --sweep algorithm.alpha=1,2 --sweep seed=0,1 --run {root}"
    assert [note for note in left["notes"] if f"lacks {lost.name}" in note and again in note]
    for command in ("report", "status", "explain"):
        assert f"note: {root} lacks {lost.name}" in typed(command, root).output
    shutil.rmtree(root / "algorithm.alpha=2+seed=0")
    assert "a comparison needs two models or arms" in typed("compare", root, exits=2).stderr
    refused = typed("compare", late, root / "algorithm.alpha=1+seed=0", exits=2).stderr
    assert f"{late}@2" in refused.partition("next:")[2] and f"{late}@0" not in refused.partition("next:")[2]


def test_a_family_is_compared_by_its_arms(root: Path) -> None:
    family = trained_family(root)
    alone, arms = arms_of([str(root), "runs/other@3"])
    assert alone == ["runs/other@3"]
    assert [arm.partition("=")[0] for arm in arms] == ["alpha 1", "alpha 2"]
    assert all(arm.count(str(root)) == 2 for arm in arms)
    assert "this is a family of runs" in typed("traces", root, exits=2).stderr
    assert split_arms([f"all={root}", "one=runs/a"]) == {"all": [str(run) for run in runs_of(root)], "one": ["runs/a"]}
    assert str(root / "report.html") in typed("report", root).output
    assert all(member.folder in (root / "report.html").read_text() for member in family.members)
    shutil.copytree(root, other := root.with_name("other"))
    _, arms = arms_of([str(root), str(other)])
    assert [arm.partition("=")[0] for arm in arms] == [f"{f}, alpha {n}" for f in ("family", "other") for n in (1, 2)]
    assert all(arm.count("seed=") == 2 for arm in arms), "runs of two families are never one arm"
