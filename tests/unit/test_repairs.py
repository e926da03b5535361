"""Finished results that are found damaged afterwards: they are set aside, and the task that makes them is run again."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from mrt_hpc.algorithms.base import algorithm_of
from mrt_hpc.attempt.entry import load_task
from mrt_hpc.attempt.placement import Placement
from mrt_hpc.backends.local.site import LocalSite
from mrt_hpc.errors import ExitCode, UserError
from mrt_hpc.inference.server_start import refuse_stranger
from mrt_hpc.plan.compile import compile_plan
from mrt_hpc.plan.jobs import Role
from mrt_hpc.recipe.load import load_recipe
from mrt_hpc.roles.evaluation import UnitEvaluation
from mrt_hpc.roles.sampling.collected import start_context
from mrt_hpc.roles.sampling.weights import collecting_weights, verified_weights
from mrt_hpc.roles.training.artifacts import TrainingArtifacts
from mrt_hpc.roles.training.iteration_data import RolloutReader, SampleReader, Samples
from mrt_hpc.run.atomic import write_text
from mrt_hpc.run.groups import Sampled, commit_group
from mrt_hpc.run.layout import COLLECTION, collection_of
from mrt_hpc.run.manifest import DamagedError, commit_whole, read_manifest
from mrt_hpc.run.quarantine import evaluated_with_others
from mrt_hpc.run.records import GroupStatistics, Problem
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task
from mrt_hpc.run.weights import publish
from mrt_hpc.submit.create import create_or_open

if TYPE_CHECKING:
    from mrt_hpc.algorithms.starts import Starts
    from mrt_hpc.roles.task.context import Task
    from mrt_hpc.run.layout import RunLayout

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run of two segments, with evaluations in two parts, all of whose tasks are done."""
    return done_run(tmp_path, QUICKSTART, "evaluation.problem_shards=2")


def done_run(tmp_path: Path, recipe_file: Path, *changes: str) -> RunLayout:
    recipe = load_recipe(recipe_file, ("schedule.iterations=4", "schedule.iterations_per_job=2", *changes))
    plan = compile_plan(recipe, LocalSite())
    layout = create_or_open(tmp_path / "run", recipe, plan)
    for job in plan.jobs:
        for index in range(job.tasks):
            write_task(layout, job.name, index, TaskRecord(TaskState.DONE, attempt="a"))
    return layout


def task_of(layout: RunLayout, role: Role, index: int = 0) -> Task:
    """An attempt at a task of the last job of a role."""
    plan = load_task(layout, "report", 0, Placement(0, 1, 0, "b")).plan
    name = [job.name for job in plan.jobs if job.role is role][-1]
    return load_task(layout, name, index, Placement(0, 1, 0, "b"))


def fill(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weights")


def test_a_damaged_last_version_reopens_the_trainer_that_made_it(layout: RunLayout) -> None:
    task = task_of(layout, Role.EVALUATION)
    trainer = task_of(layout, Role.TRAINER).job
    publish(layout, trainer.end_iteration, fill)
    assert verified_weights(task, trainer.end_iteration).version == trainer.end_iteration
    path = layout.weights_version(trainer.end_iteration)
    (path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(DamagedError, match="differs from the manifest"):
        verified_weights(task, trainer.end_iteration)
    assert not path.exists()
    record = read_task(layout, trainer.name, 0)
    assert record.state is TaskState.FAILED
    assert "its last, was damaged" in record.message


def test_a_version_published_again_while_the_damaged_one_was_read_stays(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(layout, 1, fill)
    path = layout.weights_version(1)

    def slow(directory: Path) -> None:
        directory.rename(directory.with_name("elsewhere"))
        commit_whole(directory, fill)
        raise DamagedError("damaged", where=directory)

    monkeypatch.setattr("mrt_hpc.roles.sampling.weights.verify", slow)
    with pytest.raises(DamagedError):
        verified_weights(task_of(layout, Role.EVALUATION), 1)
    assert (path / "model.safetensors").read_bytes() == b"weights"


NOTHING = Sampled(rollouts=[], statistics=GroupStatistics(0, 0, 0, 0, 0, 0, 0, {}))


def evaluations(layout: RunLayout) -> list[UnitEvaluation]:
    """The two parts of the first evaluation, sampled; no test looks at what they hold."""
    tasks = [task_of(layout, Role.EVALUATION, index) for index in (0, 1)]
    found = [UnitEvaluation(task, task.job.evaluations[task.index]) for task in tasks]
    assert found[0].unit == found[1].unit.model_copy(update={"shard": 0})
    for evaluation in found:
        commit_group(evaluation.shard, NOTHING, weights="digest")
        assert evaluation.is_sampled()
    return found


def damage(shard: Path) -> None:
    file = next(shard.glob("*.parquet"))
    write_text(file, "no parquet")


def test_a_damaged_shard_of_its_own_is_sampled_again(layout: RunLayout) -> None:
    first, _ = evaluations(layout)
    damage(first.shard)
    with pytest.raises(DamagedError, match="own shard"):
        first.summarise_if_complete()
    assert not first.is_sampled()
    assert "damaged shard" in next(layout.set_aside.rglob("REASON")).read_text()


def test_the_damaged_shard_of_another_reopens_its_task(layout: RunLayout) -> None:
    first, second = evaluations(layout)
    damage(second.shard)
    first.summarise_if_complete()
    job = first.task.job.name
    assert [read_task(layout, job, index).state for index in (0, 1)] == [TaskState.DONE, TaskState.FAILED]
    assert not second.is_sampled()


def test_what_other_weights_sampled_is_sampled_again(layout: RunLayout) -> None:
    first, second = evaluations(layout)
    publish(layout, first.unit.version, fill)
    assert not first.is_sampled()
    assert "other weights" in next(layout.set_aside.rglob("REASON")).read_text()
    commit_group(first.shard, NOTHING, weights=read_manifest(layout.weights_version(first.unit.version)).digest)
    assert first.is_sampled()
    first.summarise_if_complete()
    assert not second.shard.exists(), "its own weights' samples are not mixed with others'"


def test_a_version_that_is_another_now_has_its_evaluations_made_again(layout: RunLayout) -> None:
    first, second = evaluations(layout)
    version = first.unit.version
    publish(layout, version, fill)
    digest = read_manifest(layout.weights_version(version)).digest
    second.task.set_aside([second.shard], "sampled again in the meantime")
    commit_group(second.shard, NOTHING, weights=digest)
    summary = layout.evaluation_summary(version, first.unit.benchmark)
    write_text(summary, "{}")
    TrainingArtifacts(task_of(layout, Role.TRAINER), cast("Any", None), saved=version).set_aside_evaluations_of_another(
        version
    )
    assert [path.exists() for path in (first.shard, second.shard, summary)] == [False, True, False]
    assert read_task(layout, first.task.job.name, 0).state is TaskState.FAILED


def test_a_version_that_is_the_same_again_keeps_its_evaluations(layout: RunLayout) -> None:
    first, _ = evaluations(layout)
    publish(layout, first.unit.version, fill)
    digest = read_manifest(layout.weights_version(first.unit.version)).digest
    assert evaluated_with_others(layout, first.unit.version, "digest") == []
    assert evaluated_with_others(layout, first.unit.version, digest) != []


def test_an_evaluation_does_not_wait_for_a_version_that_training_has_passed(layout: RunLayout) -> None:
    evaluation = UnitEvaluation(task := task_of(layout, Role.EVALUATION), task.job.evaluations[0])
    publish(layout, evaluation.unit.version + 1, fill)
    with pytest.raises(UserError, match="training has continued without it"):
        evaluation.sample()


def test_groups_of_an_earlier_segment_are_asked_of_those_who_sampled_them(layout: RunLayout) -> None:
    """A damaged checkpoint may send training back across the beginning of its segment."""
    segments = [job for job in task_of(layout, Role.TRAINER).plan.jobs if job.role is Role.INFERENCE]
    for job in segments:
        write_task(layout, job.name, 0, TaskRecord(TaskState.DONE))
    RolloutReader(task_of(layout, Role.TRAINER), segments[0].first_iteration).reopen_samplers()
    assert [read_task(layout, job.name, 0).state for job in segments] == [TaskState.FAILED, TaskState.DONE]


PROBLEM = Problem("p", "1+1", "2")


def stale_prefixes(task: Task, iteration: int) -> Starts:
    context = start_context(task, cast("Any", None), cast("Any", None), [PROBLEM], iteration)
    return algorithm_of(task.recipe).starts(context)


def test_a_damaged_stale_trace_reopens_those_who_collected_it(tmp_path: Path) -> None:
    layout = done_run(tmp_path, QUICKSTART.parent / "small_world" / "mrt.yaml")
    path = layout.group(COLLECTION, 0)
    commit_group(path, NOTHING)
    (path / "rollouts.parquet").write_bytes(b"")
    task = task_of(layout, Role.INFERENCE)
    assert task.job.name == "segment-001.inference"
    starts = stale_prefixes(task, 2)
    with pytest.raises(UserError, match="the trace is sampled again") as refusal:
        starts.group(PROBLEM)
    assert refusal.value.exit_code is ExitCode.RETRYABLE
    assert not path.exists()
    assert read_task(layout, "collection.inference", 0).state is TaskState.FAILED


def test_a_damaged_refreshed_trace_reopens_those_who_collected_that_one(tmp_path: Path) -> None:
    layout = done_run(tmp_path, QUICKSTART.parent / "small_world" / "mrt.yaml", "algorithm.refresh_every=2")
    path = layout.group(collection_of(2), 0)
    commit_group(path, NOTHING)
    (path / "rollouts.parquet").write_bytes(b"")
    starts = stale_prefixes(task_of(layout, Role.INFERENCE), 3)
    with pytest.raises(UserError, match="the trace is sampled again"):
        starts.group(PROBLEM)
    assert not path.exists()
    states = [read_task(layout, f"{name}.inference", 0).state for name in ("collection", "collection-v000002")]
    assert states == [TaskState.DONE, TaskState.FAILED]


@pytest.mark.parametrize("passed", [False, True])
def test_damaged_weights_that_collect_are_published_again_while_none_are_newer(tmp_path: Path, passed: bool) -> None:
    layout = done_run(tmp_path, QUICKSTART.parent / "small_world" / "star.yaml", "algorithm.refresh_every=2")
    for version in (2, 3)[: 1 + passed]:
        publish(layout, version, fill)
    (layout.weights_version(2) / "model.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match="damaged") as refusal:
        collecting_weights(task_of(layout, Role.INFERENCE), 2)
    assert (refusal.value.exit_code is ExitCode.RETRYABLE) is not passed
    reopened = read_task(layout, "segment-000.trainer", 0).state is TaskState.FAILED
    assert reopened is not passed
    assert not layout.weights_version(2).exists()


def test_a_supervised_iteration_learns_what_the_newest_collection_gave(tmp_path: Path) -> None:
    changes = ("algorithm.refresh_every=2", "algorithm.sequences_per_iteration=4")
    task = task_of(done_run(tmp_path, QUICKSTART.parent / "small_world" / "star.yaml", *changes), Role.TRAINER)
    asked: list[int] = []

    def samples_of(version: int) -> Samples:
        asked.append(version)
        return Samples([cast("Any", (version, number)) for number in range(8)], f"v{version}")

    readers = [SampleReader(task, iteration, samples_of) for iteration in range(4)]
    assert asked == [], "the reader of the next segment is made before its collection is sampled"
    learnt = [reader.data().sequences for reader in readers]
    assert asked == [0, 0, 2, 2]
    for version in (0, 2):
        both = cast("Any", [*learnt[version], *learnt[version + 1]])
        assert sorted(both) == [(version, number) for number in range(8)], "one whole pass"


def test_a_task_that_is_not_done_is_not_reopened(layout: RunLayout) -> None:
    task = task_of(layout, Role.TRAINER)
    before = replace(read_task(layout, task.job.name, 0), state=TaskState.RUNNING)
    write_task(layout, task.job.name, 0, before)
    task.reopen([(task.job.name, 0)], "why")
    assert read_task(layout, task.job.name, 0).state is TaskState.RUNNING


def test_the_process_that_listens_on_a_servers_socket_must_be_its_own(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        refuse_stranger(path, os.getpid())
        with pytest.raises(UserError, match="another process listens"):
            refuse_stranger(path, os.getppid())
