"""Weights versions that an evaluation on its own has yet to take over stay in the training run, and no longer."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends import queued_jobs
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.backends.queued_jobs import LiveJob
from mrt_hpc.cli.main import main
from mrt_hpc.errors import UserError
from mrt_hpc.evaluate import evaluation, models
from mrt_hpc.evaluate.evaluation import evaluation_recipe, submit_evaluation
from mrt_hpc.evaluate.models import models_asked, pin_models
from mrt_hpc.plan.compile import compile_plan, evaluation_plan
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.recipe.lock import read_lock, read_recipe_lock
from mrt_hpc.recipe.schema import EvaluationRecipe
from mrt_hpc.roles import prepare
from mrt_hpc.roles.training.artifacts import prune_weights
from mrt_hpc.run.layout import RunLayout
from mrt_hpc.run.weights import pin, pinned_versions, prune, published_versions, release
from mrt_hpc.submit import create
from mrt_hpc.submit.create import create_or_open
from mrt_hpc.submit.submission import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
LONG = ("schedule.iterations=248", "schedule.iterations_per_job=62", "training.keep_weights=3")
"""As at the paper's scale: four trainer jobs, of which the first publishes the versions 1 to 62."""
FIRST_TRAINER = "segment-000.trainer"


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    """A training run that has published nothing yet."""
    recipe = load_recipe(QUICKSTART, LONG)
    return create_or_open(tmp_path / "grpo", recipe, compile_plan(recipe, LocalSite()))


@pytest.fixture(autouse=True)
def queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first trainer of the run is queued, with the id 17; the models of these tests are a file."""
    monkeypatch.setattr(models, "live_jobs", lambda _: {FIRST_TRAINER: LiveJob("17", at_work=True)})
    monkeypatch.setattr(create, "check_model", lambda _: None)
    monkeypatch.setattr(evaluation, "start", lambda *_: None)


def train(run: RunLayout, last: int) -> None:
    """Publish and prune as the trainer does, from the version after the newest one to ``last``."""
    recipe = read_recipe_lock(run.recipe_lock)
    for version in range(max(published_versions(run), default=-1) + 1, last + 1):
        run.weights_version(version).mkdir(parents=True)
        (run.weights_version(version) / "config.json").write_text(f'{{"version": {version}}}')
        prune_weights(run, recipe, version)


def asked_for(*names: str) -> EvaluationRecipe:
    """The recipe of an evaluation of these models."""
    folder = Path(names[0]).parent
    return evaluation_recipe(models_asked(names), "small_world", results=folder / "results")


def submitted(root: Path, *names: str, warnings: list[str] | None = None) -> RunLayout:
    """The directory of an evaluation, as a submission leaves it before its first job. The queue of these tests is that
    of the fixture, so the ids of its jobs are not waited for.
    """
    warn = pytest.fail if warnings is None else warnings.append
    submit_evaluation(asked_for(*names), (), LocalSite(), root, Listener(tell=print, warn=warn, display=no_display))
    return RunLayout(root)


@contextmanager
def no_display(_: RunLayout) -> Iterator[Callable[[], None]]:
    yield lambda: None


def released(layout: RunLayout) -> list[str]:
    recipe = read_lock(layout.recipe_lock)
    assert isinstance(recipe, EvaluationRecipe)
    return release(recipe, layout)


def prepared(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the first job; these models are no models, so they are not looked at."""
    for name in ("check_architecture", "check_tokenizer", "check_prompts", "name_unreadable"):
        monkeypatch.setattr(prepare, name, lambda *_, **__: None)
    prepare.run(load_task(layout, "prepare", 0, Placement(0, 1, 0, "a")))


def test_without_a_pin_a_version_between_is_removed(run: RunLayout) -> None:
    train(run, 62)
    assert published_versions(run) == [0, 60, 61, 62]


def test_a_version_to_come_is_there_when_its_trainer_has_ended(run: RunLayout, tmp_path: Path) -> None:
    submitted(tmp_path / "eval", f"{run.root}@20,61")
    train(run, 65)
    assert published_versions(run) == [0, 20, 61, 63, 64, 65]


def test_a_version_that_is_there_stays_until_the_evaluation_starts(run: RunLayout, tmp_path: Path) -> None:
    train(run, 20)
    submitted(tmp_path / "eval", f"{run.root}@19")
    train(run, 62)
    assert published_versions(run) == [0, 19, 60, 61, 62]


def test_the_weights_are_kept_before_any_job_is_sent(
    run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[set[int]] = []
    monkeypatch.setattr(evaluation, "start", lambda *_: kept.append(pinned_versions(run)))
    submitted(tmp_path / "eval", f"{run.root}@7,20")
    assert kept == [{7, 20}]


def test_the_first_job_takes_the_weights_over_and_lets_the_training_remove_them(
    run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = submitted(tmp_path / "eval", f"{run.root}@20")
    other = submitted(tmp_path / "other", f"{run.root}@20,21")
    train(run, 30)
    prepared(layout, monkeypatch)
    assert (layout.weights_version(0) / "config.json").read_text() == '{"version": 20}'
    train(run, 31)
    assert published_versions(run) == [0, 20, 21, 29, 30, 31], "the other evaluation wants it, too"
    prepared(other, monkeypatch)
    train(run, 32)
    assert published_versions(run) == [0, 30, 31, 32]
    prepared(layout, monkeypatch)  # a second attempt


def test_what_an_evaluation_holds_may_be_gone_when_its_command_is_typed_again(
    run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = submitted(tmp_path / "eval", f"{run.root}@20")
    train(run, 30)
    prepared(layout, monkeypatch)
    train(run, 62)
    assert submitted(tmp_path / "eval", f"{run.root}@20").root == layout.root
    assert pinned_versions(run) == set()
    with pytest.raises(UserError, match="weights version 20 is not there: it was pruned"):
        submitted(tmp_path / "new", f"{run.root}@20")


def test_a_version_that_was_removed_is_refused_though_its_trainer_still_runs(run: RunLayout, tmp_path: Path) -> None:
    train(run, 40)
    with pytest.raises(UserError, match="weights version 20 is not there: it was pruned") as told:
        submitted(tmp_path / "eval", f"{run.root}@20")
    assert told.value.expected == "one of 0, 38, 39, 40"
    assert not (tmp_path / "eval").exists()


def test_the_plan_of_an_evaluation_refuses_what_is_gone(run: RunLayout, tmp_path: Path) -> None:
    train(run, 40)
    command = ["eval", f"{run.root}@20", "--suite", "small_world", "--plan", "--run", str(tmp_path / "eval")]
    out = CliRunner().invoke(main, command)
    assert out.exit_code != 0
    assert "weights version 20 is not there: it was pruned" in out.output


def test_a_version_that_is_removed_during_the_submission_is_refused(run: RunLayout, tmp_path: Path) -> None:
    train(run, 20)
    recipe = asked_for(f"{run.root}@19,20")
    layout = create_or_open(tmp_path / "eval", recipe, evaluation_plan(recipe, LocalSite()))
    prune(run, {0, 20})
    with pytest.raises(UserError, match="weights version 19 is not there"):
        pin_models(recipe, layout, pytest.fail)
    assert pinned_versions(run) == set()


def test_pins_of_one_evaluation_are_written_once_and_removed_by_it_alone(run: RunLayout, tmp_path: Path) -> None:
    one, two = (submitted(tmp_path / name, f"{run.root}@7") for name in ("one", "two"))
    (tmp_path / "link").symlink_to(tmp_path / "one")
    pin(run, 7, RunLayout(tmp_path / "link"))
    assert len(list(run.pins.iterdir())) == 2
    assert released(RunLayout(tmp_path / "link")) == ["grpo@7"]
    assert released(one) == []
    assert pinned_versions(run) == {7}
    assert released(two) == ["grpo@7"]
    assert pinned_versions(run) == set()


def test_a_pin_of_an_evaluation_that_was_removed_does_not_count(run: RunLayout, tmp_path: Path) -> None:
    layout = submitted(tmp_path / "evals" / "eval", f"{run.root}@7")
    assert pinned_versions(run) == {7}
    shutil.rmtree(layout.root)
    assert pinned_versions(run) == set()


def test_a_pin_counts_where_the_folder_of_the_evaluation_cannot_be_seen(run: RunLayout, tmp_path: Path) -> None:
    """As in a container of the trainer, which shows nothing, or an empty folder, in its place."""
    submitted(tmp_path / "evals" / "eval", f"{run.root}@7")
    (tmp_path / "evals").rename(tmp_path / "elsewhere")
    assert pinned_versions(run) == {7}
    (tmp_path / "evals").mkdir()
    assert pinned_versions(run) == {7}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"evaluation": "/nowhere/eval"}'])
def test_a_pin_that_cannot_be_read_counts(run: RunLayout, content: str) -> None:
    run.pins.mkdir()
    (run.pins / f"v000007.{'a' * 16}.json").write_text(content)
    (run.pins / f".v000008.{'a' * 16}.json.tmp-1").write_text("{}")
    assert pinned_versions(run) == {7}


def test_a_cancelled_evaluation_keeps_nothing(run: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = submitted(tmp_path / "eval", f"{run.root}@7,20")
    monkeypatch.setattr(queued_jobs, "job_queues", lambda *_: [])
    out = CliRunner().invoke(main, ["cancel", str(layout.root)])
    assert out.exit_code == 0, out.output
    assert "weights that are not kept for this evaluation any more: grpo@7, grpo@20" in out.output
    assert pinned_versions(run) == set()
    with pytest.raises(UserError, match="no job and no process of this run is running"):
        list(queued_jobs.cancel_run(layout))
    submitted(tmp_path / "eval", f"{run.root}@7,20")
    assert pinned_versions(run) == {7, 20}, "the same command continues"


# -- a run that this user may read and not write to


@pytest.fixture
def closed(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """The run of somebody else. The tests may run as root, to whom nothing is closed."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(run.pins))

    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != run.root)
    monkeypatch.setattr(models, "pin", refuse)
    return run


def test_a_version_to_come_of_a_closed_run_is_refused_before_anything_is_made(
    closed: RunLayout, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="you cannot write to its run") as told:
        submitted(tmp_path / "eval", f"{closed.root}@20")
    assert told.value.expected == "a version that the training keeps anyway: 0, 246, 247, 248"
    assert not (tmp_path / "eval").exists()


def test_a_version_of_a_closed_run_that_is_there_is_taken_with_a_warning(closed: RunLayout, tmp_path: Path) -> None:
    train(closed, 20)
    warnings: list[str] = []
    submitted(tmp_path / "eval", f"{closed.root}@19", warnings=warnings)
    assert warnings == [
        f"you cannot write to {closed.root}, so its training may remove weights version 19 before this evaluation has "
        "taken it over"
    ]


def test_a_version_of_a_closed_run_that_stays_anyway_needs_no_pin(
    closed: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = LiveJob("18", at_work=False)
    monkeypatch.setattr(models, "live_jobs", lambda _: {"segment-003.trainer": last})
    submitted(tmp_path / "eval", f"{closed.root}@last")
