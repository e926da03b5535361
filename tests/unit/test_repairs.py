"""Finished results that are found damaged afterwards: they are set aside, and the task that makes them is run again."""

import os
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from commands import refusal
from run_of import publish_some, run_of
from run_of import task_of as task_named
from samples import sampled

from mrt_hpc import ExitCode, Problem
from mrt_hpc.algorithms.base import algorithm_of
from mrt_hpc.inference.server_start import refuse_stranger
from mrt_hpc.plan.jobs import Role, read_plan
from mrt_hpc.roles.evaluation import UnitEvaluation
from mrt_hpc.roles.sampling.collected import start_context
from mrt_hpc.roles.sampling.verified_weights import collecting_weights, verified_weights
from mrt_hpc.roles.task.context import Task
from mrt_hpc.roles.training.artifacts import TrainingArtifacts
from mrt_hpc.roles.training.iteration_data import RolloutReader, SampleReader, Samples
from mrt_hpc.run.groups import commit_group
from mrt_hpc.run.layout import COLLECTION, RunLayout, collection_of
from mrt_hpc.run.manifest import DamagedError, read_manifest
from mrt_hpc.run.quarantine import foreign_evaluations
from mrt_hpc.run.task_state import TaskRecord, TaskState, read_task, write_task

MADE_UP: Any = None
"""Stands where a test looks at nothing."""


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run of two segments, with evaluations in two parts, all of whose tasks are done."""
    return done_run(tmp_path, "quickstart", "evaluation.problem_shards=2")


def done_run(folder: Path, recipe: str, *changes: str) -> RunLayout:
    short = ("schedule.iterations=4", "schedule.iterations_per_job=2")
    layout = run_of(folder / "run", *short, *changes, recipe=recipe)
    for job in read_plan(layout.plan).jobs:
        for index in range(job.tasks):
            write_task(layout, job.name, index, TaskRecord(TaskState.DONE, attempt="a"))
    return layout


def task_of(layout: RunLayout, role: Role, index: int = 0) -> Task:
    name = [job.name for job in read_plan(layout.plan).jobs if job.role is role][-1]
    return task_named(layout, name, index, attempt="b")


def states(layout: RunLayout, *jobs: str) -> list[TaskState]:
    return [read_task(layout, job, 0).state for job in jobs]


def test_a_damaged_last_version_reopens_the_trainer_that_made_it(layout: RunLayout) -> None:
    task, trainer = task_of(layout, Role.EVALUATION), task_of(layout, Role.TRAINER).job
    publish_some(layout, trainer.end_iteration)
    assert verified_weights(task, trainer.end_iteration).version == trainer.end_iteration
    path = layout.weights_version(trainer.end_iteration)
    (path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(DamagedError):
        verified_weights(task, trainer.end_iteration)
    assert (path.exists(), states(layout, trainer.name)) == (False, [TaskState.FAILED])


def test_a_version_published_again_during_the_look_stays(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_some(layout, 1)

    def slow(directory: Path, _: object) -> None:
        directory.rename(directory.with_name("elsewhere"))
        publish_some(layout, 1)
        raise DamagedError("damaged", where=directory)

    monkeypatch.setattr("mrt_hpc.roles.sampling.verified_weights.verify", slow)
    with pytest.raises(DamagedError):
        verified_weights(task_of(layout, Role.EVALUATION), 1)
    assert (layout.weights_version(1) / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("passed", [False, True])
def test_damaged_weights_that_collect_are_published_again_while_none_are_newer(tmp_path: Path, passed: bool) -> None:
    layout = done_run(tmp_path, "small_world/star", "algorithm.refresh_every=2")
    publish_some(layout, *(2, 3)[: 1 + passed])
    (layout.weights_version(2) / "model.safetensors").write_bytes(b"others")
    refused = refusal(collecting_weights, task_of(layout, Role.INFERENCE), 2)
    assert (refused.exit_code is ExitCode.RETRYABLE) is not passed
    assert states(layout, "segment-000.trainer") == [TaskState.DONE if passed else TaskState.FAILED]
    assert not layout.weights_version(2).exists()


def evaluations(layout: RunLayout) -> list[UnitEvaluation]:
    """The two parts of the first evaluation, sampled; no test looks at what they hold."""
    tasks = [task_of(layout, Role.EVALUATION, index) for index in (0, 1)]
    found = [UnitEvaluation(task, task.job.evaluations[task.index]) for task in tasks]
    for evaluation in found:
        commit_group(evaluation.shard, sampled(), weights="digest", settings=evaluation.settings.sampled)
        assert evaluation.is_sampled()
    return found


def test_a_damaged_shard_is_sampled_again_by_whose_it_is(layout: RunLayout) -> None:
    first, second = evaluations(layout)
    next(second.shard.glob("*.parquet")).write_text("no parquet")
    first.summarise_if_complete()
    job = first.task.job.name
    assert [read_task(layout, job, index).state for index in (0, 1)] == [TaskState.DONE, TaskState.FAILED]
    assert not second.is_sampled()
    commit_group(second.shard, sampled(), weights="digest", settings=second.settings.sampled)
    next(first.shard.glob("*.parquet")).write_text("no parquet")
    with pytest.raises(DamagedError, match="own shard"):
        first.summarise_if_complete()
    assert not first.is_sampled()
    assert len([*layout.set_aside.rglob("REASON")]) == 2


def test_what_other_weights_sampled_is_sampled_again(layout: RunLayout) -> None:
    first, second = evaluations(layout)
    publish_some(layout, first.unit.version)
    digest = read_manifest(layout.weights_version(first.unit.version)).digest
    assert not first.is_sampled()
    commit_group(first.shard, sampled(), weights=digest, settings=first.settings.sampled)
    assert first.is_sampled()
    first.summarise_if_complete()
    assert not second.shard.exists(), "its own weights' samples are not mixed with others'"


def test_a_version_that_is_another_now_has_its_evaluations_made_again(layout: RunLayout) -> None:
    first, second = evaluations(layout)
    version = first.unit.version
    publish_some(layout, version)
    digest = read_manifest(layout.weights_version(version)).digest
    assert foreign_evaluations(layout, version, "digest") == [], "it is the same again"
    second.task.set_aside([second.shard], "sampled again in the meantime")
    commit_group(second.shard, sampled(), weights=digest, settings=second.settings.sampled)
    summary = layout.evaluation_summary(version, first.unit.benchmark)
    summary.write_text("{}")
    TrainingArtifacts(task_of(layout, Role.TRAINER), MADE_UP, saved=version).set_aside_evaluations_of_another(version)
    assert [path.exists() for path in (first.shard, second.shard, summary)] == [False, True, False]
    assert states(layout, first.task.job.name) == [TaskState.FAILED]


def test_an_evaluation_does_not_wait_for_a_version_that_training_has_passed(layout: RunLayout) -> None:
    evaluation = UnitEvaluation(task := task_of(layout, Role.EVALUATION), task.job.evaluations[0])
    publish_some(layout, evaluation.unit.version + 1)
    assert "without it" in str(refusal(evaluation.sample))


def test_groups_of_an_earlier_segment_are_asked_of_those_who_sampled_them(layout: RunLayout) -> None:
    trainer, segments = task_of(layout, Role.TRAINER), ("segment-000.inference", "segment-001.inference")
    RolloutReader(trainer, trainer.plan.job(segments[0]).first_iteration).reopen_samplers()
    assert states(layout, *segments) == [TaskState.FAILED, TaskState.DONE]
    write_task(layout, segments[1], 0, TaskRecord(TaskState.RUNNING))
    trainer.reopen([(segments[1], 0)], "why")
    assert states(layout, segments[1]) == [TaskState.RUNNING], "it is not done"


@pytest.mark.parametrize("changes", [(), ("algorithm.refresh_every=2",)])
def test_a_damaged_trace_to_start_from_reopens_those_who_collected_it(tmp_path: Path, changes: tuple[str, ...]) -> None:
    layout, problem = done_run(tmp_path, "small_world/mrt", *changes), Problem("p", "1+1", "2")
    path = layout.group(collection_of(2) if changes else COLLECTION, 0)
    commit_group(path, sampled())
    (path / "rollouts.parquet").write_bytes(b"")
    task = task_of(layout, Role.INFERENCE)
    assert task.job.name == "segment-001.inference"
    starts = algorithm_of(task.recipe).starts(start_context(task, MADE_UP, MADE_UP, [problem], 3))
    assert refusal(starts.group, problem).exit_code is ExitCode.RETRYABLE
    assert not path.exists()
    failed = [job.name for job in task.plan.jobs if states(layout, job.name) == [TaskState.FAILED]]
    assert failed == ["collection-v000002.inference" if changes else "collection.inference"]


def test_a_supervised_iteration_learns_what_the_newest_collection_gave(tmp_path: Path) -> None:
    changes = ("algorithm.refresh_every=2", "algorithm.sequences_per_iteration=4")
    task = task_of(done_run(tmp_path, "small_world/star", *changes), Role.TRAINER)
    asked = Mock(side_effect=lambda version: Samples([(version, number) for number in range(8)], f"v{version}"))
    readers = [SampleReader(task, iteration, asked) for iteration in range(4)]
    assert not asked.called, "the reader of the next segment is made before its collection is sampled"
    learnt: list[Any] = [reader.data().sequences for reader in readers]
    assert [call.args for call in asked.mock_calls] == [(0,), (0,), (2,), (2,)]
    for version in (0, 2):
        both = [*learnt[version], *learnt[version + 1]]
        assert sorted(both) == [(version, number) for number in range(8)], "one whole pass"


def test_the_process_that_listens_on_a_servers_socket_must_be_its_own(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        refuse_stranger(tmp_path / "s", os.getpid())
        assert "another process" in str(refusal(refuse_stranger, tmp_path / "s", os.getppid()))
