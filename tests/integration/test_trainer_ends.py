"""How a trainer leaves, goes on and refuses: the real engine on one rank, in a run directory whose other roles are
files.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from conftest import ROOT, task_in
from run_of import read_events
from samples import sampled
from training_support import infinite_loss, random_batch, tiny_model

from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.task.context import is_trained
from mrt_hpc.roles.task.shutdown import Interrupted, RequeueRequested
from mrt_hpc.roles.tracking import Tracker
from mrt_hpc.roles.trainer import Trainer, trainer_settings
from mrt_hpc.roles.training.artifacts import TrainingArtifacts
from mrt_hpc.roles.training.iteration_data import RolloutReader, iteration_readers
from mrt_hpc.run.events import EventKind
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.manifest import verify
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.training import checkpoint
from mrt_hpc.training.engine import TrainerEngine, build
from mrt_hpc.training.rendezvous import Ranks

QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
CHANGES = (
    "training.checkpoint_every=100", "resilience.wait_limit_minutes=0.001", "resources.inference.tasks=2",
    "resilience.heartbeat_limit_s=0.5",
)  # fmt: skip
TRAINER, INFERENCE = "segment-000.trainer", "segment-000.inference"


@pytest.fixture(scope="module")
def engine(one_rank: Ranks, tmp_path_factory: pytest.TempPathFactory) -> TrainerEngine:
    return build(trainer_settings(load_recipe(QUICKSTART)), tiny_model(tmp_path_factory.mktemp("model")), one_rank)


@pytest.fixture
def trainer(engine: TrainerEngine, tmp_path: Path) -> Trainer:
    """After three updates, of which no checkpoint has any."""
    engine.skipped_in_a_row = 0
    return trainer_in(tmp_path / "run", engine)


def trainer_in(run: Path, engine: TrainerEngine, *changes: str) -> Trainer:
    task = task_in(run, load_recipe(QUICKSTART, (*CHANGES, *changes)), TRAINER)
    artifacts = TrainingArtifacts(task, engine, saved=0)
    artifacts.reconcile(3)
    return Trainer(task, engine, Tracker(), artifacts, iteration_readers(task), RolloutReader(task, 3), statements={})


def leaves_after_saving(trainer: Trainer, ending: type[BaseException]) -> Any:
    with trainer.task.shutdown.defer_to_safe_points(), pytest.raises(ending) as caught:
        trainer.go_on()
    verify(trainer.task.layout.checkpoint(3))
    return caught.value


def test_one_that_has_to_leave_saves_first(trainer: Trainer) -> None:
    with trainer.task.shutdown.defer_to_safe_points():
        trainer.task.shutdown.interrupt(Interrupted(143))
    leaves_after_saving(trainer, Interrupted)


def test_a_segment_is_over_once_its_last_state_is_published_and_saved(trainer: Trainer) -> None:
    task = replace(trainer.task, job=trainer.task.job.model_copy(update={"end_iteration": 3}))
    assert task.layout.weights_version(3).exists()
    assert not is_trained(task), "the next segment would find no checkpoint to go on from"
    trainer.artifacts.save(3)
    assert is_trained(task)


def test_no_step_is_begun_that_would_not_end_before_the_time_limit(trainer: Trainer) -> None:
    trainer.task = replace(trainer.task, time_left_s=500.0)
    trainer._longest_step_s, trainer.artifacts.longest_save_s = 300.0, 100.0
    assert trainer._next() is None, "there is time for one more"
    trainer.artifacts.longest_save_s = 200.0
    assert "a step with its checkpoint takes 500 s" in leaves_after_saving(trainer, RequeueRequested).why


def test_one_that_waits_in_vain_saves_before_it_gives_its_nodes_back(trainer: Trainer) -> None:
    assert leaves_after_saving(trainer, UserError).exit_code is ExitCode.GIVE_BACK


def test_a_weights_version_that_was_set_aside_is_published_again(trainer: Trainer) -> None:
    path = trainer.task.layout.weights_version(3)
    before = verify(path).digest
    trainer.task.set_aside([path], "damaged")
    trainer.go_on()
    assert verify(path).digest == before


@pytest.mark.parametrize(("other", "reopened"), [(TaskState.DONE, True), (TaskState.STOPPED, False)])
def test_a_damaged_group_is_sampled_again_by_who_is_left(trainer: Trainer, other: TaskState, reopened: bool) -> None:
    layout = trainer.task.layout
    write_task(layout, INFERENCE, 0, TaskRecord(TaskState.DONE))
    write_task(layout, INFERENCE, 1, TaskRecord(other))
    path = layout.group(3, 0)
    commit_group(path, sampled())
    (path / "rollouts.parquet").write_bytes(b"no parquet")
    assert leaves_after_saving(trainer, UserError)
    assert not path.exists()
    assert "a damaged group" in next(layout.set_aside.rglob("REASON")).read_text()
    assert read_task(layout, INFERENCE, 0).state is (TaskState.FAILED if reopened else TaskState.DONE)


def test_an_attempt_that_was_taken_for_lost_commits_nothing(trainer: Trainer) -> None:
    trainer.artifacts.save(3)
    other = TrainingArtifacts(trainer.task, trainer.engine, saved=0)
    for commit in (other.save, other.publish):
        with pytest.raises(UserError, match="another attempt of this task has written this"):
            commit(3)
    layout = trainer.task.layout
    write_task(layout, TRAINER, 0, TaskRecord(TaskState.RUNNING, attempt="a.1"))
    for commit in (other.save, other.publish):
        with pytest.raises(UserError, match="another attempt of this task has started"):
            commit(4)
    assert not layout.checkpoint(4).exists() and not layout.weights_version(4).exists()


def test_skipped_steps_are_kept_and_shown_and_three_in_a_row_end_the_run(trainer: Trainer) -> None:
    layout, engine, batch = trainer.task.layout, trainer.engine, infinite_loss(random_batch(0))
    for iteration in (3, 4):
        engine.update(batch, partial(trainer.artifacts.keep_skipped, iteration))
    trainer.artifacts.save(5)
    engine.update(random_batch(0))
    assert engine.skipped_in_a_row == 0, "a step that was taken breaks the row"
    cursor = checkpoint.load(engine, layout.checkpoint(5))
    engine.skipped_in_a_row = cursor["skipped_in_a_row"]  # as an attempt that goes on from there
    with pytest.raises(UserError, match=r"3 optimiser steps in a row .* iteration 5: .*loss is not finite") as ended:
        engine.update(batch, partial(trainer.artifacts.keep_skipped, 5))
    assert ended.value.exit_code is ExitCode.FATAL and ended.value.where == layout.skipped_step(5, 0)
    kept = json.loads(layout.skipped_step(5, 0).read_text())
    spoiled = next(s for s in batch if s.group == "the infinite one")
    assert list(spoiled.token_ids) in [s["token_ids"] for s in kept["sequences"]]
    (*_, event) = read_events(layout.events, EventKind.STEP_SKIPPED)
    assert (event["iteration"], event["mini_batch"]) == (5, 0) and "the infinite one" in event["problems"]
    for command in ("status", "explain"):
        assert "3 optimiser step(s) were skipped" in typed(command, layout.root).output.replace("\n", " ")
    trainer.artifacts.reconcile(4)
    assert not layout.skipped_step(5, 0).exists() and layout.skipped_step(3, 0).exists()
