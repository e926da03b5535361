"""Weights versions that an evaluation on its own has yet to take over stay in the training run, and no longer."""

import errno
import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from commands import refusal, typed
from run_of import run_of, task_of

from mrt_hpc.backends import queued_jobs
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.queued_jobs import LiveJob
from mrt_hpc.evaluate import asked_models, evaluation_alone
from mrt_hpc.evaluate.asked_models import models_asked, pin_models
from mrt_hpc.evaluate.evaluation_alone import evaluation_recipe, submit_evaluation
from mrt_hpc.recipe.lock import read_lock, read_recipe_lock
from mrt_hpc.roles import prepare
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.pins import pin, pinned_versions, release
from mrt_hpc.run.weights import prune, prune_weights, published_versions
from mrt_hpc.submit import create
from mrt_hpc.submit.submission import Listener


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """Four trainer jobs, of which the first is to publish the versions 1 to 62, and is queued."""
    monkeypatch.setattr(asked_models, "live_jobs", lambda _: {"segment-000.trainer": LiveJob("17", at_work=True)})
    monkeypatch.setattr(create, "check_model", lambda _: None)
    monkeypatch.setattr(evaluation_alone, "start", lambda *_: None)
    for name in ("check_architecture", "check_tokenizer", "check_prompts", "name_faulty_golds"):
        monkeypatch.setattr(prepare, name, lambda *_, **__: None)
    long = ("schedule.iterations=248", "schedule.iterations_per_job=62", "training.keep_weights=3")
    return run_of(tmp_path / "grpo", *long)


def train(run: RunLayout, last: int) -> list[int]:
    """Publish and prune like the trainer, from the version after the newest one to ``last``; returns what is left."""
    recipe = read_recipe_lock(run.recipe_lock)
    for version in range(max(published_versions(run), default=-1) + 1, last + 1):
        run.weights_version(version).mkdir(parents=True)
        (run.weights_version(version) / "config.json").write_text(f'{{"version": {version}}}')
        prune_weights(run, recipe, version)
    return published_versions(run)


def submitted(root: Path, name: str, warnings: list[str] | None = None) -> RunLayout:
    """The directory of an evaluation of these models, as a submission leaves it before its first job."""
    warn = pytest.fail if warnings is None else warnings.append
    listener = Listener(show=print, warn=warn, display=lambda _: nullcontext(lambda: None))
    asked = evaluation_recipe(models_asked([name]), "small_world", results=Path(name).parent / "results")
    submit_evaluation(asked, (), LocalSite(), root, listener)
    return RunLayout(root)


def test_an_attempt_that_was_taken_for_lost_removes_no_later_version(run: RunLayout) -> None:
    assert train(run, 12) == [0, 10, 11, 12]
    prune_weights(run, read_recipe_lock(run.recipe_lock), 8)
    assert published_versions(run) == [0, 10, 11, 12]


def test_a_pinned_version_stays(run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[set[int]] = []
    monkeypatch.setattr(evaluation_alone, "start", lambda *_: kept.append(pinned_versions(run)))
    train(run, 20)
    submitted(tmp_path / "eval", f"{run.root}@19,25,61")
    assert kept == [{19, 25, 61}], "before any job is sent"
    assert (train(run, 62), train(run, 65)) == ([0, 19, 25, 60, 61, 62], [0, 19, 25, 61, 63, 64, 65])


def test_the_first_job_takes_the_weights_over_and_releases_them(run: RunLayout, tmp_path: Path) -> None:
    layout = submitted(tmp_path / "eval", f"{run.root}@20")
    other = submitted(tmp_path / "other", f"{run.root}@20,21")
    train(run, 30)
    prepare.run(task_of(layout, "prepare"))
    assert (layout.weights_version(0) / "config.json").read_text() == '{"version": 20}'
    assert train(run, 31) == [0, 20, 21, 29, 30, 31], "the other evaluation wants it, too"
    prepare.run(task_of(other, "prepare"))
    assert train(run, 32) == [0, 30, 31, 32]
    prepare.run(task_of(layout, "prepare", attempt="b"))
    assert submitted(tmp_path / "eval", f"{run.root}@20").root == layout.root, "it has what it evaluates"
    assert pinned_versions(run) == set()


def test_a_version_that_is_gone_is_refused(run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(run, 40)
    refused = refusal(submitted, tmp_path / "eval", f"{run.root}@20")
    assert "20 is not there: it was pruned" in refused.what
    assert refused.expected == "one of 0, 38, 39, 40"
    assert not (tmp_path / "eval").exists()
    monkeypatch.setattr(evaluation_alone, "pin_models", lambda *asked: (prune(run, {0, 40}), pin_models(*asked)))
    assert "39 is not there" in refusal(submitted, tmp_path / "eval", f"{run.root}@39,40").what
    assert pinned_versions(run) == set()


def test_pins_of_one_evaluation_are_written_once_and_removed_by_it_alone(run: RunLayout, tmp_path: Path) -> None:
    one, two = (submitted(tmp_path / name, f"{run.root}@7") for name in ("one", "two"))
    (tmp_path / "link").symlink_to(tmp_path / "one")
    pin(run, 7, RunLayout(tmp_path / "link"))
    assert len(list(run.pins.iterdir())) == 2
    for layout, released in ((RunLayout(tmp_path / "link"), ["grpo@7"]), (one, []), (two, ["grpo@7"])):
        assert pinned_versions(run) == {7}
        assert release(read_lock(layout.recipe_lock), layout) == released
    assert pinned_versions(run) == set()


def test_a_pin_counts_until_its_evaluation_was_seen_to_be_removed(run: RunLayout, tmp_path: Path) -> None:
    """In a container of the trainer nothing, or an empty folder, may stand in the place of its folder."""
    folder, elsewhere = tmp_path / "evals", tmp_path / "elsewhere"
    layout = submitted(folder / "eval", f"{run.root}@7")
    folder.rename(elsewhere)
    assert pinned_versions(run) == {7}
    folder.mkdir()
    assert pinned_versions(run) == {7}
    folder.rmdir()
    elsewhere.rename(folder)
    shutil.rmtree(layout.root)
    assert pinned_versions(run) == set()


def test_a_pin_that_cannot_be_read_counts(run: RunLayout) -> None:
    run.pins.mkdir()
    (run.pins / f".v000008.{'a' * 16}.json.tmp-1").write_text("{}")
    for content in ("", "{", "[]", '{"evaluation": "/nowhere/eval"}'):
        (run.pins / f"v000007.{'a' * 16}.json").write_text(content)
        assert pinned_versions(run) == {7}


def test_a_cancelled_evaluation_keeps_nothing(run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = submitted(tmp_path / "eval", f"{run.root}@7,20")
    monkeypatch.setattr(queued_jobs, "job_queues", lambda *_: [])
    assert "grpo@7, grpo@20" in typed("cancel", layout.root).output
    assert pinned_versions(run) == set()
    refusal(lambda: list(queued_jobs.cancel_run(layout)))  # nothing of it is running
    submitted(tmp_path / "eval", f"{run.root}@7,20")
    assert pinned_versions(run) == {7, 20}, "the same command continues"


def test_a_closed_run_gives_what_is_there(run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of somebody else. The tests may run as root, to whom nothing is closed."""
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != run.root)
    monkeypatch.setattr(asked_models, "pin", Mock(side_effect=PermissionError(errno.EACCES, "closed", str(run.pins))))
    refused = refusal(submitted, tmp_path / "eval", f"{run.root}@20")
    assert refused.expected == "a version that the training keeps anyway: 0, 246, 247, 248"
    assert not (tmp_path / "eval").exists(), "it is refused before anything is made"
    train(run, 20)
    warnings: list[str] = []
    submitted(tmp_path / "eval", f"{run.root}@19", warnings)
    assert len(warnings) == 1
    monkeypatch.setattr(asked_models, "live_jobs", lambda _: {"segment-003.trainer": LiveJob("18", at_work=False)})
    submitted(tmp_path / "last", f"{run.root}@last")
