"""More iterations for a run, and new runs that begin with weights of another: from the run directory alone."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from basics import executable
from commands import commands_first, refusal, typed
from run_of import RECIPES, bare_run, forget_claims, run_of
from slurm_texts import squeue_prints
from small_weights import publish_models

from mrt_hpc.algorithms.samples import read_suffixes, write_samples
from mrt_hpc.attempt import ledger
from mrt_hpc.attempt.ledger import record_site, record_submission, remember_site, submissions
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.evaluate.asked_models import models_asked
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.sections import HuggingFaceModel, Suffixes
from mrt_hpc.roles.report import write_report
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.fork_record import read_fork
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import verify
from mrt_hpc.run.problems import omitted_file, read_problems, write_problems
from mrt_hpc.run.task_state import TaskRecord, TaskState, write_task
from mrt_hpc.run.weights import prune
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.origin import fork_of, forked_data

CONSTANT = ("training.schedule=constant", "training.warmup_ratio=0")
SITE = SlurmSite(name="mycluster", account="mine")


def submitted(layout: RunLayout) -> None:
    record_site(layout, SITE)
    remember_site(layout, SITE)
    record_submission(layout, "prepare", "7", "mycluster")


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    layout = run_of(tmp_path / "run")
    submitted(layout)
    publish_models(layout, 0, 2, 3)
    return layout


def flat(*words: object, exits: int = 0) -> str:
    return " ".join(typed(*words, exits=exits).output.split())


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster that accepts every job and knows none; the file holds the job scripts in the order of submission."""
    folder, sent, unknown = tmp_path / "bin", tmp_path / "sent", "echo 'Invalid job id specified' >&2; exit 1"
    monkeypatch.setattr(ledger, "LISTED_WITHIN_S", 0.0)  # each command is typed when the jobs have ended
    commands_first(folder, monkeypatch)
    accepts = f"for script; do :; done; cat \"$script\" >> {sent}; n=$(grep -c '^#!' {sent}); echo $((100 + n))"
    executable(folder / "sbatch", accepts)
    executable(folder / "squeue", f"case \"$*\" in *--jobs*) {unknown} ;; esac; echo '{squeue_prints()}'")
    executable(folder / "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    executable(folder / "scontrol", unknown)
    return sent


def test_a_finished_run_gets_more_iterations_and_its_report_again(tmp_path: Path, slurm: Path) -> None:
    layout = run_of(tmp_path / "run", *CONSTANT)
    submitted(layout)
    plan = read_plan(layout.plan)
    publish_models(layout, 0, plan.iterations)
    layout.checkpoint(plan.iterations).mkdir(parents=True)
    for job in plan.jobs:
        for index in range(job.tasks):
            write_task(layout, job.name, index, TaskRecord(TaskState.DONE))
    typed("submit", layout.root, "--set", f"schedule.iterations={2 * plan.iterations}")
    new = {job.name for job in read_plan(layout.plan).jobs} - {job.name for job in plan.jobs}
    sent = [one.job for one in submissions(layout)][1:]
    assert {*sent} == {*new, "segment-000.evaluation", "report"}, "the evaluations have no results"
    assert len(sent) == slurm.read_text().count("#SBATCH --account=mine")


@pytest.mark.usefixtures("slurm")
def test_a_cosine_is_kept_once_it_has_begun(layout: RunLayout) -> None:
    refused = flat("submit", layout.root, "--set", "schedule.iterations=40", exits=2)
    assert "with schedule: constant it could be changed" in refused
    assert f"mrt-hpc fork {layout.root} --at last --set schedule.iterations=37" in refused, "a fork begins at 0"
    assert "mrt-hpc fork" not in flat("submit", layout.root, "--set", "schedule.iterations=2", exits=2)


def test_more_iterations_need_a_checkpoint_and_go_on_at_the_site_of_the_run(tmp_path: Path, slurm: Path) -> None:
    layout = run_of(tmp_path / "run", *CONSTANT)
    more = ("submit", layout.root, "--set", "schedule.iterations=30")
    publish_models(layout, read_plan(layout.plan).iterations)
    assert "no checkpoint" in flat(*more, exits=2)
    assert not slurm.exists()
    layout.checkpoint(20).mkdir(parents=True)
    submitted(layout)
    typed(*more)
    assert read_recipe_lock(layout.recipe_lock).schedule.iterations == read_plan(layout.plan).iterations == 30
    assert slurm.read_text().count("#SBATCH --account=mine") == len(submissions(layout)) - 1
    assert {one.site for one in submissions(layout)} == {"mycluster"}


def test_a_fork_has_its_own_copy_of_the_weights_and_says_whence(layout: RunLayout, tmp_path: Path, slurm: Path) -> None:
    digest = verify(layout.weights_version(2)).digest
    typed("fork", layout.root, "--at", "2", "--set", "schedule.iterations=6", "--set", "name=half")
    new = RunLayout(tmp_path / "half")
    assert slurm.read_text().count("#SBATCH --account=mine") == len(submissions(new)) > 0
    prune(layout, keep=())
    recipe, record = read_recipe_lock(new.recipe_lock), read_fork(new)
    assert recipe.model == HuggingFaceModel(type="hugging_face", path=str(new.first_model))
    assert (recipe.name, recipe.schedule.iterations) == ("half", 6)
    assert verify(new.first_model, anywhere=True).digest == digest
    assert record and (record.run, record.version, record.digest) == (str(layout.root), 2, digest)
    assert [change["field"] for change in record.changes] == ["schedule.iterations"]
    write_report(new)
    assert f"{layout.root}, weights version 2" in new.report.read_text()


def test_the_same_fork_continues_and_another_is_refused(layout: RunLayout, tmp_path: Path, slurm: Path) -> None:
    site = tmp_path / "mycluster.yaml"
    site.write_text("type: slurm\nname: mycluster\naccount: mine\n")
    where = ["--run", str(tmp_path / "new"), "--site", str(site)]
    for _ in range(2):
        typed("fork", layout.root, "--at", "2", *where)
        forget_claims(RunLayout(tmp_path / "new"))
    assert slurm.exists()
    last = ("fork", layout.root, "--at", "last", "--set", "name=quickstart-from-v2")
    assert "weights version 2" in flat(*last, *where, exits=2)


@pytest.mark.parametrize(("at", "option", "told"), [
    ("newest", (), "first, last, or one of those that are there: 0, 2, 3"),
    ("2", ("model.path=/x",), "--set model.path=/x"),
    ("2", ("schedule.iteration=3",), "iterations"),
    ("2", ("evaluation.suite=paper_20",), "suite"),
])  # fmt: skip
def test_a_fork_that_cannot_be_is_refused(layout: RunLayout, at: str, option: tuple[str, ...], told: str) -> None:
    assert told in str(refusal(fork_of, layout, at, option, layout.root.with_name))
    assert [path.name for path in layout.root.parent.iterdir()] == ["run"]


def test_weights_that_are_damaged_meanwhile_leave_no_run(layout: RunLayout) -> None:
    new = fork_of(layout, "3", (), layout.root.with_name)
    weights = layout.weights_version(3) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    plan = compile_plan(new.recipe, LocalSite())
    refused = refusal(partial(create_or_open, new.root, new.recipe, plan, origin=new.origin))
    assert refused.where == layout.weights_version(3)
    assert not new.root.exists()
    refusal(fork_of, layout, "last", (), layout.root.with_name)


def lines(*answers: str) -> str:
    rows = [{"id": f"p{n}", "problem": f"What is {n}?", "answer": answer} for n, answer in enumerate(answers)]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def with_files(tmp_path: Path, slurm: Path) -> RunLayout:
    """A run whose training data and benchmark are files; one problem of the benchmark was left out by its first job."""
    assert slurm.parent == tmp_path
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    train.write_text(lines(*"0123456789"))
    held_out.write_text(lines(*"012"))
    layout = run_of(
        tmp_path / "run",
        f"data={{type: jsonl, path: {train}, limit: 8}}",
        "sampling.problems_per_iteration=4",
        f"evaluation.benchmarks=[{{name: mine, problems: {{type: jsonl, path: {held_out}, limit: null}}}}]",
    )
    copy = layout.benchmark_data("mine")
    write_problems(copy, read_problems(copy)[:2])
    write_json(omitted_file(copy), {"tokens": {"p2": 10_000}})
    submitted(layout)
    publish_models(layout, 2)
    return layout


def fork(layout: RunLayout, *options: str) -> str:
    new = layout.root.parent / "new"
    told = flat("fork", layout.root, "--at", "2", "--run", new, *options)
    forget_claims(RunLayout(new))
    return told


def recorded(layout: RunLayout) -> dict[str, str]:
    found = json.loads((layout.root.parent / "new" / "forked_from.json").read_text())
    assert all((one["old"] == one["new"]) == (one["state"] == "kept") for one in found["data"])
    return {one["field"]: one["state"] for one in found["data"]}


def test_a_fork_records_that_its_data_are_as_they_were(with_files: RunLayout) -> None:
    path = with_files.root.parent / "train.jsonl"
    path.write_text(lines(*"01234567xy"))  # beyond the limit of the recipe
    assert "--set data.path=" not in fork(with_files)
    assert recorded(with_files) == {"data": "kept", "benchmark mine": "kept"}
    path.unlink()
    assert "--set data.path=" not in fork(with_files), "it is continued, and read its data when it was made"
    assert recorded(with_files) == {"data": "kept", "benchmark mine": "kept"}


def test_a_fork_tells_which_files_have_changed_since_the_old_run_began(with_files: RunLayout) -> None:
    path = with_files.root.parent / "train.jsonl"
    path.write_text(lines(*"0123456x89"))
    told = fork(with_files)
    assert f"data: {path}" in told and f"--set data.path={with_files.train_data}" in told
    assert "benchmark mine" not in told
    assert recorded(with_files) == {"data": "changed", "benchmark mine": "kept"}
    new = RunLayout(path.parent / "new")
    write_report(new)
    assert str(path) in new.report.read_text()


def test_other_data_of_a_fork_are_a_change_of_its_recipe(with_files: RunLayout) -> None:
    assert "data.path: " in fork(with_files, "--set", f"data.path={with_files.train_data}")
    assert recorded(with_files) == {"benchmark mine": "kept"}


def test_samples_of_a_fork_are_compared_too(tmp_path: Path) -> None:
    path, layout = tmp_path / "samples.jsonl", bare_run(tmp_path / "run")
    source = Suffixes(type="suffixes", path=str(path), limit=None)
    recipe = load_recipe(RECIPES / "small_world" / "sft_suffix.yaml").model_copy(update={"data": source})
    row = {"id": "s", "problem": "What is 1?", "prefix": "", "suffix": "1"}
    path.write_text(json.dumps(row))
    write_samples(layout.train_data, read_suffixes(path))
    (kept,) = forked_data(layout, recipe, recipe)
    path.write_text(json.dumps({**row, "suffix": "one"}))
    (changed,) = forked_data(layout, recipe, recipe)
    assert (kept.is_changed, changed.is_changed, changed.old) == (False, True, kept.old)


def test_a_run_goes_on_by_its_directory_as_it_was_submitted(tmp_path: Path, slurm: Path) -> None:
    """With the recipe file gone, at its own site, and with the values that were set."""
    layout = run_of(tmp_path / "a b", "seed=7", "resources.trainer.memory_gib=3")
    submitted(layout)
    before = layout.recipe_lock.read_text()
    assert "segment-000.trainer" in typed("plan", layout.root).output
    assert f"mrt-hpc submit '{layout.root}'" in typed("explain", layout.root, "report").output
    done = typed("submit", layout.root)
    assert slurm.read_text().count("#SBATCH --account=mine") == len(submissions(layout)) - 1
    assert layout.recipe_lock.read_text() == before and "keeps" not in done.output
    changed = typed("submit", layout.root, "--set", "resources.trainer.memory_gib=4").output
    assert "the changed resources" in changed, "no job of it is queued any more"
    assert read_recipe_lock(layout.recipe_lock).resources.trainer.memory_gib == 4
    assert layout.again in typed("submit", layout.root, "--run", tmp_path / "other", exits=2).stderr


@pytest.mark.usefixtures("slurm")
def test_an_evaluation_goes_on_by_its_directory_until_a_file_has_changed(layout: RunLayout, tmp_path: Path) -> None:
    mine = shutil.copytree(layout.weights_version(0), tmp_path / "mine")
    recipes = [
        evaluation_recipe(models_asked([model]), "small_world", results=tmp_path / "results")
        for model in (f"{layout.root}@0", str(mine))
    ]
    one, other = (run_of(tmp_path / f"of-{number}", recipe=recipe) for number, recipe in enumerate(recipes))
    submitted(one)
    assert "evaluation" in typed("plan", one.root).output
    typed("submit", one.root)
    assert {sent.job for sent in submissions(one)} == {job.name for job in read_plan(one.plan).jobs}
    (mine / "config.json").write_text("{}")
    assert str(mine) in typed("submit", other.root, exits=2).stderr
