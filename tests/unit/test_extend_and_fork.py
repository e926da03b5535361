"""More iterations for a run, and new runs that begin with weights of another: from the run directory alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file
from slurm_texts import squeue_prints

from mrt_hpc.attempt.ledger import record_site, record_submission, remember_site, submissions
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.cli.main import main
from mrt_hpc.domains.small_world.model import build_tokenizer
from mrt_hpc.errors import UserError
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import read_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_recipe_lock
from mrt_hpc.recipe.sections import HuggingFaceModel, Suffixes
from mrt_hpc.roles.report import write_report
from mrt_hpc.run.atomic import write_json
from mrt_hpc.run.data import left_out_file, read_problems, write_problems
from mrt_hpc.run.fork_record import read_fork
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.manifest import read_manifest, verify
from mrt_hpc.run.weights import prune, publish
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.extension import extended_recipe
from mrt_hpc.submit.origin import fork_of, forked_data
from mrt_hpc.training.supervised import read_suffixes, write_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 100_000}
CONSTANT = ("training.schedule=constant", "training.warmup_ratio=0")
SITE = SlurmSite(name="mycluster", account="mine")


def make(root: Path, changes: Sequence[str] = ()) -> RunLayout:
    recipe = load_recipe(QUICKSTART, tuple(changes))
    return create_or_open(root, recipe, compile_plan(recipe, LocalSite()))


def published(layout: RunLayout, version: int) -> str:
    """Publish a small model as a weights version, and return its digest."""

    def write(directory: Path) -> None:
        (directory / "config.json").write_text(json.dumps({**CONFIG, "version": version}))
        build_tokenizer().save_pretrained(directory)
        save_file({"weight": np.full((2, 2), version, dtype=np.float32)}, directory / "model.safetensors")

    publish(layout, version, write)
    return read_manifest(layout.weights_version(version)).digest


def submitted(layout: RunLayout) -> None:
    """Record that a job of the run was submitted to the cluster."""
    record_site(layout, SITE)
    remember_site(layout, SITE)
    record_submission(layout, "prepare", "7", "mycluster")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster that accepts every job and knows none; the file holds the job scripts in the order of submission."""
    folder, sent = tmp_path / "bin", tmp_path / "sent"
    folder.mkdir()
    sbatch = f"for script; do :; done; cat \"$script\" >> {sent}; n=$(grep -c '^#!' {sent}); echo $((100 + n))"
    unknown = "echo 'Invalid job id specified' >&2; exit 1"
    empty = f"case \"$*\" in *--jobs*) echo 'Invalid job id specified' >&2; exit 1 ;; esac; echo '{squeue_prints()}'"
    none = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
    for name, script in {"sbatch": sbatch, "squeue": empty, "sacct": none, "scontrol": unknown}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return sent


# -- extend


def test_a_run_with_a_constant_rate_gets_more_iterations_at_its_own_site(tmp_path: Path, slurm: Path) -> None:
    layout = make(tmp_path / "run", CONSTANT)
    before = read_recipe_lock(layout.recipe_lock)
    submitted(layout)
    published(layout, 2)
    (layout.told / "failed.segment-000.trainer").touch()
    result = CliRunner().invoke(main, ["extend", str(layout.root), "--iterations", "30"])
    assert result.exit_code == 0, result.output
    assert not list(layout.told.glob("failed.*")), "who submits has looked, and wants to be told of the next cause"
    assert f"{before.schedule.iterations} iterations become 30; the learning rate stays at" in result.output
    assert "site mycluster" in result.output
    assert read_recipe_lock(layout.recipe_lock).schedule.iterations == 30
    assert read_plan(layout.plan).iterations == 30
    assert slurm.read_text().count("#SBATCH --account=mine") == len(submissions(layout)) - 1
    assert {one.site for one in submissions(layout)} == {"mycluster"}


def test_a_run_with_a_cosine_that_has_begun_is_sent_to_fork(tmp_path: Path) -> None:
    layout = make(tmp_path / "run")
    published(layout, 2)
    with pytest.raises(UserError) as refused:
        extended_recipe(layout, 30)
    assert "cosine" in refused.value.what
    assert f"mrt-hpc fork {layout.root} --at last --set schedule.iterations=28" in str(refused.value.advice)


def test_a_run_that_has_not_begun_takes_any_schedule(tmp_path: Path, slurm: Path) -> None:
    layout = make(tmp_path / "run")
    submitted(layout)
    result = CliRunner().invoke(main, ["extend", str(layout.root), "--iterations", "30"])
    assert result.exit_code == 0, result.output
    assert "follows its cosine schedule over all 30" in result.output
    assert slurm.exists()


def test_a_finished_run_without_a_checkpoint_would_train_from_the_start(tmp_path: Path) -> None:
    layout = make(tmp_path / "run", CONSTANT)
    published(layout, read_recipe_lock(layout.recipe_lock).schedule.iterations)
    with pytest.raises(UserError, match="no checkpoint to continue from"):
        extended_recipe(layout, 30)
    layout.checkpoint(20).mkdir(parents=True)
    assert extended_recipe(layout, 30).schedule.iterations == 30


def test_fewer_iterations_are_no_extension(tmp_path: Path) -> None:
    layout = make(tmp_path / "run", CONSTANT)
    planned = read_recipe_lock(layout.recipe_lock).schedule.iterations
    with pytest.raises(UserError, match=f"{planned} iterations already"):
        extended_recipe(layout, planned)


def test_a_long_warmup_that_has_begun_keeps_its_length(tmp_path: Path) -> None:
    layout = make(tmp_path / "run", ("training.schedule=constant", "training.warmup_ratio=0.5"))
    published(layout, 1)
    assert extended_recipe(layout, 40).schedule.iterations == 40  # the submission then keeps the steps of the warm-up


# -- fork


def test_a_fork_has_its_own_copy_of_the_weights_and_says_where_it_comes_from(tmp_path: Path, slurm: Path) -> None:
    layout = make(tmp_path / "run")
    submitted(layout)
    digests = {version: published(layout, version) for version in (0, 2, 3)}
    options = ["--at", "2", "--set", "schedule.iterations=6", "--set", "name=half"]
    result = CliRunner().invoke(main, ["fork", str(layout.root), *options])
    assert result.exit_code == 0, result.output
    new = RunLayout(tmp_path / "half")
    assert "schedule.iterations: " in result.output
    assert "site mycluster" in result.output
    assert slurm.read_text().count("#SBATCH --account=mine") == len(submissions(new))
    prune(layout, keep=())
    recipe, record = read_recipe_lock(new.recipe_lock), read_fork(new)
    assert recipe.model == HuggingFaceModel(type="hugging_face", path=str(new.first_model))
    assert (recipe.name, recipe.schedule.iterations) == ("half", 6)
    assert verify(new.first_model, anywhere=True).digest == digests[2]
    assert record is not None
    assert (record.run, record.version, record.digest) == (str(layout.root), 2, digests[2])
    assert [change["field"] for change in record.changes] == ["schedule.iterations"]
    write_report(new)
    assert f"| forked from | {layout.root}, weights version 2" in new.report.read_text()


def test_the_same_fork_continues_and_another_is_refused(tmp_path: Path, slurm: Path) -> None:
    layout = make(tmp_path / "run")
    published(layout, 2)
    published(layout, 3)
    where = ["--run", str(tmp_path / "new"), "--site", str(site_file(tmp_path))]
    for _ in range(2):
        result = CliRunner().invoke(main, ["fork", str(layout.root), "--at", "2", *where])
        assert result.exit_code == 0, result.output
        for claim in (tmp_path / "new" / "jobs").glob("local-*.json"):
            claim.unlink()  # this process lives on, and a command would have ended
    assert slurm.exists()
    same_name = ["--set", "name=quickstart-from-v2"]
    refused = CliRunner().invoke(main, ["fork", str(layout.root), "--at", "last", *same_name, *where])
    assert refused.exit_code != 0
    assert "began with weights version 2" in refused.output


def site_file(folder: Path) -> Path:
    path = folder / "mycluster.yaml"
    path.write_text("type: slurm\nname: mycluster\naccount: mine\n")
    return path


@pytest.mark.parametrize(
    ("at", "option", "told"),
    [
        ("7", (), "no such weights version"),
        ("newest", (), "first, last, or one of those that are there: 0, 2"),
        ("2", ("model.path=/x",), "no other model"),
        ("2", ("schedule.iteration=3",), "iterations"),
        ("2", ("evaluation.suite=paper_20",), "suite of a run cannot be replaced"),
    ],
)
def test_a_fork_that_cannot_be_is_refused(tmp_path: Path, at: str, option: tuple[str, ...], told: str) -> None:
    layout = make(tmp_path / "run")
    published(layout, 0)
    published(layout, 2)
    with pytest.raises(UserError) as refused:
        fork_of(layout, at, option, lambda name: tmp_path / name)
    assert told in refused.value.message()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_damaged_weights_are_not_forked(tmp_path: Path) -> None:
    layout = make(tmp_path / "run")
    published(layout, 2)
    weights = layout.weights_version(2) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError):
        fork_of(layout, "last", (), lambda name: tmp_path / name)


def test_weights_that_are_removed_meanwhile_leave_no_run(tmp_path: Path) -> None:
    layout = make(tmp_path / "run")
    published(layout, 2)
    new = fork_of(layout, "2", (), lambda name: tmp_path / name)
    weights = layout.weights_version(2) / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content[:-1] + b"x")
    plan = compile_plan(new.recipe, LocalSite())
    with pytest.raises(UserError, match="was removed, or is damaged"):
        create_or_open(new.root, new.recipe, plan, origin=new.origin)
    assert not new.root.exists()


# -- data of a fork


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
    changes = (
        f"data={{type: jsonl, path: {train}, limit: 8}}",
        "sampling.problems_per_iteration=4",
        f"evaluation.benchmarks=[{{name: mine, problems: {{type: jsonl, path: {held_out}, limit: null}}}}]",
    )
    layout = make(tmp_path / "run", changes)
    copy = layout.benchmark_data("mine")
    write_problems(copy, read_problems(copy)[:2])
    write_json(left_out_file(copy), {"tokens": {"p2": 10_000}})
    submitted(layout)
    published(layout, 2)
    return layout


def fork(layout: RunLayout, *options: str) -> str:
    new = layout.root.parent / "new"
    result = CliRunner().invoke(main, ["fork", str(layout.root), "--at", "2", "--run", str(new), *options])
    for claim in (new / "jobs").glob("local-*.json"):
        claim.unlink()  # this process lives on, and a command would have ended
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def recorded(layout: RunLayout) -> dict[str, str]:
    found = json.loads((layout.root.parent / "new" / "forked_from.json").read_text())
    assert all((one["old"] == one["new"]) == (one["state"] == "kept") for one in found["data"])
    return {one["field"]: one["state"] for one in found["data"]}


def test_a_fork_records_that_its_data_are_as_they_were(with_files: RunLayout) -> None:
    path = with_files.root.parent / "train.jsonl"
    path.write_text(lines(*"01234567xy"))  # beyond the limit of the recipe
    assert "other contents" not in fork(with_files)
    assert recorded(with_files) == {"data": "kept", "benchmark mine": "kept"}


def test_a_fork_tells_which_files_have_changed_since_the_old_run_began(with_files: RunLayout) -> None:
    folder = with_files.root.parent
    (folder / "train.jsonl").write_text(lines(*"0123456x89"))
    told = fork(with_files)
    assert f"data: {folder / 'train.jsonl'} has other contents than in the old run" in told
    assert f"to train on the old ones: --set data.path={with_files.train_data}" in told
    assert "benchmark mine" not in told
    assert recorded(with_files) == {"data": "changed", "benchmark mine": "kept"}
    new = RunLayout(folder / "new")
    write_report(new)
    assert f"{folder / 'train.jsonl'} has other contents (data)" in new.report.read_text()


def test_a_fork_that_is_continued_tells_what_it_read(with_files: RunLayout) -> None:
    path = with_files.root.parent / "train.jsonl"
    fork(with_files)
    path.write_text(lines(*"0123456x89"))
    assert "other contents" not in fork(with_files)
    path.unlink()
    fork(with_files)
    assert recorded(with_files) == {"data": "kept", "benchmark mine": "kept"}


def test_other_data_of_a_fork_are_a_change_of_its_recipe(with_files: RunLayout) -> None:
    told = fork(with_files, "--set", f"data.path={with_files.train_data}")
    assert "data.path: " in told
    assert recorded(with_files) == {"benchmark mine": "kept"}


def test_samples_of_a_fork_are_compared_too(tmp_path: Path) -> None:
    path, layout = tmp_path / "samples.jsonl", RunLayout(tmp_path / "run")
    source = Suffixes(type="suffixes", path=str(path), limit=None)
    recipe = load_recipe(QUICKSTART.with_name("small_world") / "sft_suffix.yaml").model_copy(update={"data": source})
    row = {"id": "s", "problem": "What is 1?", "prefix": "", "suffix": "1"}
    path.write_text(json.dumps(row))
    write_samples(layout.train_data, read_suffixes(path))
    (kept,) = forked_data(layout, recipe, recipe)
    path.write_text(json.dumps({**row, "suffix": "one"}))
    (changed,) = forked_data(layout, recipe, recipe)
    assert (kept.is_changed, changed.is_changed, changed.old) == (False, True, kept.old)
